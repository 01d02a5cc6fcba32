"""Computes pooling of regions, and suppression, by GPU kernels (Triton), each in one launch.

As tensor operators, suppression starts some thousand kernels a batch, and the GPU waits for the
host that starts them. Pooling by torchvision's kernel reads and writes float32 in another layout
than convolutions use. The results are numerically identical: divisions are rounded to nearest, and
products are not fused with sums.

N images, R boxes or regions, T thresholds, K classes, P x P bins, C channels, G x V cells.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int64
from torch import Tensor

CHANNELS = 1024  # at most, in one program of pooling
# Warps of the suppression programs: for a list of thousands of boxes, and for one of hundreds.
WARPS_OF_MANY, WARPS_OF_FEW, FEW = 32, 1, 1024


def pooled_regions(
    maps: Float[Tensor, "N C G V"], rois: Float[Tensor, "R 5"], size: int, scale: float
) -> Float[Tensor, "R C {size} {size}"]:
    """Returns the maximum of each bin's cells, channels last and in the dtype of ``maps``.

    The windows are the same as in torchvision's ``roi_pool``; a window without cells has 0. Each
    row of ``rois`` has the image's number, then the box; the box times ``scale`` is in cells.
    """
    cells = maps.permute(0, 2, 3, 1).contiguous()
    _, rows, columns, channels = cells.shape
    pooled = cells.new_empty((len(rois), size, size, channels))
    block = min(CHANNELS, triton.next_power_of_2(channels))
    grid = (len(rois) * size * size, triton.cdiv(channels, block))
    if len(rois):
        _pool[grid](
            cells,
            rois.contiguous(),
            pooled,
            scale,
            rows,
            columns,
            channels,
            SIZE=size,
            BLOCK=block,
            num_warps=4,
            enable_fp_fusion=False,
        )
    return pooled.permute(0, 3, 1, 2)


def best_survivors(
    scores: Float[Tensor, "N R"],
    corners: Float[Tensor, "N R 4"],
    areas: Float[Tensor, "N R"],
    limits: Float[Tensor, " T"],
    count: int,
) -> tuple[Int64[Tensor, "N T {count}"], Float[Tensor, "N T {count}"]]:
    """Takes the best box ``count`` times; each time it removes the boxes that overlap it by more
    than the limit. Equal scores are taken in index order.
    """
    images, boxes = scores.shape
    indices = torch.empty((images, len(limits), count), dtype=torch.int64, device=scores.device)
    values = scores.new_empty(indices.shape)
    block = triton.next_power_of_2(boxes)
    if indices.numel():
        _take_best[(images * len(limits),)](
            scores.contiguous(),
            corners.contiguous(),
            areas.contiguous(),
            limits.contiguous(),
            indices,
            values,
            len(limits),
            boxes,
            count,
            BLOCK=block,
            num_warps=WARPS_OF_FEW if block <= FEW else WARPS_OF_MANY,
            enable_fp_fusion=False,
        )
    return indices, values


def survivors_in_lists(
    scores: Float[Tensor, "N K R"], suppresses: Bool[Tensor, "N R R"]
) -> Bool[Tensor, "N K R"]:
    """Returns which boxes survive in each class; ``suppresses`` has a row of suppressed boxes per
    box.

    A score of -inf is not a candidate, and does not survive.
    """
    images, classes, boxes = scores.shape
    survives = torch.empty(scores.shape, dtype=torch.bool, device=scores.device)
    if survives.numel():
        _walk_down[(images * classes,)](
            scores.contiguous(),
            suppresses.contiguous().view(torch.uint8),
            survives.view(torch.uint8),
            classes,
            boxes,
            BLOCK=triton.next_power_of_2(boxes),
            num_warps=WARPS_OF_FEW,
        )
    return survives


# Triton reads the kernels' source, so their types are not checked.


@triton.jit
@no_type_check
def _half_away(value):
    truncated = tl.where(value >= 0, tl.floor(value), tl.ceil(value))
    away = tl.where(value >= 0, 1.0, -1.0)
    return tl.where(tl.abs(value - truncated) >= 0.5, truncated + away, truncated)


@triton.jit
@no_type_check
def _window(low, high, number, cells, SIZE: tl.constexpr):
    """Returns the first cell and the end (exclusive) of bin ``number`` along an axis."""
    step = tl.div_rn(tl.maximum(high - low + 1.0, 1.0), tl.full((), SIZE, tl.float32))
    first = tl.floor(number.to(tl.float32) * step) + low
    end = tl.ceil((number + 1).to(tl.float32) * step) + low
    limit = cells * 1.0
    first = tl.minimum(tl.maximum(first, 0.0), limit).to(tl.int32)
    end = tl.minimum(tl.maximum(end, 0.0), limit).to(tl.int32)
    return first, end


@triton.jit
@no_type_check
def _pool(
    cells, rois, pooled, scale, rows, columns, channels, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    """Pools one bin of one region per program."""
    region = tl.program_id(0) // (SIZE * SIZE)
    within_region = tl.program_id(0) % (SIZE * SIZE)
    roi = rois + region * 5
    image = tl.load(roi).to(tl.int64)
    left, top = _half_away(tl.load(roi + 1) * scale), _half_away(tl.load(roi + 2) * scale)
    right, bottom = _half_away(tl.load(roi + 3) * scale), _half_away(tl.load(roi + 4) * scale)
    first_row, end_row = _window(top, bottom, within_region // SIZE, rows, SIZE)
    first_column, end_column = _window(left, right, within_region % SIZE, columns, SIZE)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = channel < channels
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    for row in range(first_row, end_row):
        for column in range(first_column, end_column):
            offset = ((image * rows + row) * columns + column) * channels
            value = tl.load(cells + offset + channel, mask=exists, other=float("-inf"))
            best = tl.maximum(best, value.to(tl.float32))
    if (end_row <= first_row) | (end_column <= first_column):
        best = tl.zeros((BLOCK,), tl.float32)
    to = pooled + tl.program_id(0).to(tl.int64) * channels
    tl.store(to + channel, best.to(pooled.dtype.element_ty), mask=exists)


@triton.jit
@no_type_check
def _take_best(
    scores, corners, areas, limits, indices, values, thresholds, boxes, count, BLOCK: tl.constexpr
):
    """Suppresses the boxes of one image at one threshold per program."""
    number = tl.program_id(0).to(tl.int64)
    limit = tl.load(limits + number % thresholds)
    first = number // thresholds * boxes
    index = tl.arange(0, BLOCK)
    exists = index < boxes
    alive = tl.load(scores + first + index, mask=exists, other=float("-inf"))
    corner = corners + (first + index) * 4
    left = tl.load(corner, mask=exists, other=0.0)
    top = tl.load(corner + 1, mask=exists, other=0.0)
    right = tl.load(corner + 2, mask=exists, other=0.0)
    bottom = tl.load(corner + 3, mask=exists, other=0.0)
    area = tl.load(areas + first + index, mask=exists, other=0.0)
    for step in range(count):
        value, best = tl.max(alive, axis=0, return_indices=True)
        tl.store(indices + number * count + step, best.to(tl.int64))
        tl.store(values + number * count + step, value)
        best_corner = corners + (first + best) * 4
        width = tl.minimum(right, tl.load(best_corner + 2)) - tl.maximum(left, tl.load(best_corner))
        height = tl.minimum(bottom, tl.load(best_corner + 3)) - tl.maximum(
            top, tl.load(best_corner + 1)
        )
        inter = tl.maximum(width, 0.0) * tl.maximum(height, 0.0)
        union = tl.load(areas + first + best) + area - inter
        # Its overlap with itself may be 0 / 0.
        dead = (tl.div_rn(inter, union) > limit) | (index == best)
        alive = tl.where(dead, float("-inf"), alive)


@triton.jit
@no_type_check
def _walk_down(scores, suppresses, survives, classes, boxes, BLOCK: tl.constexpr):
    """Suppresses the boxes of one image in one class per program."""
    number = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BLOCK)
    exists = index < boxes
    alive = tl.load(scores + number * boxes + index, mask=exists, other=float("-inf"))
    first = number // classes * boxes
    survivor = tl.zeros((BLOCK,), tl.int32)
    value, best = tl.max(alive, axis=0, return_indices=True)
    while value > float("-inf"):
        suppressed = tl.load(suppresses + (first + best) * boxes + index, mask=exists, other=0)
        survivor = tl.where(index == best, 1, survivor)
        alive = tl.where((suppressed != 0) | (index == best), float("-inf"), alive)
        value, best = tl.max(alive, axis=0, return_indices=True)
    tl.store(survives + number * boxes + index, survivor.to(tl.uint8), mask=exists)
