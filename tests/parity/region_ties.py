"""Which regions a selection keeps, where that hangs on near ties.

A decision is judged by recorded numbers: where ours fell the other way and those are as near as
their tolerances, ours are looked up for the regions that the reference kept.
"""

import dataclasses
from dataclasses import dataclass

import torch
from tests.parity.suppression import Suppression, above, flags, order_margins
from torch import Tensor

from vlmill.extract.config import Selection
from vlmill.extract.detect.selection import (
    Frames,
    SelectedRegions,
    by_best_class,
    by_class_confidence,
    by_class_pairs,
    candidate_boxes,
    in_images,
)
from vlmill.models.detector.config import DetectorConfig
from vlmill.models.detector.faster_rcnn import Detections, foreground_classes
from vlmill.models.detector.nms import nms_every_class

Margins = list[float] | None  # of near ties that fell the other way; None: not by near ties

RULES = {
    "class-confidence": by_class_confidence,
    "best-class": by_best_class,
    "class-pairs": by_class_pairs,
}


@dataclass(frozen=True)
class Regions:
    """The regions of one image, as recordings have them."""

    ids: Tensor
    boxes: Tensor
    class_ids: Tensor
    class_scores: Tensor
    nms_threshold: Tensor

    def same(self, other: "Regions") -> bool:
        """Whether both are the same regions, in one order."""
        return torch.equal(self.ids, other.ids) and torch.equal(self.class_ids, other.class_ids)

    def in_image(self, choice: "Choice", *, drop: bool = False) -> "Regions":
        """In the image's own pixels; without those of which nothing is left, where asked."""
        batch = SelectedRegions(
            ids=self.ids[None],
            boxes=self.boxes[None],
            class_ids=self.class_ids[None],
            class_scores=self.class_scores[None],
            box_mask=torch.ones(1, len(self.ids), dtype=torch.bool),
            nms_threshold=self.nms_threshold[None],
        )
        moved = in_images(batch, choice.spec, choice.frames)
        return taken_of(moved if drop else dataclasses.replace(moved, box_mask=batch.box_mask))


