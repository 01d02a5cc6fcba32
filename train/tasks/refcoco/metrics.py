"""Computes the accuracy of referring expressions: how often the chosen box overlaps the right one.

Boxes are x1, y1, x2, y2 with x2 and y2 the outer edge. N candidates of an expression.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from vlmill.schemas.errors import InputError
from vlmill.train.tasks.scores import Figures, require_finite, share

Id = TypeVar("Id", bound=int | str)
Boxes = NDArray[np.floating]

ENOUGH = 0.5  # of the union must be shared


@dataclass(frozen=True, kw_only=True)
class IouRule:
    """Defines how a code measures overlap, and the overlap from which a box is right."""

    extra: float = 0.0  # added to every width and height: 1 counts the outer edge as a pixel
    min_side: float = 0.0  # an overlap no wider or no higher than this many pixels counts as 0
    strict: bool = False  # right above one half, not at it
    dtype: type[np.floating[Any]] = np.float64

    def is_right(self, ious: NDArray[np.floating]) -> NDArray[np.bool_]:
        """Returns whether each overlap is enough."""
        enough: NDArray[np.bool_] = ious > ENOUGH if self.strict else ious >= ENOUGH
        return enough


RULES = {
    "exact": IouRule(),  # ours: as the data set's authors, except for slivers
    "released": IouRule(extra=1.0, strict=True, dtype=np.float32),  # ViLBERT's code
    "vlbert": IouRule(extra=1.0),
    "mattnet": IouRule(min_side=1.0),
}


def iou(box: Boxes, boxes: Boxes, rule: IouRule = RULES["exact"]) -> NDArray[np.floating]:
    """Returns the intersection over union of ``box`` [4] with ``boxes`` [N, 4]: [N], 0..1.

    Empty boxes have 0 with every other.
    """
    corners, many = box.astype(rule.dtype), boxes.astype(rule.dtype).reshape(-1, 4)
    extra = rule.dtype(rule.extra)
    sides = np.minimum(corners[2:], many[:, 2:]) - np.maximum(corners[:2], many[:, :2]) + extra
    sides = np.where((sides > rule.min_side).all(axis=1, keepdims=True), sides, rule.dtype(0))
    shared = sides[:, 0] * sides[:, 1]
    area = (corners[2] - corners[0] + extra) * (corners[3] - corners[1] + extra)
    areas = (many[:, 2] - many[:, 0] + extra) * (many[:, 3] - many[:, 1] + extra)
    union = area + areas - shared
    overlap: NDArray[np.floating] = np.zeros_like(shared)
    np.divide(shared, union, out=overlap, where=union > 0)
    return overlap


@dataclass(frozen=True, kw_only=True)
class Grounding:
    """Holds an expression's right box [4], its candidates [N, 4] and their scores [N].

    ``reference_index`` is the right candidate's row where candidates are annotated boxes. No
    candidate is the full image, unless it may be chosen. ``size`` is the size of the image, for
    drawing it.
    """

    reference: Boxes
    candidates: Boxes
    scores: NDArray[np.floating]
    reference_index: int | None = None
    size: tuple[int, int] = (0, 0)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Holds the chosen candidate (None: no candidates), and whether it is right.

    ``reachable``: some candidate would have been right. ``identical``: the chosen one is the right
    box itself; None where candidates are not annotated boxes.
    """

    chosen: int | None
    right: bool
    reachable: bool
    identical: bool | None


def choose(grounding: Grounding, rule: IouRule = RULES["exact"]) -> Choice:
    """Returns the candidate with the highest score, the first of equals."""
    annotated = grounding.reference_index is not None
    if not len(grounding.scores):
        identical = False if annotated else None
        return Choice(chosen=None, right=False, reachable=False, identical=identical)
    chosen = int(grounding.scores.argmax())
    right = rule.is_right(iou(grounding.reference, grounding.candidates, rule))
    return Choice(
        chosen=chosen,
        right=bool(right[chosen]),
        reachable=bool(right.any()),
        identical=chosen == grounding.reference_index if annotated else None,
    )


def refcoco_metrics(
    groundings: Mapping[Id, Grounding], name: str, rule: IouRule = RULES["exact"]
) -> Figures:
    """Returns ``NAME/accuracy`` and ``upper_bound``, by expression, with errors and counts.

    ``name`` is TASK/SPLIT. Annotated candidates also have ``accuracy_identity``: the chosen box is
    the right one, not merely near it. Raises InputError for scores that are not finite or not one
    per candidate.
    """
    for key, grounding in groundings.items():
        if grounding.scores.shape != (len(grounding.candidates),):
            raise InputError(
                f"{name}: {key} has {len(grounding.candidates)} candidates and scores of shape "
                f"{grounding.scores.shape}; score each candidate once"
            )
    require_finite({key: grounding.scores for key, grounding in groundings.items()}, name)
    choices = [choose(grounding, rule) for grounding in groundings.values()]
    figures = share(f"{name}/accuracy", [choice.right for choice in choices])
    figures |= share(f"{name}/upper_bound", [choice.reachable for choice in choices])
    identical = [choice.identical for choice in choices if choice.identical is not None]
    if len(identical) == len(choices) > 0:
        figures |= share(f"{name}/accuracy_identity", identical)
    return figures
