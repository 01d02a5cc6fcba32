"""The published selections for one image, in tensors of as many rows as there are regions.

What vlmill.extract.detect.selection does to a batch is compared with this. Suppression is
torchvision's, in each class by itself. R proposals, K classes without background.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import nms

from vlmill.extract.config import Selection
from vlmill.models.detector.boxes import decode_boxes
from vlmill.models.detector.config import DetectorConfig


@dataclass(frozen=True, kw_only=True)
class Image:
    """What a network says of one image: its size there and in its own pixels, and regions."""

    height: float
    width: float
    own_height: float
    own_width: float
    factor: float  # network pixels per image pixel
    boxes: Tensor  # [R, 4]
    class_probs: Tensor  # [R, K + 1]
    box_deltas: Tensor  # [R, B * 4]


@dataclass(frozen=True, kw_only=True)
class Regions:
    """The regions to keep, in the order of the rows."""

    ids: Tensor
    boxes: Tensor
    class_ids: Tensor
    class_scores: Tensor
    nms_threshold: float


def select_one(image: Image, spec: DetectorConfig, rule: Selection) -> Regions:
    """The regions of one image, boxes in its own pixels."""
    probs = foreground(image, spec)
    if spec.selection == "class-confidence":
        return by_class_confidence(image, probs, spec, rule)
    choose = by_best_class if spec.selection == "best-class" else by_class_pairs
    regions = choose(image, probs, spec, rule)
    height, width = image.own_height, image.own_width
    boxes = clipped(regions.boxes / image.factor, height, width, spec.box_offset)
    extent = (boxes[:, 2:] - boxes[:, :2] + spec.box_offset > 0).all(dim=1)
    return Regions(
        ids=regions.ids[extent],
        boxes=boxes[extent],
        class_ids=regions.class_ids[extent],
        class_scores=regions.class_scores[extent],
        nms_threshold=regions.nms_threshold,
    )


def foreground(image: Image, spec: DetectorConfig) -> Tensor:
    """Probabilities [R, K]."""
    probs = image.class_probs
    return probs[:, 1:] if spec.background == "first" else probs[:, :-1]


def by_class_confidence(
    image: Image, probs: Tensor, spec: DetectorConfig, rule: Selection
) -> Regions:
    boxes, (scores, classes) = image.boxes / image.factor, probs.max(dim=1)
    if spec.written_boxes == "refined":
        size = image.height / image.factor, image.width / image.factor
        boxes = of_class(refined(boxes, image, spec, *size), classes, spec)
    threshold = spec.class_nms_thresholds[0]
    confidence = torch.zeros(len(boxes))
    for number in range(probs.shape[1]):
        ids = suppressed(boxes, probs[:, number], threshold, spec)
        confidence[ids] = torch.maximum(confidence[ids], probs[ids, number])
    above = torch.nonzero(confidence >= rule.threshold)[:, 0]
    bound = min(max(len(above), rule.min_boxes), rule.max_boxes)
    best = confidence.sort(descending=True, stable=True).indices[:bound]
    ids = above if bound == len(above) else best
    return Regions(
        ids=ids,
        boxes=boxes[ids],
        class_ids=classes[ids],
        class_scores=scores[ids],
        nms_threshold=threshold,
    )


def by_best_class(image: Image, probs: Tensor, spec: DetectorConfig, rule: Selection) -> Regions:
    scores, classes = probs.max(dim=1)
    boxes = of_class(candidates(image, spec), classes, spec)
    for threshold in spec.class_nms_thresholds:
        ids = suppressed(boxes, scores, threshold, spec)
        if len(ids) >= rule.min_boxes:
            break
    above = int((scores[ids] >= rule.threshold).sum())
    ids = ids[: min(max(above, rule.min_boxes), rule.max_boxes)]
    return Regions(
        ids=ids,
        boxes=boxes[ids],
        class_ids=classes[ids],
        class_scores=scores[ids],
        nms_threshold=threshold,
    )


def by_class_pairs(image: Image, probs: Tensor, spec: DetectorConfig, rule: Selection) -> Regions:
    boxes = candidates(image, spec)
    for threshold in spec.class_nms_thresholds:
        pairs = surviving_pairs(boxes, probs, rule.threshold, threshold, spec)
        if len(pairs) >= rule.max_boxes:
            break
    if len(pairs) < rule.min_boxes:
        pairs = surviving_pairs(boxes, probs, 0.0, threshold, spec)[: rule.min_boxes]
    ids, classes = pairs[: rule.max_boxes].unbind(dim=1)
    return Regions(
        ids=ids,
        boxes=of_class(boxes[ids], classes, spec),
        class_ids=classes,
        class_scores=probs[ids, classes],
        nms_threshold=threshold,
    )


def surviving_pairs(
    boxes: Tensor, probs: Tensor, above: float, threshold: float, spec: DetectorConfig
) -> Tensor:
    """Pairs of region and class of a probability ``above``, best first."""
    pairs = torch.zeros((0, 2), dtype=torch.long)
    for number in range(probs.shape[1]):
        rows = torch.nonzero(probs[:, number] > above)[:, 0]
        classes = torch.full_like(rows, number)
        own = of_class(boxes[rows], classes, spec)
        ids = suppressed(own, probs[rows, number], threshold, spec)
        pairs = torch.cat((pairs, torch.stack((rows[ids], classes[ids]), dim=1)))
    scores = probs[pairs[:, 0], pairs[:, 1]]
    return pairs[scores.sort(descending=True, stable=True).indices]


def suppressed(boxes: Tensor, scores: Tensor, threshold: float, spec: DetectorConfig) -> Tensor:
    """Survivors, best first, by torchvision's operator."""
    below = np.nextafter(np.float32(threshold), np.float32(-np.inf))
    strict = float(below) if spec.nms_inclusive else threshold
    corners = torch.cat((boxes[:, :2], boxes[:, 2:] + spec.box_offset), dim=1)
    ids: Tensor = nms(corners, scores, strict)
    return ids


def candidates(image: Image, spec: DetectorConfig) -> Tensor:
    """Boxes [R, B, 4] in the network's pixels."""
    if spec.written_boxes == "proposals":
        return image.boxes[:, None]
    return refined(image.boxes, image, spec, image.height, image.width)


def refined(
    boxes: Tensor, image: Image, spec: DetectorConfig, height: float, width: float
) -> Tensor:
    """Regressed boxes [R, B, 4] inside an image of that size."""
    decoded = decode_boxes(
        boxes,
        image.box_deltas,
        weights=spec.box_weights,
        offset=spec.box_offset,
        max_log_scale=spec.max_log_scale,
    )
    layers = decoded.view(len(boxes), spec.num_regressed, 4)
    return clipped(layers, height, width, spec.box_offset)


def clipped(boxes: Tensor, height: float, width: float, offset: float) -> Tensor:
    limits = torch.tensor([width - offset, height - offset] * 2)
    return boxes.clamp(min=0.0).minimum(limits)


def of_class(boxes: Tensor, classes: Tensor, spec: DetectorConfig) -> Tensor:
    """Each region's box [R, 4] of its class."""
    if boxes.shape[1] == 1:
        return boxes[:, 0]
    return boxes[torch.arange(len(boxes)), classes + (spec.background == "first")]
