"""Defines ImageBERT's row in the registry."""

from vlmill.models.imagebert.config import (
    PRESETS,
    ImageBertClassifierConfig,
    ImageBertConfig,
    ImageBertRetrievalConfig,
)
from vlmill.models.rows import Networks, Paper, Variant


def networks() -> Networks:
    """Imports the networks. Listing sizes needs no torch."""
    from vlmill.models.imagebert import model

    return Networks(
        {
            "imagebert": model.ImageBert,
            "imagebert-classifier": model.ImageBertClassifier,
            "imagebert-retrieval": model.ImageBertRetrieval,
        },
        from_bert={model.ImageBert: model.links},
    )


ROW = Paper(
    networks=networks,
    variants=(
        Variant(name="imagebert", config=ImageBertConfig),
        Variant(
            name="imagebert-classifier",
            config=ImageBertClassifierConfig,
            pretrains=False,
            body="trunk",
            heads={"vqa": "labels", "classification": "labels", "entailment": "labels"},
        ),
        # The binary layer of pretraining ranks at the end (arXiv:2001.07966, sec. 4.2), unless only
        # another loss was trained.
        Variant(
            name="imagebert-retrieval",
            config=ImageBertRetrievalConfig,
            pretrains=False,
            body="trunk",
            match_head="trunk.match_head",
            match_logit="rank_logit",
            heads={"retrieval": "match and score"},
        ),
    ),
    presets=PRESETS,
)