def taken_of(chosen: SelectedRegions) -> Regions:
    """The regions of a batch's only image, without free places."""
    taken = chosen.box_mask[0]
    return Regions(
        ids=chosen.ids[0, taken],
        boxes=chosen.boxes[0, taken],
        class_ids=chosen.class_ids[0, taken],
        class_scores=chosen.class_scores[0, taken],
        nms_threshold=chosen.nms_threshold[0],
    )


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One selection of regions, and how far what decides it may be off.

    Of rules that take a region once, the threshold is 0; of those that take it for every class,
    the least number of boxes.
    """

    spec: DetectorConfig
    frames: Frames
    rule: Selection
    box_bound: float  # pixels of the boxes that suppress each other
    score_bound: float  # of class probabilities

    def choose(self, detections: Detections, threshold: float | None = None) -> Regions:
        """What the rule chooses; at one overlap of several."""
        spec = self.spec
        if threshold is not None:
            spec = dataclasses.replace(spec, class_nms_thresholds=(threshold,))
        return taken_of(RULES[spec.selection](detections, spec, self.frames, self.rule))

    def probs(self, detections: Detections) -> Tensor:
        """The classes' probabilities [R, K], without background's."""
        return foreground_classes(detections.class_probs, self.spec)[0]

    def boxes(self, detections: Detections) -> Tensor:
        """The boxes [R, B, 4] that suppress each other, one a class or one for all."""
        if self.spec.selection == "class-confidence":
            return self.frames.to_images(detections.boxes)[0, :, None]
        boxes = candidate_boxes(detections, self.spec, self.frames)[0]
        first = self.spec.background == "first" and boxes.shape[1] > 1
        return boxes[:, 1:] if first else boxes

    def boxes_of(self, detections: Detections, ids: Tensor, classes: Tensor) -> Tensor:
        """The boxes [N, 4] of regions as these classes."""
        boxes = self.boxes(detections)
        return boxes[ids, classes if boxes.shape[1] > 1 else torch.zeros_like(classes)]

    def at(
        self,
        detections: Detections,
        ids: Tensor,
        classes: Tensor,
        threshold: Tensor | None = None,
    ) -> Regions:
        """The numbers that these detections have for regions [N] as these classes."""
        return Regions(
            ids=ids,
            boxes=self.boxes_of(detections, ids, classes),
            class_ids=classes,
            class_scores=self.probs(detections)[ids, classes],
            nms_threshold=torch.tensor(torch.nan) if threshold is None else threshold,
        )

    def suppression(self, boxes: Tensor, scores: Tensor, threshold: float) -> Suppression:
        """Candidates that suppress each other."""
        bounds = torch.full(scores.shape, self.score_bound, dtype=torch.float64)
        pairs = self.spec.selection == "class-pairs"
        return Suppression(
            boxes=boxes,
            scores=scores,
            box_bounds=torch.full(boxes.shape, self.box_bound, dtype=torch.float64),
            score_bounds=bounds,
            gates=[above(scores, self.rule.threshold, bounds)] if pairs else [],
            threshold=threshold,
            offset=self.spec.box_offset,
            inclusive=self.spec.nms_inclusive,
        )

    def margins(self, ours: Detections, recorded: Detections) -> Margins:
        """The margins of the decisions that our numbers turn, by recorded numbers."""
        margins: list[float] = []
        last = float(self.choose(recorded).nms_threshold)
        for threshold in self.spec.class_nms_thresholds:
            # With several overlaps, the number of regions at each decides on the next.
            mine, theirs = (self.choose(one, threshold) for one in (ours, recorded))
            if not mine.same(theirs):
                more = self.margins_at(threshold, mine, ours, recorded)
                if more is None:
                    return None
                margins += more
            if threshold >= last:
                break
        return margins

    def margins_at(
        self, threshold: float, mine: Regions, ours: Detections, recorded: Detections
    ) -> Margins:
        """The same at one overlap, at which our numbers choose ``mine``."""
        if self.spec.selection == "class-pairs":
            return self.pairs(threshold, mine, recorded)
        classes = self.probs(ours).argmax(dim=1)
        other_classes = self.class_margins(classes, recorded)
        if self.spec.selection == "best-class":
            decided = self.best(threshold, mine, classes, recorded)
        else:
            decided = self.confident(threshold, mine, ours, recorded)
        return None if other_classes is None or decided is None else other_classes + decided

    def class_margins(self, classes: Tensor, recorded: Detections) -> Margins:
        """The margins of the regions that have another likeliest class."""
        probs = self.probs(recorded)
        behind = probs.amax(dim=1) - probs.gather(1, classes[:, None])[:, 0]
        turned = classes != probs.argmax(dim=1)
        return None if (behind[turned] > self.score_bound).any() else behind[turned].tolist()

    def pairs(self, threshold: float, chosen: Regions, recorded: Detections) -> Margins:
        """Of pairs of region and class, suppressed within their class, cut all together."""
        probs, boxes = self.probs(recorded), self.boxes(recorded)
        scores = probs[chosen.ids, chosen.class_ids]
        if len(scores) > self.rule.max_boxes:
            return None
        full = len(scores) == self.rule.max_boxes
        floor = float(scores.min()) if full and len(scores) else -torch.inf
        margins = order_margins(scores, torch.full(scores.shape, self.score_bound))
        for number, column in enumerate(probs.unbind(dim=1)):
            own = boxes[:, number if boxes.shape[1] > 1 else 0]
            kept = flags(chosen.ids[chosen.class_ids == number], column)
            decided = self.suppression(own, column, threshold).margins(kept, floor)
            if margins is None or decided is None:
                return None
            margins += decided
        return margins

    def best(
        self, threshold: float, chosen: Regions, classes: Tensor, recorded: Detections
    ) -> Margins:
        """Of regions as their class in ``classes`` [R], all suppressing each other."""
        everyone = torch.arange(len(classes))
        scores = self.probs(recorded)[everyone, classes]
        kept = scores[chosen.ids]
        if len(kept) > self.rule.max_boxes:
            return None
        full = len(kept) == self.rule.max_boxes
        candidates = self.suppression(self.boxes_of(recorded, everyone, classes), scores, threshold)
        floor = float(kept.min()) if full and len(kept) else -torch.inf
        decided = candidates.margins(flags(chosen.ids, scores), floor)
        turned = order_margins(kept, torch.full(kept.shape, self.score_bound))
        return None if decided is None or turned is None else decided + turned

    def confident(
        self, threshold: float, chosen: Regions, ours: Detections, recorded: Detections
    ) -> Margins:
        """Of regions by the highest probability with which they survive in a class."""
        probs, boxes = self.probs(recorded), self.boxes(recorded)[:, 0]
        mine, theirs = (self.survivors(one, threshold) for one in (ours, recorded))
        confidence, before = (probs.masked_fill(~left, 0.0).amax(dim=1) for left in (mine, theirs))
        # Another survivor matters where it makes another confidence.
        moved = confidence != before
        margins = cut_margins(confidence, chosen.ids, self.rule, self.score_bound)
        if margins is not None and (chosen.ids.diff() < 0).any():  # best first, as a bound decided
            ordered = confidence[chosen.ids]
            turned = order_margins(ordered, torch.full(ordered.shape, self.score_bound))
            margins = None if turned is None else margins + turned
        for number in torch.nonzero((mine != theirs)[moved].any(dim=0))[:, 0].tolist():
            candidates = self.suppression(boxes, probs[:, number], threshold)
            decided = candidates.margins(mine[:, number])
            if margins is None or decided is None:
                return None
            margins += decided
        return margins

    def survivors(self, detections: Detections, threshold: float) -> Tensor:
        """Which regions survive in which class [R, K]."""
        return nms_every_class(
            self.boxes(detections)[:, 0],
            self.probs(detections),
            threshold,
            offset=self.spec.box_offset,
            inclusive=self.spec.nms_inclusive,
        )


def cut_margins(confidence: Tensor, ids: Tensor, rule: Selection, bound: float) -> Margins:
    """The margins of regions that the rule's threshold and bounds would not have kept, or would."""
    kept = flags(ids, confidence)
    order = confidence.sort(descending=True, stable=True).values.tolist()
    above_it = int((confidence >= rule.threshold).sum())
    count = min(max(above_it, rule.min_boxes), rule.max_boxes, len(order))
    wrong = sorted((count, len(ids)))
    margins = [abs(score - rule.threshold) for score in order[wrong[0] : wrong[1]]]
    if len(ids) and not kept.all():
        behind = float(confidence[~kept].max()) - confidence[kept]
        margins += behind[behind > 0].tolist()
    inside = min(rule.min_boxes, len(order)) <= len(ids) <= rule.max_boxes
    return margins if inside and all(margin <= bound for margin in margins) else None
