"""The rules of vlmill.extract.detect.selection for a batch, in tensors of sizes that are known
beforehand.

N pictures, P places for proposals, K classes without background, M places for regions. What stands
in places that are not taken means nothing. The host never waits for a GPU here.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from vlmill.extract.config import Selection
from vlmill.extract.detect.selection import of_class
from vlmill.models.detector.batch import BatchDetections
from vlmill.models.detector.boxes import decode_boxes
from vlmill.models.detector.config import DetectorConfig
from vlmill.models.detector.faster_rcnn import foreground_classes
from vlmill.models.detector.nms import class_confidence, first_survivors


@dataclass(frozen=True, kw_only=True)
class Frames:
    """The pictures' sizes. Limits are the farthest corners, repeated for both: x, y, x, y."""

    sides: Float[Tensor, " N"]  # the least width and height of proposals, network pixels
    factors: Float[Tensor, "N 4"]  # network pixels per picture pixel, as x, y, x, y
    network_limits: Float[Tensor, "N 4"]  # in network pixels
    scaled_limits: Float[Tensor, "N 4"]  # the same in picture pixels
    own_limits: Float[Tensor, "N 4"]  # of the picture itself


@dataclass(frozen=True, kw_only=True)
class BatchChosen:
    """Regions to keep, in the order of the rows; boxes in the pictures' own pixels."""

    ids: Int64[Tensor, "N M"]
    boxes: Float[Tensor, "N M 4"]
    class_ids: Int64[Tensor, "N M"]  # without background
    class_scores: Float[Tensor, "N M"]
    taken: Bool[Tensor, "N M"]


def select_fixed(
    batch: BatchDetections, spec: DetectorConfig, frames: Frames, rule: Selection
) -> BatchChosen:
    """The same regions as :func:`vlmill.extract.detect.selection.select` gives for each picture."""
    rules = {
        "class-confidence": by_class_confidence,
        "best-class": by_best_class,
        "class-pairs": by_class_pairs,
    }
    return rules[spec.selection](batch, spec, frames, rule)


def every_given(batch: BatchDetections, spec: DetectorConfig, boxes: Tensor) -> BatchChosen:
    """Every given box [N, P, 4] as it came, with its likeliest class."""
    scores, classes = foreground_of(batch, spec).max(dim=2)
    ids = torch.arange(boxes.shape[1], device=boxes.device).expand_as(batch.taken)
    return BatchChosen(
        ids=ids, boxes=boxes, class_ids=classes, class_scores=scores, taken=batch.taken
    )


def by_class_confidence(
    batch: BatchDetections, spec: DetectorConfig, frames: Frames, rule: Selection
) -> BatchChosen:
    """Bottom-up attention's rule."""
    taken, foreground = batch.taken, foreground_of(batch, spec)
    boxes = batch.found.boxes.view(*taken.shape, 4) / frames.factors[:, None]
    scores, classes = foreground.max(dim=2)
    if spec.written_boxes == "refined":
        refined = refined_boxes(batch, boxes, spec, frames.scaled_limits)
        boxes = boxes_of(refined, classes, spec)
    confidence = class_confidence(
        boxes,
        foreground.masked_fill(~taken[..., None], -1.0),  # last in every class: suppresses nobody
        spec.class_nms_thresholds[0],
        offset=spec.box_offset,
        inclusive=spec.nms_inclusive,
    )
    ids, kept = choose_fixed(confidence.masked_fill(~taken, -torch.inf), rule)
    return BatchChosen(
        ids=ids,
        boxes=at_places(boxes, ids),
        class_ids=classes.gather(1, ids),
        class_scores=scores.gather(1, ids),
        taken=kept,
    )


def choose_fixed(
    confidence: Float[Tensor, "N P"], rule: Selection
) -> tuple[Int64[Tensor, "N M"], Bool[Tensor, "N M"]]:
    """In proposal order where the threshold decides, by falling confidence where a bound does."""
    above = confidence >= rule.threshold
    count = above.sum(dim=1, keepdim=True)
    bound = count.clamp(rule.min_boxes, rule.max_boxes)
    in_order = above.int().sort(dim=1, descending=True, stable=True).indices
    best = confidence.sort(dim=1, descending=True, stable=True).indices
    ids = torch.where(bound == count, in_order, best)[:, : rule.max_boxes]
    places = torch.arange(ids.shape[1], device=ids.device)
    return ids, (places < bound) & (confidence.gather(1, ids) > -torch.inf)


def by_best_class(
    batch: BatchDetections, spec: DetectorConfig, frames: Frames, rule: Selection
) -> BatchChosen:
    """LXMERT's rule."""
    scores, classes = foreground_of(batch, spec).max(dim=2)
    boxes = boxes_of(candidates(batch, spec, frames), classes, spec)
    kept, values = first_survivors(
        boxes[:, :, None],
        scores.masked_fill(~batch.taken, -torch.inf)[..., None],
        spec.class_nms_thresholds,
        min(rule.max_boxes, scores.shape[1]),
        offset=spec.box_offset,
        inclusive=spec.nms_inclusive,
    )
    ids, values = at_first((values > -torch.inf).sum(dim=2) >= rule.min_boxes, kept, values)
    count = (values >= rule.threshold).sum(dim=1, keepdim=True)
    return in_pictures(
        at_places(boxes, ids), ids, classes.gather(1, ids), values, count, spec, frames, rule
    )


