"""From the network's proposals to a picture's regions (pure).

R proposals, K classes without background, N chosen regions.  The rules are those of the published
extractors; which one a detector has is part of its conventions.
"""

import dataclasses
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from vlmill.extract.config import Selection
from vlmill.models.detector.boxes import clip_boxes
from vlmill.models.detector.config import DetectorConfig
from vlmill.models.detector.faster_rcnn import Detections, foreground_classes, refine_boxes
from vlmill.models.detector.nms import class_confidence, nms, nms_by_class


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The regions to keep, in the order of the rows."""

    ids: Int64[Tensor, " N"]  # proposals; one may appear for several classes
    boxes: Float[Tensor, "N 4"]
    class_ids: Int64[Tensor, " N"]  # without background
    class_scores: Float[Tensor, " N"]
    nms_threshold: float  # the one at which enough were left

    def only(self, which: Tensor) -> "Chosen":
        """Some of them, by places or flags."""
        return Chosen(
            ids=self.ids[which],
            boxes=self.boxes[which],
            class_ids=self.class_ids[which],
            class_scores=self.class_scores[which],
            nms_threshold=self.nms_threshold,
        )


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A picture's height and width in the network's input and in its own pixels."""

    height: float
    width: float
    own_height: float
    own_width: float
    factors: tuple[float, float]  # network pixels per picture pixel, in x and in y

    def to_picture(self, boxes: Float[Tensor, "R 4"]) -> Float[Tensor, "R 4"]:
        """Boxes in pixels of the original picture."""
        return boxes / boxes.new_tensor(self.factors * 2)


def select(found: Detections, spec: DetectorConfig, frame: Frame, rule: Selection) -> Chosen:
    """The regions of one picture, boxes in its own pixels."""
    if spec.selection == "class-confidence":
        return by_class_confidence(found, spec, frame, rule)
    choose = by_best_class if spec.selection == "best-class" else by_class_pairs
    return in_picture(choose(found, spec, frame, rule), spec, frame)


def by_class_confidence(
    found: Detections, spec: DetectorConfig, frame: Frame, rule: Selection
) -> Chosen:
    """Bottom-up attention's rule: the best class in which a region survives the suppression.

    The boxes that suppress each other are those that are written, in the picture's pixels; refined
    ones are refined there too, each by its best class.
    """
    boxes = frame.to_picture(found.boxes)
    foreground = foreground_classes(found.class_probs, spec)
    scores, classes = foreground.max(dim=1)
    if spec.written_boxes == "refined":
        assert found.box_deltas is not None
        size = frame.height / frame.factors[1], frame.width / frame.factors[0]
        boxes = of_class(refine_boxes(boxes, found.box_deltas, *size, spec), classes, spec)
    threshold = spec.class_nms_thresholds[0]
    confidence = class_confidence(
        boxes, foreground, threshold, offset=spec.box_offset, inclusive=spec.nms_inclusive
    )
    chosen = choose_regions(confidence, rule)
    return Chosen(
        ids=chosen,
        boxes=boxes[chosen],
        class_ids=classes[chosen],
        class_scores=scores[chosen],
        nms_threshold=threshold,
    )


def choose_regions(confidence: Float[Tensor, " R"], rule: Selection) -> Int64[Tensor, " N"]:
    """Indices of the regions to keep (released code of bottom-up attention).

    In proposal order where the threshold decides, by falling confidence where a bound does; equal
    confidences keep proposal order.
    """
    above = torch.nonzero(confidence >= rule.threshold)[:, 0]
    bound = min(max(len(above), rule.min_boxes), rule.max_boxes)
    if bound == len(above):
        return above
    return confidence.sort(descending=True, stable=True).indices[:bound]


