"""Selections of regions as recorded: our choice, and near ties in it as the reference has them."""

import torch
from tests.parity.detector_stages import Case
from tests.parity.region_ties import Choice, Regions
from tests.parity.suppression import matching
from tests.parity.ties import settle
from torch import Tensor

from vlmill.extract.config import Selection
from vlmill.models.detector.config import DetectorConfig
from vlmill.models.detector.faster_rcnn import Detections

Rows = tuple[Tensor, Tensor] | None  # regions and their classes; None where nothing tells them


def choice_of(
    case: Case,
    index: int,
    rule: Selection,
    boxes: str,
    probs: str,
    spec: DetectorConfig | None = None,
) -> Choice:
    """A selection of one image's regions; ``boxes`` and ``probs`` are like what decides it."""
    bounds = [case.results.most_allowed(f"{case.name}.{key}") for key in (boxes, probs)]
    return Choice(
        spec=case.spec if spec is None else spec,
        frames=case.frames(index),
        rule=rule,
        box_bound=bounds[0],
        score_bound=bounds[1],
    )


def rows_by_ids(case: Case, ids: str, classes: str) -> Rows:
    """The regions that the reference kept, where it says them."""
    keys = [f"{case.name}.{key}" for key in (ids, classes)]
    if not all(key in case.golden.tensors for key in keys):
        return None
    return case[ids], case[classes]


def rows_by_boxes(
    case: Case, choice: Choice, recorded: Detections, boxes: str, scores: str
) -> Rows:
    """The regions that the reference kept, each of its likeliest class, by what it says of them."""
    if not all(f"{case.name}.{key}" in case.golden.tensors for key in (boxes, scores)):
        return None
    classes = choice.probs(recorded).argmax(dim=1)
    everyone = choice.at(recorded, torch.arange(len(classes)), classes)
    if choice.spec.selection != "class-confidence":  # whose boxes are the image's already
        everyone = everyone.in_image(choice)
    rows = [(case[key], case.bounds(key)(case[key])) for key in (boxes, scores)]
    ids = matching(rows, (everyone.boxes, everyone.class_scores))
    return None if ids is None else (ids, classes[ids])


def settled_choice(
    case: Case, key: str, choice: Choice, ours: Detections, recorded: Detections, rows: Rows
) -> Regions:
    """Our choice of regions; what our numbers say of those kept, where near ties gave others.

    ``rows`` are what the reference kept. Near ties in the recording itself are noted where
    ``recorded`` takes the place of ours.
    """
    theirs, margins = recorded_choice(choice, recorded, rows)
    if ours is not recorded:
        near = choice.margins(ours, recorded) if ours.boxes.shape == recorded.boxes.shape else None
        if near is None:
            return choice.choose(ours)
        margins = near
        theirs = choice.at(ours, theirs.ids, theirs.class_ids, theirs.nms_threshold)
    case.results.exchange(f"{case.name}.{key}", margins)
    return theirs


def recorded_choice(
    choice: Choice, recorded: Detections, rows: Rows
) -> tuple[Regions, list[float]]:
    """The regions that the reference kept, and the margins of near ties in which our rule would not
    have; our rule's, where they are no more than that.
    """
    chosen = choice.choose(recorded)
    if rows is None or not all(
        ((part >= 0) & (part < end)).all()
        for part, end in zip(rows, choice.probs(recorded).shape, strict=True)
    ):
        return chosen, []
    kept = choice.at(recorded, *rows, chosen.nms_threshold)
    threshold = float(chosen.nms_threshold)
    margins = choice.margins_at(threshold, kept, recorded, recorded)
    return (chosen, []) if margins is None or kept.same(chosen) else (kept, margins)


def settled_attributes(
    case: Case, key: str, ours: Tensor, recorded: Tensor | None, ids: Tensor
) -> tuple[Tensor, Tensor]:
    """The best attribute [N] of the regions ``ids`` and its probability, near ties as recorded."""
    mine = ours[ids].max(dim=1).indices
    if recorded is not None:
        choice = case.golden.tensors.get(f"{case.name}.{key}")
        same = choice is not None and choice.shape == mine.shape
        scores = f"{case.name}.out.attr_probs"
        mine = settle(
            case.results,
            f"{case.name}.{key}",
            mine,
            scores,
            recorded[ids],
            choice if same else None,
        )
    return mine, ours[ids].gather(1, mine[:, None])[:, 0]
