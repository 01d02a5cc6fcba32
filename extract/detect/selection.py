"""Selects the regions of images from the network's proposals, with pure functions.

N images, P slots for proposals, K classes without background, M slots for regions. The rules follow
the published extractors; the conventions of a detector name its rule. All sizes are known in
advance, so the host never waits for a GPU here. The values in unused slots are meaningless.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from vlmill.extract.config import Selection
from vlmill.models.detector.boxes import clip_boxes, constants
from vlmill.models.detector.config import DetectorConfig, Rule
from vlmill.models.detector.faster_rcnn import Detections, foreground_classes, refine_boxes
from vlmill.models.detector.nms import class_confidence, first_survivors, nms_every_class

MAX_HALVINGS = 10  # of VinVL's threshold
CLASSES_AT_ONCE = 100  # in a suppression with separate boxes for each class


@dataclass(frozen=True, kw_only=True)
class Frames:
    """Holds the images' sizes. Limits are the farthest corners, repeated for both: x, y, x, y."""

    min_sides: Float[Tensor, " N"]  # minimum width and height of proposals, network pixels
    factors: Float[Tensor, "N 4"]  # network pixels per image pixel, as x, y, x, y
    network_limits: Float[Tensor, "N 4"]  # in network pixels
    scaled_limits: Float[Tensor, "N 4"]  # the same in image pixels
    image_limits: Float[Tensor, "N 4"]  # of the image itself
    content_limits: Float[Tensor, "N 4"]  # in network pixels, without padding that boxes may reach
    given_factors: Float[Tensor, "N 4"]  # as factors, for given boxes

    def to_images(self, boxes: Float[Tensor, "N P 4"]) -> Float[Tensor, "N P 4"]:
        """Returns the boxes in pixels of the original images."""
        return boxes / self.factors[:, None]


@dataclass(frozen=True, kw_only=True)
class SelectedRegions:
    """Holds the regions of each image, in the order of its row."""

    ids: Int64[Tensor, "N M"]  # proposals; one may appear for several classes
    boxes: Float[Tensor, "N M 4"]
    class_ids: Int64[Tensor, "N M"]  # without background
    class_scores: Float[Tensor, "N M"]
    box_mask: Bool[Tensor, "N M"]
    nms_threshold: Float[Tensor, " N"]  # the threshold that left enough regions
    # The same boxes in network pixels, if they were selected there.
    network_boxes: Float[Tensor, "N M 4"] | None = None


def select(
    detections: Detections, spec: DetectorConfig, frames: Frames, rule: Selection
) -> SelectedRegions:
    """Selects the regions of each image, boxes in its own pixels."""
    if spec.regions == "grid":
        return every_cell(detections, frames)
    choose = RULES[spec.selection]
    chosen = choose(detections, spec, frames, rule)
    if spec.selection in ("class-confidence", "kept-confidence"):  # already in the image's pixels
        return chosen
    return in_images(chosen, spec, frames)


def every_cell(detections: Detections, frames: Frames) -> SelectedRegions:
    """Returns every cell of a grid, row by row."""
    boxes = frames.to_images(detections.boxes)
    numbers = torch.arange(boxes.shape[1], device=boxes.device).expand(boxes.shape[:2])
    return SelectedRegions(
        ids=numbers,
        boxes=boxes,
        class_ids=torch.full_like(numbers, -1),
        class_scores=torch.zeros_like(boxes[..., 0]),
        box_mask=detections.box_mask,
        nms_threshold=boxes.new_ones(len(boxes)),
    )


def every_given(
    detections: Detections, spec: DetectorConfig, boxes: Float[Tensor, "N P 4"]
) -> SelectedRegions:
    """Returns every given box unchanged, with its most likely class; none is dropped, moved or
    refined.
    """
    scores, classes = foreground_classes(detections.class_probs, spec).max(dim=2)
    return SelectedRegions(
        ids=torch.arange(boxes.shape[1], device=boxes.device).expand(boxes.shape[:2]),
        boxes=boxes,
        class_ids=classes,
        class_scores=scores,
        box_mask=detections.box_mask,
        nms_threshold=boxes.new_ones(len(boxes)),
    )


