"""Shared parts of the recipes for trials on a CPU; sizes are the models' ``*_small``."""

from dataclasses import replace
from typing import Any

from vlmill.train.settings.parts import Optimizer
from vlmill.train.settings.spec import Recipe, Stage

VOCABULARY = 4000


def small_recipe(
    name: str,
    variant: str,
    model: Any,
    about: str,
    *,
    standardise_features: bool = True,
    **stage: Any,
) -> Recipe:
    """Returns a recipe of one stage from random weights; ``stage`` are fields of it.

    No model of a few million parameters needs dropout in so few steps, and it delays matching (42
    pairs, ImageBERT: its loss after 300 steps 0.06 without, 0.48 with 0.1).
    """
    defaults: dict[str, Any] = {
        "name": "pairs",
        "steps": 1000,
        "batch_size": 64,
        "optimizer": Optimizer(lr=5e-4),
    }
    return Recipe(
        name=name,
        variant=variant,
        model=model,
        stages=(Stage(**(defaults | stage)),),
        about=about,
        vocabulary_size=VOCABULARY,
        standardise_features=standardise_features,
        save_every=500,
    )


def hour_recipe(small: Recipe, *, steps: int) -> Recipe:
    """Returns a small recipe with more ``steps``, of an hour on two cores at most.

    It needs more pairs as well: some thousand are memorised long before the end.
    """
    (stage,) = small.stages
    return replace(
        small,
        name=small.name.removesuffix("-small") + "-hour",
        about=f"{small.about.partition(':')[0]}: an hour at most, for some ten thousand pairs",
        stages=(replace(stage, steps=steps),),
    )
