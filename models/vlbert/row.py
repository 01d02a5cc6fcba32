"""Defines VL-BERT's row in the registry."""

from functools import partial
from typing import Any

from vlmill.models.rows import Networks, Paper, Variant
from vlmill.models.vlbert import config


def networks() -> Networks:
    """Imports the networks. Listing sizes needs no torch."""
    from vlmill.models.vlbert import encoder, end_to_end, model, published, tasks

    return Networks(
        {
            "vl-bert": model.VlBert,
            "vl-bert-end-to-end": end_to_end.VlBertEndToEnd,
            "vl-bert-refcoco": tasks.VlBertRefcoco,
            "vl-bert-refcoco-end-to-end": end_to_end.VlBertRefcocoEndToEnd,
            "vl-bert-vcr": tasks.VlBertVcr,
            "vl-bert-vcr-end-to-end": end_to_end.VlBertVcrEndToEnd,
            "vl-bert-vqa": tasks.VlBertVqa,
        },
        families={"vl-bert": published.VLBERT},
        from_bert={encoder.VlBertBody: published.body_links, model.VlBert: published.vlbert_links},
        derive=published.derive_tensors,
        new_weights=published.NEW_WEIGHTS,
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
