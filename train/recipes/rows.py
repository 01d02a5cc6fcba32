"""Defines a paper's training row, and the message of a start; a list of recipes needs no torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmill.runtime.console.command import print_status
from vlmill.runtime.console.merged_names import merge_names
from vlmill.train.settings.spec import Recipe


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