def by_class_pairs(
    batch: BatchDetections, spec: DetectorConfig, frames: Frames, rule: Selection
) -> BatchChosen:
    """Detectron2's rule. Pairs above the threshold come before those that fill up, so that one
    suppression gives both.
    """
    probs, boxes = foreground_of(batch, spec), candidates(batch, spec, frames)
    if boxes.shape[2] > 1 and spec.background == "first":
        boxes = boxes[:, :, 1:]
    impossible = ~batch.taken[..., None] | (probs <= 0)
    kept, values = first_survivors(
        boxes,
        probs.masked_fill(impossible, -torch.inf),
        spec.class_nms_thresholds,
        min(rule.max_boxes, probs[0].numel()),
        offset=spec.box_offset,
        inclusive=spec.nms_inclusive,
    )
    places, values = at_first((values > rule.threshold).sum(dim=2) >= rule.max_boxes, kept, values)
    ids, classes = places // probs.shape[2], places % probs.shape[2]
    box = places if boxes.shape[2] > 1 else ids
    own = at_places(boxes.flatten(1, 2), box)
    count = (values > rule.threshold).sum(dim=1, keepdim=True)
    return in_pictures(own, ids, classes, values, count, spec, frames, rule)


def at_first(
    enough: Bool[Tensor, "N T"], kept: Int64[Tensor, "N T M"], values: Float[Tensor, "N T M"]
) -> tuple[Int64[Tensor, "N M"], Float[Tensor, "N M"]]:
    """Of several thresholds' survivors those of the first that leaves enough, else of the last."""
    last = torch.ones_like(enough[:, :1])
    first = torch.cat((enough[:, :-1], last), dim=1).int().argmax(dim=1)
    index = first[:, None, None].expand(-1, 1, kept.shape[2])
    return kept.gather(1, index)[:, 0], values.gather(1, index)[:, 0]


def in_pictures(
    boxes: Float[Tensor, "N M 4"],
    ids: Int64[Tensor, "N M"],
    classes: Int64[Tensor, "N M"],
    scores: Float[Tensor, "N M"],
    count: Int64[Tensor, "N 1"],
    spec: DetectorConfig,
    frames: Frames,
    rule: Selection,
) -> BatchChosen:
    """The first ``count`` within the rule's bounds, in the pictures' own pixels and clipped to
    them, without boxes of which nothing is left.
    """
    own = clipped(boxes / frames.factors[:, None], frames.own_limits[:, None])
    extent = (own[..., 2:] - own[..., :2] + spec.box_offset > 0).all(dim=2)
    places = torch.arange(ids.shape[1], device=ids.device)
    within = places < count.clamp(rule.min_boxes, rule.max_boxes)
    taken = within & (scores > -torch.inf) & extent
    return BatchChosen(ids=ids, boxes=own, class_ids=classes, class_scores=scores, taken=taken)


def foreground_of(batch: BatchDetections, spec: DetectorConfig) -> Float[Tensor, "N P K"]:
    """Class probabilities without background's."""
    probs = foreground_classes(batch.found.class_probs, spec)
    return probs.reshape(*batch.taken.shape, probs.shape[1])


def candidates(
    batch: BatchDetections, spec: DetectorConfig, frames: Frames
) -> Float[Tensor, "N P B 4"]:
    """The boxes that the family writes, one a class or one for all, in the network's pixels."""
    boxes = batch.found.boxes.view(*batch.taken.shape, 4)
    if spec.written_boxes == "proposals":
        return boxes[:, :, None]
    return refined_boxes(batch, boxes, spec, frames.network_limits)


def refined_boxes(
    batch: BatchDetections,
    boxes: Float[Tensor, "N P 4"],
    spec: DetectorConfig,
    limits: Float[Tensor, "N 4"],
) -> Float[Tensor, "N P B 4"]:
    """Every region's regressed boxes inside the limits."""
    assert batch.found.box_deltas is not None
    decoded = decode_boxes(
        boxes.flatten(0, 1),
        batch.found.box_deltas,
        weights=spec.box_weights,
        offset=spec.box_offset,
        max_log_scale=spec.max_log_scale,
    )
    return clipped(decoded.view(*boxes.shape[:2], -1, 4), limits[:, None, None])


def clipped(boxes: Float[Tensor, "N *M 4"], limits: Tensor) -> Float[Tensor, "N *M 4"]:
    """Corners outside moved onto the border."""
    return boxes.clamp(min=0.0).minimum(limits)


def boxes_of(
    boxes: Float[Tensor, "N P B 4"], classes: Int64[Tensor, "N P"], spec: DetectorConfig
) -> Float[Tensor, "N P 4"]:
    """Each region's box of its class."""
    return of_class(boxes.flatten(0, 1), classes.flatten(), spec).view(*classes.shape, 4)


def at_places(
    boxes: Float[Tensor, "N R 4"], places: Int64[Tensor, "N M"]
) -> Float[Tensor, "N M 4"]:
    """Each picture's boxes at its own places."""
    return boxes.gather(1, places[..., None].expand(-1, -1, 4))
