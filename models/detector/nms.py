"""Non-maximum suppression, in one order of the boxes or in every class's order at once.

R boxes, K classes; N kept boxes, or N pictures.  ``offset`` and box layout as in
vlmill.models.detector.boxes. ``inclusive`` suppresses at an overlap equal to the threshold (the
original Caffe code on the CPU), otherwise only above it.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torchvision.ops import batched_nms
from torchvision.ops import nms as torchvision_nms

from vlmill.models.detector.boxes import constants, pairwise_iou

WORD_BITS = 64


def nms(
    boxes: Float[Tensor, "R 4"],
    scores: Float[Tensor, " R"],
    threshold: float,
    *,
    offset: float,
    inclusive: bool,
) -> Int64[Tensor, " N"]:
    """Indices of the boxes that survive, highest score first.

    torchvision's operator measures widths without an offset and suppresses strictly above the
    threshold: the far corners carry the offset instead, and an inclusive threshold is the next
    float32 below.
    """
    corners = exclusive_corners(boxes, offset)
    kept: Tensor = torchvision_nms(corners, scores, strict_threshold(threshold, inclusive))
    return kept


def nms_by_class(
    boxes: Float[Tensor, "R 4"],
    scores: Float[Tensor, " R"],
    classes: Int64[Tensor, " R"],
    threshold: float,
    *,
    offset: float,
    inclusive: bool,
) -> Int64[Tensor, " N"]:
    """The same where boxes of different classes do not suppress each other."""
    corners = exclusive_corners(boxes, offset)
    kept: Tensor = batched_nms(corners, scores, classes, strict_threshold(threshold, inclusive))
    return kept


def exclusive_corners(boxes: Float[Tensor, "*R 4"], offset: float) -> Float[Tensor, "*R 4"]:
    """Boxes whose second corner is the first pixel outside."""
    return torch.cat((boxes[..., :2], boxes[..., 2:] + offset), dim=-1)


def strict_threshold(threshold: float, inclusive: bool) -> float:
    """The threshold above which float32 overlaps suppress."""
    if not inclusive:
        return threshold
    return float(np.nextafter(np.float32(threshold), np.float32(-np.inf)))


def float32_limit(threshold: float, inclusive: bool) -> float:
    """The same as a float32: torchvision compares in double, with the threshold as it is."""
    strict = strict_threshold(threshold, inclusive)
    nearest = np.float32(strict)
    above = float(nearest) > strict  # as doubles: numpy would compare as float32
    return float(np.nextafter(nearest, np.float32(-np.inf)) if above else nearest)


def first_survivors(
    boxes: Float[Tensor, "N R B 4"],
    scores: Float[Tensor, "N R K"],
    thresholds: Sequence[float],
    count: int,
    *,
    offset: float,
    inclusive: bool,
) -> tuple[Int64[Tensor, "N T {count}"], Float[Tensor, "N T {count}"]]:
    """The first ``count`` survivors of :func:`nms_by_class` in each picture, at each threshold.

    Gives places in R x K and their scores, highest first; -inf where no survivor is left. A score
    of -inf is no candidate. B is K, or 1 where all classes share the boxes. Nothing here has a size
    that depends on the numbers, so the host never waits for a GPU: survivors are taken one by one,
    for all pictures and thresholds at once.
    """
    pictures, rows, classes = scores.shape
    layers, crowd = boxes.shape[2], (pictures, len(thresholds), rows)
    corners = exclusive_corners(boxes.transpose(1, 2), offset).reshape(-1, rows, 4)
    areas = (corners[..., 2:] - corners[..., :2]).prod(dim=-1)
    limits = constants([float32_limit(t, inclusive) for t in thresholds], scores)[:, None]
    alive = scores.reshape(pictures, 1, -1).repeat(1, len(thresholds), 1)
    columns = alive.view(*crowd, classes)
    shared = corners[:, None].expand(-1, crowd[1], -1, -1), areas[:, None].expand(-1, crowd[1], -1)
    first_layer = (torch.arange(pictures, device=scores.device) * layers)[:, None]
    taken, values = [], []
    for _ in range(count):
        value, place = alive.max(dim=2)
        if classes == 1:
            alive.masked_fill_(overlapped(*shared, place, limits), -torch.inf)
        else:
            row, of_class = place // classes, place % classes
            others = shared
            if layers > 1:
                layer = (first_layer + of_class).reshape(-1)
                others = corners[layer].view(*crowd, 4), areas[layer].view(crowd)
            index = of_class[..., None, None].expand(*crowd, 1)
            dead = overlapped(*others, row, limits)
            left = columns.gather(3, index)[..., 0].masked_fill_(dead, -torch.inf)
            columns.scatter_(3, index, left[..., None])
        # Its overlap with itself may be 0 / 0.
        alive.scatter_(2, place[..., None], -torch.inf)
        taken.append(place)
        values.append(value)
    if not taken:
        empty = scores.new_zeros((*crowd[:2], 0))
        return empty.long(), empty
    return torch.stack(taken, dim=2), torch.stack(values, dim=2)


def overlapped(
    corners: Float[Tensor, "N T R 4"],
    areas: Float[Tensor, "N T R"],
    row: Int64[Tensor, "N T"],
    limits: Float[Tensor, "T 1"],
) -> Bool[Tensor, "N T R"]:
    """Which boxes overlap that of ``row`` by more than the limit, in as few steps as can be: the
    time of a GPU goes into starting them.
    """
    own = corners.gather(2, row[..., None, None].expand(*row.shape, 1, 4))
    high = torch.minimum(own[..., 2:], corners[..., 2:])
    sides = high.sub_(torch.maximum(own[..., :2], corners[..., :2])).clamp_(min=0.0)
    inter = sides[..., 0] * sides[..., 1]
    union = areas.gather(2, row[..., None]) + areas - inter
    return inter / union > limits


def nms_every_class(
    boxes: Float[Tensor, "*N R 4"],
    scores: Float[Tensor, "*N R K"],
    threshold: float,
    *,
    offset: float,
    inclusive: bool,
) -> Bool[Tensor, "*N R K"]:
    """Which boxes survive in which class, when all classes share the boxes; in one picture or N.

    The overlaps are the same for every class, so each box gets one row of bits (whom it suppresses)
    and all classes of all pictures walk down their own order together: R steps on (N K, R / 64)
    words instead of N K separate suppressions. Equal scores: the box with the lower index goes
    first.
    """
    num_boxes, num_classes = scores.shape[-2:]
    if not num_boxes:
        return torch.zeros_like(scores, dtype=torch.bool)
    overlap = pairwise_iou(boxes, boxes, offset).reshape(-1, num_boxes)
    limit = overlap.new_full((), threshold)
    suppresses = pack_bits(overlap >= limit if inclusive else overlap > limit)
    by_rank = scores.reshape(-1, num_boxes, num_classes).transpose(0, 1)
    order = by_rank.sort(dim=0, descending=True, stable=True).indices
    pictures = torch.arange(order.shape[1], device=order.device)[:, None]
    row = (order + pictures * num_boxes).reshape(num_boxes, -1)
    words = (order // WORD_BITS).reshape(num_boxes, -1)
    bits = (torch.ones_like(order) << (order % WORD_BITS)).reshape(num_boxes, -1)
    dead = suppresses.new_zeros((row.shape[1], suppresses.shape[1]))
    dead_by_rank = torch.empty_like(row, dtype=torch.bool)
    # Six steps a rank: on a GPU the time goes into starting them.
    for rank in range(num_boxes):
        word = dead.gather(1, words[rank, :, None])[:, 0]
        gone = torch.ne(word & bits[rank], 0, out=dead_by_rank[rank])
        # A suppressed box suppresses nobody.
        dead |= suppresses[row[rank]].masked_fill_(gone[:, None], 0)
    kept = torch.empty_like(order, dtype=torch.bool)
    kept.scatter_(0, order, ~dead_by_rank.view_as(order))
    return kept.transpose(0, 1).reshape(scores.shape)


def pack_bits(flags: Bool[Tensor, "R S"]) -> Int64[Tensor, "R W"]:
    """Rows of flags as 64-bit words, lowest bit first; the last word is filled with zeros."""
    num_words = -(-flags.shape[1] // WORD_BITS)
    missing = num_words * WORD_BITS - flags.shape[1]
    padded = torch.nn.functional.pad(flags, (0, missing)).to(torch.int64)
    shifts = torch.arange(WORD_BITS, device=flags.device)
    grouped = padded.reshape(len(flags), num_words, WORD_BITS)
    # The sum of distinct powers of two is their union, the sign bit included (it wraps).
    return (grouped << shifts).sum(dim=-1)


def class_confidence(
    boxes: Float[Tensor, "*N R 4"],
    foreground: Float[Tensor, "*N R K"],
    threshold: float,
    *,
    offset: float,
    inclusive: bool,
) -> Float[Tensor, "*N R"]:
    """The highest probability with which a box survives in some class; 0 where it never does.

    This is the score by which bottom-up attention chooses its regions (Anderson et al. 2018,
    released code).
    """
    kept = nms_every_class(boxes, foreground, threshold, offset=offset, inclusive=inclusive)
    if not kept.shape[-2]:
        return foreground.new_zeros(foreground.shape[:-1])
    return foreground.masked_fill(~kept, 0.0).amax(dim=-1)
