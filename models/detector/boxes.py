"""Computes the box geometry of the detectors: anchors, box regression, overlaps.

R boxes, A anchors per cell, G x H grid cells, C classes.  Boxes are (x1, y1, x2, y2) in pixels of
the network's input.  ``offset`` is 1 where x2 and y2 are the last pixel inside (Caffe's convention,
used by the published bottom-up-attention weights) and 0 where they are the first outside
(Detectron2's).
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


def legacy_cell_anchors(
    scales: Sequence[float], ratios: Sequence[float], base: int = 16
) -> Float[Tensor, "A 4"]:
    """Returns the anchors of one cell as the original Caffe code computes them, in (ratio, scale)
    order.

    The base box (0, 0, base-1, base-1) is reshaped to each ratio (height / width) with rounded
    sides, then scaled around its centre; corners are inclusive.
    """
    centre = (base - 1) / 2
    anchors = []
    for ratio in ratios:
        width = np.round(np.sqrt(base * base / ratio))
        height = np.round(width * ratio)
        for scale in scales:
            half_w, half_h = (width * scale - 1) / 2, (height * scale - 1) / 2
            anchors.append((centre - half_w, centre - half_h, centre + half_w, centre + half_h))
    return torch.tensor(np.array(anchors, dtype=np.float32))


def centred_cell_anchors(sizes: Sequence[float], ratios: Sequence[float]) -> Float[Tensor, "A 4"]:
    """Returns Detectron2's anchors of one cell: exact sides around 0, in (size, ratio) order.

    An anchor of ``size`` covers size x size pixels at every ratio (height / width).
    """
    anchors = []
    for size in sizes:
        for ratio in ratios:
            width = math.sqrt(size**2 / ratio)
            height = ratio * width
            anchors.append((-width / 2, -height / 2, width / 2, height / 2))
    return torch.tensor(anchors)


def grid_anchors(
    cells: Float[Tensor, "A 4"], rows: int, columns: int, stride: int, shift: float = 0.0
) -> Float[Tensor, "GHA 4"]:
    """Returns the cell's anchors shifted to every cell of a feature map; order is row, column,
    anchor.

    The first cell's anchors are ``shift`` cells from where they are defined.
    """
    x = (torch.arange(columns, dtype=cells.dtype, device=cells.device) + shift) * stride
    y = (torch.arange(rows, dtype=cells.dtype, device=cells.device) + shift) * stride
    shift_y, shift_x = torch.meshgrid(y, x, indexing="ij")
    shifts = torch.stack((shift_x, shift_y, shift_x, shift_y), dim=-1).reshape(-1, 1, 4)
    return (shifts + cells).reshape(-1, 4)


def decode_boxes(
    boxes: Float[Tensor, "R 4"],
    deltas: Float[Tensor, "R C4"],
    *,
    weights: tuple[float, float, float, float],
    offset: float,
    max_log_scale: float | None,
) -> Float[Tensor, "R C4"]:
    """Applies regressions (dx, dy, dw, dh), one or several per box (Girshick et al. 2014).

    ``weights`` divide the four deltas; ``max_log_scale`` bounds dw and dh from above (None: no
    bound, as in Caffe).
    """
    sizes = boxes[:, 2:] - boxes[:, :2] + offset
    centres = boxes[:, :2] + 0.5 * sizes
    shifts = deltas.reshape(len(boxes), deltas.shape[1] // 4, 4) / constants(weights, deltas)
    log_scales = shifts[..., 2:]
    if max_log_scale is not None:
        log_scales = log_scales.clamp(max=max_log_scale)
    new_centres = shifts[..., :2] * sizes[:, None] + centres[:, None]
    half_sizes = 0.5 * log_scales.exp() * sizes[:, None]
    decoded = torch.cat((new_centres - half_sizes, new_centres + half_sizes), dim=-1)
    return decoded.reshape(deltas.shape)


def clip_boxes(
    boxes: Float[Tensor, "... 4"], limits: Float[Tensor, "... 4"]
) -> Float[Tensor, "... 4"]:
    """Moves corners outside the picture onto its border.

    ``limits`` is the farthest corner twice (x, y, x, y): the last pixel where ``offset`` is 1.
    """
    return boxes.clamp(min=0.0).minimum(limits)


def constants(values: Sequence[float], like: Tensor) -> Float[Tensor, " n"]:
    """Returns numbers as a tensor on the device and of the type of ``like``.

    Written there one by one: a copy of a list would make the host wait for a GPU.
    """
    return torch.stack([like.new_full((), value) for value in values])


def pairwise_iou(
    first: Float[Tensor, "*N R 4"], second: Float[Tensor, "*N S 4"], offset: float
) -> Float[Tensor, "*N R S"]:
    """Returns the intersection over union of every pair, in each of N pictures."""
    low = torch.maximum(first[..., :, None, :2], second[..., None, :, :2])
    high = torch.minimum(first[..., :, None, 2:], second[..., None, :, 2:])
    inter = (high - low + offset).clamp(min=0.0).prod(dim=-1)
    area_first = (first[..., 2:] - first[..., :2] + offset).prod(dim=-1)
    area_second = (second[..., 2:] - second[..., :2] + offset).prod(dim=-1)
    return inter / (area_first[..., :, None] + area_second[..., None, :] - inter)
