"""Computes anchors, the boxes that proposals are regressed from, the same for every cell of a map.

A anchors per cell, G x H (or G x V) grid cells. Boxes are (x1, y1, x2, y2) in pixels of the
network's input.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from vlmill.models.detector.config import DetectorConfig


def legacy_cell_anchors(
    scales: Sequence[float], ratios: Sequence[float], base: int = 16
) -> Float[Tensor, "A 4"]:
    """Returns one cell's anchors as in the original Caffe code, in (ratio, scale) order.

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
    """Shifts one cell's anchors to every cell of a feature map; order is row, column, anchor.

    The anchors of the first cell are shifted by ``shift`` cells from ``cells``.
    """
    x = (torch.arange(columns, dtype=cells.dtype, device=cells.device) + shift) * stride
    y = (torch.arange(rows, dtype=cells.dtype, device=cells.device) + shift) * stride
    shift_y, shift_x = torch.meshgrid(y, x, indexing="ij")
    shifts = torch.stack((shift_x, shift_y, shift_x, shift_y), dim=-1).reshape(-1, 1, 4)
    return (shifts + cells).reshape(-1, 4)


def make_cell_anchors(config: DetectorConfig, number: int = 0) -> Float[Tensor, "A 4"]:
    """Returns the configured anchors of one cell of feature map ``number``."""
    num_maps, stride = len(config.strides), config.strides[number]
    if config.cell_anchors is not None:
        first = number * config.num_anchors
        return torch.tensor(config.cell_anchors[first : first + config.num_anchors])
    per_map = len(config.anchor_scales) // num_maps
    scales = config.anchor_scales[number * per_map : (number + 1) * per_map]
    if config.anchor_layout == "legacy":
        return legacy_cell_anchors(scales, config.anchor_ratios, stride)
    return centred_cell_anchors([scale * stride for scale in scales], config.anchor_ratios)


class AnchorGenerator(nn.Module):
    """Holds the cell anchors of each map as buffers, because published weights contain anchors."""

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        self.strides, self.shift = config.strides, config.anchor_offset
        self.cell_anchors = nn.Module()
        for number in range(len(config.strides)):
            self.cell_anchors.register_buffer(str(number), make_cell_anchors(config, number))

    def forward(self, rows: int, columns: int, number: int = 0) -> Float[Tensor, "GVA 4"]:
        """Returns the anchors of all cells of the feature map ``number``."""
        cells = self.cell_anchors.get_buffer(str(number))
        return grid_anchors(cells, rows, columns, self.strides[number], self.shift)