def by_class_confidence(
    detections: Detections, spec: DetectorConfig, frames: Frames, rule: Selection
) -> SelectedRegions:
    """Applies bottom-up attention's rule: the best class in which a region survives the
    suppression.

    The written boxes suppress each other, in pixels of the image. Refined boxes are also refined
    there, each by its best class.
    """
    box_mask, probs = detections.box_mask, foreground_classes(detections.class_probs, spec)
    boxes = frames.to_images(detections.boxes)
    scores, classes = probs.max(dim=2)
    if spec.written_boxes == "refined":
        assert detections.box_deltas is not None
        refined = refine_boxes(boxes, detections.box_deltas, frames.scaled_limits, spec)
        boxes = select_class_boxes(refined, classes, spec)
    threshold = spec.class_nms_thresholds[0]
    confidence = class_confidence(
        boxes,
        probs.masked_fill(~box_mask[..., None], -1.0),  # last in every class: suppresses none
        threshold,
        offset=spec.overlap_offset,
        inclusive=spec.nms_inclusive,
    )
    ids, chosen = choose_regions(confidence.masked_fill(~box_mask, -torch.inf), rule)
    return SelectedRegions(
        ids=ids,
        boxes=gather_boxes(boxes, ids),
        class_ids=classes.gather(1, ids),
        class_scores=scores.gather(1, ids),
        box_mask=chosen,
        nms_threshold=boxes.new_full((len(boxes),), threshold),
    )


def choose_regions(
    confidence: Float[Tensor, "N P"], rule: Selection
) -> tuple[Int64[Tensor, "N M"], Bool[Tensor, "N M"]]:
    """Returns the slots of the regions to keep, and which of them count (bottom-up attention's
    code).

    In proposal order if the threshold decides, by falling confidence if a limit does; equal
    confidences keep proposal order. A confidence of -inf marks an unused slot.
    """
    above = confidence >= rule.threshold
    count = above.sum(dim=1, keepdim=True)
    bound = count.clamp(rule.min_boxes, rule.max_boxes)
    in_order = above.int().sort(dim=1, descending=True, stable=True).indices
    best = confidence.sort(dim=1, descending=True, stable=True).indices
    ids = torch.where(bound == count, in_order, best)[:, : rule.max_boxes]
    positions = torch.arange(ids.shape[1], device=ids.device)
    return ids, (positions < bound) & (confidence.gather(1, ids) > -torch.inf)


def by_kept_class(
    detections: Detections, spec: DetectorConfig, frames: Frames, rule: Selection
) -> SelectedRegions:
    """Applies VinVL's rule (``filter_results_peter``).

    Each region gets the class in which it survives the suppression with the highest probability,
    and that class's box. Boxes are in the network's pixels.
    """
    probs, boxes = (
        foreground_classes(detections.class_probs, spec),
        candidate_boxes(detections, spec, frames),
    )
    if boxes.shape[2] > 1:
        boxes = boxes[:, :, 1:] if spec.background == "first" else boxes[:, :, :-1]
    survives = kept_in_classes(boxes, probs, detections.box_mask, spec)
    confidence, classes = probs.masked_fill(~survives, 0.0).max(dim=2)
    above = (confidence >= rule.threshold) & (confidence > 0) & detections.box_mask
    ids, chosen = best_regions(confidence, above, detections.box_mask, rule)
    own = classes[..., None, None].expand(-1, -1, 1, 4)
    boxes = boxes.gather(2, own)[:, :, 0] if boxes.shape[2] > 1 else boxes[:, :, 0]
    return SelectedRegions(
        ids=ids,
        boxes=gather_boxes(boxes, ids),
        class_ids=classes.gather(1, ids),
        class_scores=confidence.gather(1, ids),
        box_mask=chosen,
        nms_threshold=boxes.new_full((len(boxes),), spec.class_nms_thresholds[0]),
    )


