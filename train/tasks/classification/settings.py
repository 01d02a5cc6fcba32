"""Defines the fields of the recipes of classification; entailment has the same settings."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from vlmill.train.settings.tasks import TaskRecipe

Figure = Literal[
    "auto",
    "accuracy",
    "macro_f1",
    "auroc",
    "average_precision",
    "micro_f1",
    "mean_average_precision",
    "micro_average_precision",
]
ONLY_MULTI = ("micro_f1", "mean_average_precision", "micro_average_precision")


@dataclass(frozen=True, kw_only=True)
class ClassificationSettings:
    """Holds the fields that only classification and entailment have."""

    # Whether each example has one class ("single"), or any number of them ("multi"). "auto": multi
    # if a row of the table has another number of labels than one.
    kind: Literal["auto", "single", "multi"] = "auto"
    # A softmax over the classes, or the mean of the classes' binary cross-entropies. "auto": a
    # softmax for a single class.
    loss: Literal["auto", "softmax", "binary"] = "auto"
    balanced: bool = False  # rare classes weigh more in the loss: N / (C n) for n of N examples
    class_weights: dict[str, float] = field(default_factory=dict)  # by name; others weigh 1
    label_smoothing: float = 0.0  # share of the target that is spread over all classes
    threshold: float = 0.5  # the probability from which one of several classes is predicted
    # The validation figure that selects the checkpoint. "auto": accuracy, of several classes an
    # example the mean average precision.
    select_by: Figure = "auto"

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing={self.label_smoothing}: expected 0 to below 1")
        if not 0 < self.threshold < 1:
            raise ValueError(f"threshold={self.threshold}: expected a number between 0 and 1")
        check_weights(self.class_weights)
        if self.balanced and self.class_weights:
            raise ValueError("balanced=true and class_weights: give one of them")
        if self.kind == "multi" and self.loss == "softmax":
            raise ValueError("loss=softmax gives one class; an example with several needs binary")
        if self.kind == "single" and self.select_by in ONLY_MULTI:
            raise ValueError(f"select_by={self.select_by} is defined for kind=multi only")

    @property
    def uses_softmax(self) -> bool:
        """Returns whether the probabilities of the classes sum to 1."""
        return self.kind != "multi" if self.loss == "auto" else self.loss == "softmax"

    @property
    def selected_figure(self) -> str:
        """Returns the name of the validation figure that selects the checkpoint."""
        if self.select_by != "auto":
            return self.select_by
        return "mean_average_precision" if self.kind == "multi" else "accuracy"


def check_weights(weights: Mapping[str, float]) -> None:
    """Raises ValueError for weights that are not numbers of 0 or more."""
    for name, weight in weights.items():
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not is_number or not 0 <= weight < math.inf:
            raise ValueError(f"class_weights: {name!r} has {weight!r}; expected a number from 0 up")


@dataclass(frozen=True, kw_only=True)
class ClassificationRecipe(TaskRecipe):
    """Describes a run of classification."""

    task: str = "classification"
    settings: ClassificationSettings = field(default_factory=ClassificationSettings)
