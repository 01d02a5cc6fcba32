"""Defines a paper's training row, and the message of a start; a list of recipes needs no torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vlmill.runtime.console.command import print_status
from vlmill.runtime.console.merged_names import merge_names
from vlmill.train.settings.parts import Optimizer
from vlmill.train.settings.spec import Recipe, Stage


def _as_plain_models() -> dict[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class PaperTraining:
    """Describes how the models of a paper's folder are trained.

    recipes: its pretraining runs by name. variant_trainings: imports torch and returns the rows
    (`VariantTraining`) of the variants that differ from plain models on regions.
    """

    recipes: Mapping[str, Callable[[], Recipe]]
    variant_trainings: Callable[[], dict[str, Any]] = _as_plain_models


def say_what_is_new(names: Sequence[str]) -> None:
    """Prints which parameters keep their random start because a checkpoint lacks them."""
    if names:
        print_status(f"new, because --init has no weights for it: {', '.join(merge_names(names))}")


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
