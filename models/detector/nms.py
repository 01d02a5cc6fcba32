"""Computes non-maximum suppression: the best survivors, or all survivors of all classes together.

N images, R boxes, K classes, T thresholds. ``offset`` and box layout as in
vlmill.models.detector.boxes. ``inclusive`` suppresses at an overlap equal to the threshold (the
original Caffe code on the CPU), otherwise only above it.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from vlmill.models.detector.boxes import constants, pairwise_iou
from vlmill.models.probes import can_compile


def has_kernels(tensor: Tensor) -> bool:
    """Returns whether the kernels accept a tensor: on a GPU, without gradients.

    A caller that gets True imports them. They need Triton, which PyTorch installs for GPUs.
    """
    on_gpu = tensor.device.type == "cuda" and not torch.is_grad_enabled()
    return on_gpu and can_compile("pooling and suppression")


WORD_BITS = 64


def exclusive_corners(boxes: Float[Tensor, "*R 4"], offset: float) -> Float[Tensor, "*R 4"]:
    """Returns boxes with the first pixel outside as the second corner."""
    return torch.cat((boxes[..., :2], boxes[..., 2:] + offset), dim=-1)


def float32_limit(threshold: float, inclusive: bool) -> float:
    """Returns the float32 limit above which a float32 overlap suppresses.

    Overlaps are compared in double with an exclusive threshold, as torchvision does, and in float32
    with an inclusive one.
    """
    nearest = np.float32(threshold)
    # Converted to double: numpy would compare as float32.
    below = inclusive or float(nearest) > threshold
    return float(np.nextafter(nearest, np.float32(-np.inf)) if below else nearest)


def first_survivors(
    boxes: Float[Tensor, "N R B 4"],
    scores: Float[Tensor, "N R K"],
    thresholds: Sequence[float],
    count: int,
    *,
    offset: float,
    inclusive: bool,
) -> tuple[Int64[Tensor, "N T {count}"], Float[Tensor, "N T {count}"]]:
    """Suppresses within each class and returns the best ``count`` survivors, at each threshold.

    Returns indices into R x K and their scores, highest first, equal scores in index order; -inf if
    no survivor remains. A score of -inf is not a candidate. B is K, or 1 if all classes share the
    boxes. No tensor size depends on values, so the host never waits for a GPU: survivors are taken
    one by one, for all images and thresholds together.
    """
    corners = exclusive_corners(boxes.transpose(1, 2), offset)
    areas = (corners[..., 2:] - corners[..., :2]).prod(dim=-1)
    overlap_limits = constants([float32_limit(t, inclusive) for t in thresholds], scores)
    if scores.shape[2] == 1 and has_kernels(scores):
        from vlmill.models.detector.gpu_kernels import best_survivors

        return best_survivors(scores[:, :, 0], corners[:, 0], areas[:, 0], overlap_limits, count)
    limits = overlap_limits[:, None]
    alive = scores.transpose(1, 2)[:, None].repeat(1, len(thresholds), 1, 1)
    if not count:
        empty = scores.new_zeros((len(scores), len(thresholds), 0))
        return empty.long(), empty
    if scores.shape[2] == 1:
        return single_class_survivors(alive[:, :, 0], corners[:, 0], areas[:, 0], limits, count)
    return survivors_of_classes(alive, corners, areas, limits, count)


def single_class_survivors(
    alive: Float[Tensor, "N T R"],
    corners: Float[Tensor, "N R 4"],
    areas: Float[Tensor, "N R"],
    limits: Float[Tensor, "T 1"],
    count: int,
) -> tuple[Int64[Tensor, "N T {count}"], Float[Tensor, "N T {count}"]]:
    """Takes the best box ``count`` times; ``alive`` is overwritten with -inf for it and its
    overlaps.
    """
    corners = corners[:, None].expand(*alive.shape, 4)
    areas = areas[:, None].expand(alive.shape)
    rows, values = [], []
    for _ in range(count):
        value, row = alive.max(dim=2)
        alive.masked_fill_(find_overlaps(corners, areas, row, limits), -torch.inf)
        # Its overlap with itself may be 0 / 0.
        alive.scatter_(2, row[..., None], -torch.inf)
        rows.append(row)
        values.append(value)
    return torch.stack(rows, dim=2), torch.stack(values, dim=2)


def survivors_of_classes(
    alive: Float[Tensor, "N T K R"],
    corners: Float[Tensor, "N B R 4"],
    areas: Float[Tensor, "N B R"],
    limits: Float[Tensor, "T 1"],
    count: int,
) -> tuple[Int64[Tensor, "N T {count}"], Float[Tensor, "N T {count}"]]:
    """Takes the best box ``count`` times; a box suppresses only boxes of its class.

    The best box of each class is stored, so a step reads K + R scores instead of K x R.
    """
    images, steps, classes, num_rows = alive.shape
    best, best_row = alive.max(dim=3)
    numbers = torch.arange(classes, device=alive.device)
    after_all = classes * num_rows
    first_class = torch.arange(images, device=alive.device)[:, None] * corners.shape[1]
    own_boxes = corners.shape[1] > 1
    flat_corners, flat_areas = corners.flatten(0, 1), areas.flatten(0, 1)
    indices, values = [], []
    for _ in range(count):
        value = best.amax(dim=2)
        candidates = best_row * classes + numbers
        index = candidates.masked_fill(best != value[..., None], after_all).amin(dim=2)
        row, class_index = index // classes, index % classes
        layer = first_class + class_index if own_boxes else first_class.expand(-1, steps)
        dead = find_overlaps(flat_corners[layer], flat_areas[layer], row, limits)
        column = class_index[..., None, None].expand(-1, -1, 1, num_rows)
        left = alive.gather(2, column)[:, :, 0].masked_fill_(dead, -torch.inf)
        left.scatter_(2, row[..., None], -torch.inf)
        alive.scatter_(2, column, left[:, :, None])
        next_best, next_row = left.max(dim=2, keepdim=True)
        best.scatter_(2, class_index[..., None], next_best)
        best_row.scatter_(2, class_index[..., None], next_row)
        indices.append(index)
        values.append(value)
    return torch.stack(indices, dim=2), torch.stack(values, dim=2)


def find_overlaps(
    corners: Float[Tensor, "N T R 4"],
    areas: Float[Tensor, "N T R"],
    row: Int64[Tensor, "N T"],
    limits: Float[Tensor, "T 1"],
) -> Bool[Tensor, "N T R"]:
    """Returns which boxes overlap the box of ``row`` by more than the limit. It uses as few
    operators as possible, because launching them takes most of the time on a GPU.
    """
    row_corners = corners.gather(2, row[..., None, None].expand(*row.shape, 1, 4))
    high = torch.minimum(row_corners[..., 2:], corners[..., 2:])
    sides = high.sub_(torch.maximum(row_corners[..., :2], corners[..., :2])).clamp_(min=0.0)
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
    """Returns which boxes survive in which class, if all classes share the boxes; in one image or
    N.

    The overlaps are the same for every class. Each box gets one row of bits (the boxes it
    suppresses), and all classes of all images are processed in rank order together: R steps on (N
    K, R / 64) words instead of N K separate suppressions. On a GPU each suppression has its own
    program. Of equal scores the box with the lower index is first.
    """
    num_boxes, num_classes = scores.shape[-2:]
    if not num_boxes:
        return torch.zeros_like(scores, dtype=torch.bool)
    overlap = pairwise_iou(boxes, boxes, offset)
    limit = overlap.new_full((), threshold)
    suppresses_whom = overlap >= limit if inclusive else overlap > limit
    if has_kernels(scores):
        from vlmill.models.detector.gpu_kernels import survivors_in_lists

        lists = scores.reshape(-1, num_boxes, num_classes).transpose(1, 2)
        survivors = survivors_in_lists(lists, suppresses_whom.reshape(-1, num_boxes, num_boxes))
        return survivors.transpose(1, 2).reshape(scores.shape)
    suppresses = pack_bits(suppresses_whom.reshape(-1, num_boxes))
    by_rank = scores.reshape(-1, num_boxes, num_classes).transpose(0, 1)
    order = by_rank.sort(dim=0, descending=True, stable=True).indices
    images = torch.arange(order.shape[1], device=order.device)[:, None]
    row = (order + images * num_boxes).reshape(num_boxes, -1)
    words = (order // WORD_BITS).reshape(num_boxes, -1)
    bits = (torch.ones_like(order) << (order % WORD_BITS)).reshape(num_boxes, -1)
    dead = suppresses.new_zeros((row.shape[1], suppresses.shape[1]))
    dead_by_rank = torch.empty_like(row, dtype=torch.bool)
    for rank in range(num_boxes):
        word = dead.gather(1, words[rank, :, None])[:, 0]
        gone = torch.ne(word & bits[rank], 0, out=dead_by_rank[rank])
        # A suppressed box does not suppress others.
        dead |= suppresses[row[rank]].masked_fill_(gone[:, None], 0)
    survives = torch.empty_like(order, dtype=torch.bool)
    survives.scatter_(0, order, ~dead_by_rank.view_as(order))
    return survives.transpose(0, 1).reshape(scores.shape)


def pack_bits(flags: Bool[Tensor, "R S"]) -> Int64[Tensor, "R W"]:
    """Packs rows of flags as 64-bit words, lowest bit first; the last word is filled with zeros."""
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
    """Returns the highest probability with which a box survives in any class; 0 if it never
    survives.

    Bottom-up attention selects its regions by this score (Anderson et al. 2018, released code).
    """
    survives = nms_every_class(boxes, foreground, threshold, offset=offset, inclusive=inclusive)
    if not survives.shape[-2]:
        return foreground.new_zeros(foreground.shape[:-1])
    return foreground.masked_fill(~survives, 0.0).amax(dim=-1)
