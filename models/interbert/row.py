"""InterBERT's row in the registry."""

from vlmill.models.interbert.config import (
    InterBertConfig,
    InterBertImagesConfig,
    InterBertTasksConfig,
    InterBertTextConfig,
    interbert_chinese,
    interbert_paper,
    interbert_released,
    interbert_single_stream,
    interbert_small,
)
from vlmill.models.rows import Networks, Paper, Variant


def networks() -> Networks:
    """Imports the networks: a list of sizes does not wait for torch."""
    from vlmill.models.interbert.from_bert import links
    from vlmill.models.interbert.model import InterBert
    from vlmill.models.interbert.published import INTERBERT
    from vlmill.models.interbert.tasks import InterBertImages, InterBertTasks, InterBertText

    return Networks(
        {
            "interbert": InterBert,
            "interbert-pictures": InterBertImages,
            "interbert-tasks": InterBertTasks,
            "interbert-text": InterBertText,
        },
        families={"interbert": INTERBERT},
        from_bert={InterBert: links},
    )


ROW = Paper(
    networks=networks,
    variants=(
        Variant(name="interbert", config=InterBertConfig),
        Variant(
            name="interbert-pictures",
            config=InterBertImagesConfig,
            pretrains=False,
            body="trunk",
            heads={"nlvr2": "pooled"},
        ),
        # Fine-tuned with pretraining's head, too (arXiv:2003.13198, sec. 4; code).
        Variant(
            name="interbert-tasks",
            config=InterBertTasksConfig,
            pretrains=False,
            body="trunk",
            match_head="trunk.match_head",
            match_logit="trunk.match_logit",
            heads={"refcoco": "regions", "vcr": "pooled"},
        ),
        Variant(
            name="interbert-text",
            config=InterBertTextConfig,
            pretrains=False,
            body="trunk",
            heads={"glue": "pooled"},
        ),
    ),
    presets={
        "interbert-chinese": interbert_chinese,
        "interbert-paper": interbert_paper,
        "interbert-released": interbert_released,
        "interbert-single-stream": interbert_single_stream,
        "interbert-small": interbert_small,
    },
    families=("interbert",),
)