def by_kept_confidence(
    detections: Detections, spec: DetectorConfig, frames: Frames, rule: Selection
) -> SelectedRegions:
    """Applies the rule of Pythia, MMF and 12-in-1.

    Regions are kept by the best class in which they survive, above the threshold, each with its
    most likely class. Proposals suppress each other in the image's pixels. With
    ``background_counts`` the background is a class like others, with id -1.
    """
    probs = foreground_classes(detections.class_probs, spec)
    counted, first = probs, 0
    if spec.background_counts:
        assert spec.background == "first"
        counted, first = detections.class_probs, -1
    boxes = frames.to_images(detections.boxes)
    survives = kept_in_classes(boxes[:, :, None], counted, detections.box_mask, spec)
    confidence = counted.masked_fill(~survives, 0.0).amax(dim=2)
    above = (confidence > rule.threshold) & detections.box_mask
    ids, chosen = best_regions(confidence, above, detections.box_mask, rule)
    scores, classes = counted.max(dim=2)
    return SelectedRegions(
        ids=ids,
        boxes=gather_boxes(boxes, ids),
        class_ids=classes.gather(1, ids) + first,
        class_scores=scores.gather(1, ids),
        box_mask=chosen,
        nms_threshold=boxes.new_full((len(boxes),), spec.class_nms_thresholds[0]),
    )


def kept_in_classes(
    boxes: Float[Tensor, "N P B 4"],
    probs: Float[Tensor, "N P K"],
    box_mask: Bool[Tensor, "N P"],
    spec: DetectorConfig,
) -> Bool[Tensor, "N P K"]:
    """Returns which regions survive the suppression of which class, by boxes of all classes (B is
    1) or of each.
    """
    scores = probs.masked_fill(~box_mask[..., None], -1.0)  # last in every class
    threshold, offset = spec.class_nms_thresholds[0], spec.overlap_offset
    inclusive = spec.nms_inclusive
    if boxes.shape[2] == 1:
        return nms_every_class(
            boxes[:, :, 0], scores, threshold, offset=offset, inclusive=inclusive
        )
    survives = [
        nms_every_class(
            part_boxes.transpose(1, 2),
            part_scores.transpose(1, 2)[..., None],
            threshold,
            offset=offset,
            inclusive=inclusive,
        )[..., 0].transpose(1, 2)
        # In groups of classes: for 300 regions the overlaps of 100 classes are 36 MB.
        for part_boxes, part_scores in zip(
            torch.split(boxes, CLASSES_AT_ONCE, dim=2),
            torch.split(scores, CLASSES_AT_ONCE, dim=2),
            strict=True,
        )
    ]
    return torch.cat(survives, dim=2)


def best_regions(
    confidence: Float[Tensor, "N P"],
    above: Bool[Tensor, "N P"],
    box_mask: Bool[Tensor, "N P"],
    rule: Selection,
) -> tuple[Int64[Tensor, "N M"], Bool[Tensor, "N M"]]:
    """Returns the slots of the regions to keep by falling confidence, and which of them count.

    They are ``above`` the threshold, within the rule's limits. A region that survived in no class
    has a confidence of 0 and does not count.
    """
    ranked = confidence.masked_fill(~box_mask | (confidence <= 0), -torch.inf)
    ids = ranked.sort(dim=1, descending=True, stable=True).indices[:, : rule.max_boxes]
    return ids, within_bounds(ranked.gather(1, ids), above.sum(dim=1, keepdim=True), rule)


