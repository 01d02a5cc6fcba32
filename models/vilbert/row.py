"""Defines ViLBERT's row in the registry."""

from vlmill.models.rows import LABEL_HEADS, Networks, Paper, Variant, task_variant
from vlmill.models.vilbert import config


def networks() -> Networks:
    """Imports the networks. Listing sizes needs no torch."""
    from vlmill.models.vilbert import model, published, single_stream, tasks

    return Networks(
        {
            "vilbert": model.Vilbert,
            "vilbert-single-stream": single_stream.SingleStream,
            "vilbert-12in1-tasks": tasks.Vilbert12in1,
            "vilbert-classifier": tasks.VilbertClassifier,
            "vilbert-tasks": tasks.VilbertTasks,
        },
        families={"vilbert": published.VILBERT},
        from_bert={
            single_stream.SingleStream: published.single_stream_links,
            model.Vilbert: published.vilbert_links,
        },
        new_weights=published.NEW_WEIGHTS,
    )


ROW = Paper(
    networks=networks,
    variants=(
        Variant(name="vilbert", config=config.VilbertConfig, scores_pairs="streams"),
        Variant(name="vilbert-single-stream", config=config.SingleStreamConfig),
        task_variant(
            name="vilbert-12in1-tasks",
            config=config.Vilbert12in1Config,
            heads={"nlvr2": "task token", "refcoco": "regions", "vcr": "pooled"},
        ),
        task_variant(
            name="vilbert-classifier",
            config=config.VilbertClassifierConfig,
            heads=LABEL_HEADS,
        ),
        # The code trains a new head for retrieval and VCR instead of the head of pretraining.
        task_variant(
            name="vilbert-tasks",
            config=config.VilbertTasksConfig,
            match_head="score_head",
            match_logit="scores",
            heads={"refcoco": "regions", "vcr": "pooled", "vqa": "pooled"},
        ),
    ),
    presets=config.PRESETS,
    families=("vilbert",),
)
