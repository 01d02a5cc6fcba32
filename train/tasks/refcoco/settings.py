"""Defines the fields of the recipes of referring expressions."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from vlmill.train.settings.tasks import TaskRecipe

Rule = Literal["exact", "released", "vlbert", "mattnet"]


@dataclass(frozen=True, kw_only=True)
class RefcocoSettings:
    """Holds the fields that only referring expressions have."""

    # The target of a region that overlaps by half: its overlap (ViLBERT's code), or 1.
    labels: Literal["soft", "binary"] = "binary"
    # The rule of `metrics.RULES` by which overlaps are measured for that.
    label_rule: Rule = "vlbert"
    # The loss of a region, summed over an image's and a mean over the expressions (ViLBERT), or a
    # mean over all of them (VL-BERT).
    loss: Literal["sum", "mean"] = "sum"
    # "left" and "right" are swapped in the expressions of mirrored images (VL-BERT's code).
    mirror_words: bool = False
    iou: Rule = "exact"  # the rule by which a choice is right: that of `evaluate --iou`
    # Whether the full image, which is trained on as a region, may be chosen. The released codes
    # allow it.
    choose_whole: bool = False


@dataclass(frozen=True, kw_only=True)
class RefcocoRecipe(TaskRecipe):
    """Describes a run of referring expressions."""

    published: ClassVar[dict[str, Any]] = {
        "validation_pairs": 10_834
    }  # the largest validation split, RefCOCO's
    task: str = "refcoco"
    settings: RefcocoSettings = field(default_factory=RefcocoSettings)