def by_best_class(
    detections: Detections, spec: DetectorConfig, frames: Frames, rule: Selection
) -> SelectedRegions:
    """Applies LXMERT's rule: each region has one class and box, and all suppress each other.

    The overlap threshold is raised until ``rule.min_boxes`` are left; then the threshold and the
    bounds of ``rule`` apply, best first. The released code has no threshold: 0 is the same. Boxes
    are in the network's pixels.
    """
    scores, classes = foreground_classes(detections.class_probs, spec).max(dim=2)
    boxes = select_class_boxes(candidate_boxes(detections, spec, frames), classes, spec)
    impossible = ~detections.box_mask
    if spec.candidate_share:
        impossible = impossible | (scores <= spec.candidate_share * rule.threshold)
        impossible = impossible | (boxes[..., 2:] < boxes[..., :2]).any(dim=2)
    survivors, values = first_survivors(
        boxes[:, :, None],
        scores.masked_fill(impossible, -torch.inf)[..., None],
        spec.class_nms_thresholds,
        min(rule.max_boxes, scores.shape[1]),
        offset=spec.overlap_offset,
        inclusive=spec.nms_inclusive,
    )
    enough = (values > -torch.inf).sum(dim=2) >= rule.min_boxes
    ids, values, threshold = select_by_threshold(enough, survivors, values, spec)
    above = (values >= rule.threshold).sum(dim=1, keepdim=True)
    return SelectedRegions(
        ids=ids,
        boxes=gather_boxes(boxes, ids),
        class_ids=classes.gather(1, ids),
        class_scores=values,
        box_mask=within_bounds(values, above, rule),
        nms_threshold=threshold,
    )


def by_class_pairs(
    detections: Detections, spec: DetectorConfig, frames: Frames, rule: Selection
) -> SelectedRegions:
    """Applies Detectron2's rule: every pair of region and class above the threshold, best first.

    With several overlaps, as in the notebooks of its fork, they are raised until ``rule.max_boxes``
    are left. The best of the pairs below the threshold fill up to ``rule.min_boxes``: they come
    after the others, so that one suppression gives both. Boxes are in the network's pixels.
    """
    probs = foreground_classes(detections.class_probs, spec)
    boxes = candidate_boxes(detections, spec, frames)
    if boxes.shape[2] > 1 and spec.background == "first":
        boxes = boxes[:, :, 1:]
    impossible = ~detections.box_mask[..., None] | (probs <= 0)
    survivors, values = first_survivors(
        boxes,
        probs.masked_fill(impossible, -torch.inf),
        spec.class_nms_thresholds,
        min(rule.max_boxes, probs[0].numel()),
        offset=spec.overlap_offset,
        inclusive=spec.nms_inclusive,
    )
    enough = (values > rule.threshold).sum(dim=2) >= rule.max_boxes
    pairs, values, threshold = select_by_threshold(enough, survivors, values, spec)
    ids, classes = pairs // probs.shape[2], pairs % probs.shape[2]
    above = (values > rule.threshold).sum(dim=1, keepdim=True)
    by_class = spec.pair_order == "class"
    chosen = SelectedRegions(
        ids=ids,
        boxes=gather_boxes(boxes.flatten(1, 2), pairs if boxes.shape[2] > 1 else ids),
        class_ids=classes,
        class_scores=values,
        box_mask=above_halved(values, rule) if by_class else within_bounds(values, above, rule),
        nms_threshold=threshold,
    )
    return class_by_class(chosen) if by_class else chosen


def above_halved(values: Float[Tensor, "N M"], rule: Selection) -> Bool[Tensor, "N M"]:
    """Returns which pairs are above the threshold, halved up to ten times until there are
    enough.
    """
    halves = torch.arange(MAX_HALVINGS + 1, device=values.device)
    thresholds = rule.threshold * 0.5**halves
    above = values[:, None] > thresholds[:, None]  # [N, halvings, M]
    enough = above.sum(dim=2) >= rule.min_boxes
    last = torch.ones_like(enough[:, :1])
    first = torch.cat((enough[:, :-1], last), dim=1).int().argmax(dim=1)
    return above.gather(1, first[:, None, None].expand(-1, 1, values.shape[1]))[:, 0]


