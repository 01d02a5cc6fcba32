"""Computes the targets of anchors and proposals: matches and samples boxes by pure functions.

M true boxes, R anchors or proposals of one image, S of them sampled. Boxes are (x1, y1, x2, y2)
in pixels of the network's input; ``offset`` as in :mod:`vlmill.models.detector.boxes`.
Paper: Ren et al. 2015 (arXiv:1506.01497), secs. 3.1.2 and 3.1.3.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from vlmill.models.detector.boxes import pairwise_iou
from vlmill.train.detector.settings import Matching, RoiRules, RpnRules

# A permutation of N numbers, from 0.
Draw = Callable[[int], Int64[Tensor, " n"]]
IGNORED, NEGATIVE, POSITIVE = -1, 0, 1


@dataclass(frozen=True)
class Matches:
    """Holds for each of R anchors or proposals its true box and its label."""

    overlaps: Float[Tensor, " R"]  # with the best box; 0 without boxes
    boxes: Int64[Tensor, " R"]  # the first among equals; 0 without boxes
    labels: Int64[Tensor, " R"]  # POSITIVE, NEGATIVE or IGNORED


@dataclass(frozen=True)
class Sample:
    """Holds the indices of the examples of one image."""

    positives: Int64[Tensor, " P"]
    negatives: Int64[Tensor, " Q"]

    @property
    def indices(self) -> Int64[Tensor, " S"]:
        """Returns all indices, the positive ones first."""
        return torch.cat((self.positives, self.negatives))


@dataclass(frozen=True)
class Regions:
    """Holds the sampled proposals of one image, foreground first."""

    boxes: Float[Tensor, "S 4"]
    classes: Int64[Tensor, " S"]  # without background, from 0; ``background`` for no class
    sources: Int64[Tensor, " S"]  # which of the candidates: proposals, then true boxes
    matched: Int64[Tensor, " S"]  # the true box of each, also of background


def match(overlaps: Float[Tensor, "M R"], rule: Matching, *, best_of_each: bool = False) -> Matches:
    """Labels anchors or proposals by their overlap with the true boxes.

    With ``best_of_each`` every anchor that overlaps a box as much as any is positive: equality is
    exact, and a box that overlaps none promotes them all, so boxes without an area have to be
    removed before.
    """
    count = overlaps.shape[1]
    if not len(overlaps):
        nothing = torch.zeros(count, dtype=torch.int64, device=overlaps.device)
        return Matches(overlaps.new_zeros(count), nothing, nothing + rule.labels[0])
    best, boxes = overlaps.max(dim=0)
    labels = torch.full_like(boxes, POSITIVE)
    bounds = [-torch.inf, *rule.thresholds, torch.inf]
    for label, (low, high) in zip(rule.labels, pairwise(bounds), strict=True):
        labels[(best >= low) & (best < high)] = label
    if best_of_each and count:
        labels[(overlaps == overlaps.amax(dim=1, keepdim=True)).any(dim=0)] = POSITIVE
    return Matches(best, boxes, labels)


def sample(labels: Int64[Tensor, " R"], rule: Matching, draw: Draw) -> Sample:
    """Samples the examples of one image: positives up to their share, the rest negatives.

    The positives are the first of a permutation of the positive indices in rising order; so are the
    negatives.
    """
    candidate_sets = [(labels == label).nonzero().flatten() for label in (POSITIVE, NEGATIVE)]
    chosen, left = [], rule.batch
    for candidates, max_count in zip(
        candidate_sets, (rule.most_positives, rule.batch), strict=True
    ):
        order = draw(len(candidates)).to(candidates.device)
        chosen.append(candidates[order[: min(max_count, left)]])
        left -= len(chosen[-1])
    return Sample(*chosen)


def inside(
    anchors: Float[Tensor, "R 4"], size: tuple[int, int], border: float
) -> Bool[Tensor, " R"]:
    """Returns which anchors reach less than ``border`` pixels out of an image (height, width)."""
    height, width = size
    x1, y1, x2, y2 = anchors.unbind(dim=1)
    starts = (x1 >= -border) & (y1 >= -border)
    return starts & (x2 < width + border) & (y2 < height + border)


def match_anchors(
    anchors: Float[Tensor, "R 4"],
    boxes: Float[Tensor, "M 4"],
    size: tuple[int, int],
    rules: RpnRules,
    offset: float,
) -> Matches:
    """Labels the anchors of one image; ``size`` is its height and width."""
    overlaps = pairwise_iou(boxes, anchors, offset)
    if rules.border is None:
        return match(overlaps, rules.matching, best_of_each=True)
    allowed = inside(anchors, size, rules.border)
    if rules.inside_first:
        # Below any overlap, so that no box has its best one there.
        overlaps = overlaps.masked_fill(~allowed, -1.0)
    matches = match(overlaps, rules.matching, best_of_each=True)
    labels = matches.labels.masked_fill(~allowed, IGNORED)
    return Matches(matches.overlaps, matches.boxes, labels)


def mask_labels(matches: Matches, chosen: Sample) -> Int64[Tensor, " R"]:
    """Returns the labels of the examples alone, IGNORED elsewhere."""
    labels = torch.full_like(matches.labels, IGNORED)
    labels[chosen.negatives] = NEGATIVE
    labels[chosen.positives] = POSITIVE
    return labels


def candidates(
    proposals: Float[Tensor, "R 4"], boxes: Float[Tensor, "M 4"], rules: RoiRules
) -> Float[Tensor, "C 4"]:
    """Returns the possible examples: proposals, and the true boxes after them."""
    return torch.cat((proposals, boxes)) if rules.append_truth else proposals


def match_regions(
    proposals: Float[Tensor, "C 4"], boxes: Float[Tensor, "M 4"], rules: RoiRules, offset: float
) -> Matches:
    """Labels the candidates of one image; without boxes all of them are background."""
    matches = match(pairwise_iou(boxes, proposals, offset), rules.matching)
    if len(boxes):
        return matches
    return Matches(matches.overlaps, matches.boxes, torch.full_like(matches.labels, NEGATIVE))


def sample_regions(
    proposals: Float[Tensor, "C 4"],
    matches: Matches,
    classes: Int64[Tensor, " M"],
    rules: RoiRules,
    *,
    background: int,
    draw: Draw,
) -> Regions:
    """Samples the regions of one image that the heads are trained on."""
    chosen = sample(matches.labels, rules.matching, draw)
    indices = chosen.indices
    matched = matches.boxes[indices]
    region_classes = classes[matched] if len(classes) else torch.full_like(indices, background)
    region_classes[len(chosen.positives) :] = background
    return Regions(proposals[indices], region_classes, indices, matched)


def encode_boxes(
    boxes: Float[Tensor, "R 4"],
    targets: Float[Tensor, "R 4"],
    weights: Sequence[float],
    offset: float,
) -> Float[Tensor, "R 4"]:
    """Returns the deltas by which :func:`~vlmill.models.detector.boxes.decode_boxes` moves
    ``boxes`` to ``targets``.
    """
    sizes, new_sizes = (b[:, 2:] - b[:, :2] + offset for b in (boxes, targets))
    centres, new_centres = boxes[:, :2] + 0.5 * sizes, targets[:, :2] + 0.5 * new_sizes
    deltas = torch.cat(((new_centres - centres) / sizes, (new_sizes / sizes).log()), dim=1)
    return deltas * deltas.new_tensor(weights)


def attribute_targets(
    attributes: Int64[Tensor, "M A"], regions: Regions, *, background: int, shift: bool
) -> Int64[Tensor, "S A"]:
    """Returns the attribute outputs that each sampled region should have, -1 where there are fewer.

    With ``shift`` the first output is "no attribute", the target of a box without any (the
    original); otherwise such a box has no target, like background.
    """
    if not len(attributes) or not attributes.shape[1]:
        columns = max(attributes.shape[1], 1)
        targets = torch.full((len(regions.boxes), columns), -1, device=attributes.device)
    else:
        targets = attributes[regions.matched]
    if shift:
        targets = torch.where(targets >= 0, targets + 1, targets)
        empty = (targets < 0).all(dim=1)
        targets[empty, 0] = 0
    return targets.masked_fill((regions.classes == background)[:, None], -1)
