"""Defines ViLBERT's row in the registry."""

from vlmill.models.rows import Networks, Paper, Variant
from vlmill.models.vilbert import config


def networks() -> Networks:
    """Imports the networks. Listing sizes needs no torch."""
    from vlmill.models.vilbert.model import Vilbert
    from vlmill.models.vilbert.published import (
        NEW_WEIGHTS,
        VILBERT,
        single_stream_links,
        vilbert_links,
    )
    from vlmill.models.vilbert.single_stream import SingleStream
    from vlmill.models.vilbert.tasks import Vilbert12in1, VilbertClassifier, VilbertTasks

    return Networks(
        {
            "vilbert": Vilbert,
            "vilbert-single-stream": SingleStream,
            "vilbert-12in1-tasks": Vilbert12in1,
            "vilbert-classifier": VilbertClassifier,
            "vilbert-tasks": VilbertTasks,
        },
        families={"vilbert": VILBERT},
        from_bert={SingleStream: single_stream_links, Vilbert: vilbert_links},
        new_weights=NEW_WEIGHTS,
    )


ROW = Paper(
    networks=networks,
    variants=(
        Variant(name="vilbert", config=config.VilbertConfig, scores_pairs="streams"),
        Variant(name="vilbert-single-stream", config=config.SingleStreamConfig),
        Variant(
            name="vilbert-12in1-tasks",
            config=config.Vilbert12in1Config,
            pretrains=False,
            body="trunk",
            heads={"nlvr2": "task token", "refcoco": "regions", "vcr": "pooled"},
        ),
        Variant(
            name="vilbert-classifier",
            config=config.VilbertClassifierConfig,
            pretrains=False,
            body="trunk",
            heads={
                **{"nlvr2": "pooled", "vqa": "labels"},
                **{"classification": "labels", "entailment": "labels"},
            },
        ),
        # The code trains a new head for retrieval and VCR instead of the head of pretraining.
        Variant(
            name="vilbert-tasks",
            config=config.VilbertTasksConfig,
            pretrains=False,
            body="trunk",
            match_head="score_head",
            match_logit="scores",
            heads={"refcoco": "regions", "vcr": "pooled", "vqa": "pooled"},
        ),
    ),
    presets=config.PRESETS,
    families=("vilbert",),
)