def class_by_class(chosen: SelectedRegions) -> SelectedRegions:
    """Returns the regions of each class together, in the order of the classes; best first
    in each.
    """
    free = torch.iinfo(chosen.class_ids.dtype).max
    order = chosen.class_ids.masked_fill(~chosen.box_mask, free).sort(dim=1, stable=True).indices
    return dataclasses.replace(
        chosen,
        ids=chosen.ids.gather(1, order),
        boxes=gather_boxes(chosen.boxes, order),
        class_ids=chosen.class_ids.gather(1, order),
        class_scores=chosen.class_scores.gather(1, order),
        box_mask=chosen.box_mask.gather(1, order),
    )


def select_by_threshold(
    enough: Bool[Tensor, "N T"],
    survivors: Int64[Tensor, "N T M"],
    values: Float[Tensor, "N T M"],
    spec: DetectorConfig,
) -> tuple[Int64[Tensor, "N M"], Float[Tensor, "N M"], Float[Tensor, " N"]]:
    """Returns the survivors of the first threshold that leaves enough, else of the last; and the
    threshold.
    """
    last = torch.ones_like(enough[:, :1])
    first = torch.cat((enough[:, :-1], last), dim=1).int().argmax(dim=1)
    index = first[:, None, None].expand(-1, 1, survivors.shape[2])
    threshold = constants(spec.class_nms_thresholds, values)[first]
    return survivors.gather(1, index)[:, 0], values.gather(1, index)[:, 0], threshold


def within_bounds(
    scores: Float[Tensor, "N M"], above: Int64[Tensor, "N 1"], rule: Selection
) -> Bool[Tensor, "N M"]:
    """Returns which of the best are selected: those ``above`` the threshold, within the rule's
    limits.
    """
    positions = torch.arange(scores.shape[1], device=scores.device)
    return (positions < above.clamp(rule.min_boxes, rule.max_boxes)) & (scores > -torch.inf)


def in_images(chosen: SelectedRegions, spec: DetectorConfig, frames: Frames) -> SelectedRegions:
    """Converts to the images' own pixels; if configured, clips boxes and drops those
    without area.
    """
    boxes, box_mask = frames.to_images(chosen.boxes), chosen.box_mask
    if spec.clips_written:
        boxes = clip_boxes(boxes, frames.image_limits[:, None])
        extent = (boxes[..., 2:] - boxes[..., :2] + spec.box_offset > 0).all(dim=2)
        box_mask = box_mask & extent
    return dataclasses.replace(chosen, boxes=boxes, box_mask=box_mask, network_boxes=chosen.boxes)


def candidate_boxes(
    detections: Detections, spec: DetectorConfig, frames: Frames
) -> Float[Tensor, "N P B 4"]:
    """Returns the boxes that the family writes, one per class or one for all, in the network's
    pixels.
    """
    if spec.written_boxes == "proposals":
        return detections.boxes[:, :, None]
    assert detections.box_deltas is not None
    return refine_boxes(detections.boxes, detections.box_deltas, frames.network_limits, spec)


def select_class_boxes(
    boxes: Float[Tensor, "N P B 4"], classes: Int64[Tensor, "N P"], spec: DetectorConfig
) -> Float[Tensor, "N P 4"]:
    """Returns each region's box of its class (without background)."""
    if boxes.shape[2] == 1:
        return boxes[:, :, 0]
    columns = classes + (spec.background == "first")
    return boxes.gather(2, columns[..., None, None].expand(-1, -1, 1, 4))[:, :, 0]


def gather_boxes(
    boxes: Float[Tensor, "N R 4"], indices: Int64[Tensor, "N M"]
) -> Float[Tensor, "N M 4"]:
    """Returns each image's boxes at its own slots."""
    return boxes.gather(1, indices[..., None].expand(-1, -1, 4))


RULES: dict[Rule, Callable[[Detections, DetectorConfig, Frames, Selection], SelectedRegions]] = {
    "class-confidence": by_class_confidence,
    "kept-class": by_kept_class,
    "kept-confidence": by_kept_confidence,
    "best-class": by_best_class,
    "class-pairs": by_class_pairs,
}
