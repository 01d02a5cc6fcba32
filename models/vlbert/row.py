"""Defines VL-BERT's row in the registry."""

from functools import partial
from typing import Any

from vlmill.models.rows import Networks, Paper, Variant
from vlmill.models.vlbert import config


def networks() -> Networks:
    """Imports the networks. Listing sizes needs no torch."""
    from vlmill.models.vlbert.encoder import VlBertBody
    from vlmill.models.vlbert.end_to_end import (
        VlBertEndToEnd,
        VlBertRefcocoEndToEnd,
        VlBertVcrEndToEnd,
    )
    from vlmill.models.vlbert.model import VlBert
    from vlmill.models.vlbert.published import (
        NEW_WEIGHTS,
        VLBERT,
        body_links,
        derive_tensors,
        vlbert_links,
    )
    from vlmill.models.vlbert.tasks import VlBertRefcoco, VlBertVcr, VlBertVqa

    return Networks(
        {
            "vl-bert": VlBert,
            "vl-bert-end-to-end": VlBertEndToEnd,
            "vl-bert-refcoco": VlBertRefcoco,
            "vl-bert-refcoco-end-to-end": VlBertRefcocoEndToEnd,
            "vl-bert-vcr": VlBertVcr,
            "vl-bert-vcr-end-to-end": VlBertVcrEndToEnd,
            "vl-bert-vqa": VlBertVqa,
        },
        families={"vl-bert": VLBERT},
        from_bert={VlBertBody: body_links, VlBert: vlbert_links},
        derive=derive_tensors,
        new_weights=NEW_WEIGHTS,
    )


def fit_body(init_body: Any, recipe_body: Any) -> config.VlBertConfig:
    """Returns the body of ``--init`` without pretraining heads, with the recipe's masking."""
    return config.vlbert_for_task(
        init_body, pooler=recipe_body.pooler, masked_region=recipe_body.masked_region
    )


# The model of a task. Its body is that of ``--init``.
task = partial(Variant, pretrains=False, fit_body=fit_body)

ROW = Paper(
    networks=networks,
    variants=(
        Variant(name="vl-bert", config=config.VlBertConfig, class_probs="full"),
        Variant(
            name="vl-bert-end-to-end",
            config=config.VlBertEndToEndConfig,
            body="model",
            makes_features=True,
        ),
        task(
            name="vl-bert-refcoco",
            config=config.VlBertRefcocoConfig,
            body="body",
            heads={"refcoco": "whole model"},
        ),
        task(
            name="vl-bert-refcoco-end-to-end",
            config=config.VlBertEndToEndConfig,
            body="model.body",
            makes_features=True,
            heads={"refcoco": "whole model"},
        ),
        task(
            name="vl-bert-vcr",
            config=config.VlBertVcrConfig,
            body="body",
            heads={"vcr": "whole model"},
        ),
        task(
            name="vl-bert-vcr-end-to-end",
            config=config.VlBertEndToEndConfig,
            body="model.body",
            makes_features=True,
            heads={"vcr": "whole model"},
        ),
        task(
            name="vl-bert-vqa",
            config=config.VlBertVqaConfig,
            body="body",
            heads={"vqa": "mask", "classification": "mask", "entailment": "mask"},
        ),
    ),
    presets=config.PRESETS,
    families=("vl-bert",),
)