def by_best_class(found: Detections, spec: DetectorConfig, frame: Frame, rule: Selection) -> Chosen:
    """LXMERT's rule: one class and box for each region, all suppressing each other.

    The overlap that suppresses is raised until ``rule.min_boxes`` are left; then the threshold and
    the bounds of ``rule`` count, best first. The released code has no threshold: 0 is the same.
    Boxes are in the network's pixels.
    """
    scores, classes = foreground_classes(found.class_probs, spec).max(dim=1)
    boxes = of_class(candidate_boxes(found, spec, frame), classes, spec)
    for threshold in spec.class_nms_thresholds:
        kept = nms(boxes, scores, threshold, offset=spec.box_offset, inclusive=spec.nms_inclusive)
        if len(kept) >= rule.min_boxes:
            break
    above = int((scores[kept] >= rule.threshold).sum())
    kept = kept[: min(max(above, rule.min_boxes), rule.max_boxes)]
    return Chosen(
        ids=kept,
        boxes=boxes[kept],
        class_ids=classes[kept],
        class_scores=scores[kept],
        nms_threshold=threshold,
    )


def by_class_pairs(
    found: Detections, spec: DetectorConfig, frame: Frame, rule: Selection
) -> Chosen:
    """Detectron2's rule: every pair of region and class above the threshold, best first.

    With several overlaps, as in the notebooks of its fork, they are raised until ``rule.max_boxes``
    are left. The best of the pairs below the threshold fill up to ``rule.min_boxes``. Boxes are in
    the network's pixels.
    """
    boxes = candidate_boxes(found, spec, frame)
    probs = foreground_classes(found.class_probs, spec)
    for threshold in spec.class_nms_thresholds:
        chosen = surviving_pairs(boxes, probs, rule.threshold, threshold, spec)
        if len(chosen.ids) >= rule.max_boxes:
            break
    if len(chosen.ids) < rule.min_boxes:
        everything = surviving_pairs(boxes, probs, 0.0, threshold, spec)
        return everything.only(torch.arange(min(len(everything.ids), rule.min_boxes)))
    return chosen.only(torch.arange(min(len(chosen.ids), rule.max_boxes)))


def surviving_pairs(
    boxes: Float[Tensor, "R B 4"],
    probs: Float[Tensor, "R K"],
    above: float,
    threshold: float,
    spec: DetectorConfig,
) -> Chosen:
    """Pairs of a probability ``above``, suppressed within their class, best first."""
    ids, classes = torch.nonzero(probs > above, as_tuple=True)
    scores = probs[ids, classes]
    own = of_class(boxes[ids], classes, spec)
    kept = nms_by_class(
        own, scores, classes, threshold, offset=spec.box_offset, inclusive=spec.nms_inclusive
    )
    return Chosen(
        ids=ids[kept],
        boxes=own[kept],
        class_ids=classes[kept],
        class_scores=scores[kept],
        nms_threshold=threshold,
    )


def candidate_boxes(
    found: Detections, spec: DetectorConfig, frame: Frame
) -> Float[Tensor, "R B 4"]:
    """The boxes that the family writes, one a class or one for all, in the network's pixels."""
    if spec.written_boxes == "proposals":
        return found.boxes[:, None]
    assert found.box_deltas is not None
    return refine_boxes(found.boxes, found.box_deltas, frame.height, frame.width, spec)


def of_class(
    boxes: Float[Tensor, "R B 4"], classes: Int64[Tensor, " R"], spec: DetectorConfig
) -> Float[Tensor, "R 4"]:
    """Each region's box of its class (without background)."""
    if boxes.shape[1] == 1:
        return boxes[:, 0]
    columns = classes + (spec.background == "first")
    return boxes[torch.arange(len(boxes), device=boxes.device), columns]


def in_picture(chosen: Chosen, spec: DetectorConfig, frame: Frame) -> Chosen:
    """In the picture's own pixels, clipped to it, without boxes of which nothing is left."""
    boxes = clip_boxes(
        frame.to_picture(chosen.boxes), frame.own_height, frame.own_width, spec.box_offset
    )
    sides = boxes[:, 2:] - boxes[:, :2] + spec.box_offset
    return dataclasses.replace(chosen, boxes=boxes).only((sides > 0).all(dim=1))
