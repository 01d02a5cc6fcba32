"""Defines InterBERT's row in the registry."""

from vlmill.models.interbert import config
from vlmill.models.rows import LABEL_HEADS, Networks, Paper, Variant, task_variant


def networks() -> Networks:
    """Imports the networks. Listing sizes needs no torch."""
    from vlmill.models.interbert import model, published

    return Networks(
        {
            "interbert": model.InterBert,
            "interbert-pictures": model.InterBertImages,
            "interbert-tasks": model.InterBertTasks,
            "interbert-text": model.InterBertText,
        },
        families={"interbert": published.INTERBERT},
        from_bert={model.InterBert: published.bert_links},
    )


ROW = Paper(
    networks=networks,
    variants=(
        Variant(name="interbert", config=config.InterBertConfig),
        task_variant(
            name="interbert-pictures",
            config=config.InterBertImagesConfig,
            heads=LABEL_HEADS,
        ),
        # Fine-tuned with the head of pretraining, too (arXiv:2003.13198, sec. 4; code).
        task_variant(
            name="interbert-tasks",
            config=config.InterBertTasksConfig,
            match_head="trunk.match_head",
            match_logit="trunk.match_logit",
            heads={"refcoco": "regions", "vcr": "pooled"},
            # Segments of modalities are for captions; the segments of a choice are the text's
            # parts.
            choice_options={"for_captions": False},
        ),
        task_variant(
            name="interbert-text",
            config=config.InterBertTextConfig,
            heads={"glue": "pooled"},
        ),
    ),
    presets=config.PRESETS,
    families=("interbert",),
)
