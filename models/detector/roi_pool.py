"""Pools RoIs by maxima, computing each window once (Girshick 2015, the conventions of Caffe).

Neighbouring bins of one region and overlapping regions often cover the same cells of the feature
map: of the 58,800 bins of 300 regions about a quarter are different windows. A window's maximum
comes from a table of maxima over 2^i x 2^j cells, four of which cover any window.

R regions of P x P bins, U different windows, C channels, G x V cells of the feature map.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Holds the windows under the bins of regions, each once; ``index`` says which one a bin
    has.
    """

    bounds: Int64[Tensor, "U 4"]  # top, bottom, left, right: first cells inside and outside
    index: Int64[Tensor, "R P P"]


def pooling_windows(
    boxes: Float[Tensor, "R 4"], scale: float, size: int, rows: int, columns: int
) -> Windows:
    """Returns the windows that torchvision's ``roi_pool`` looks at, number for number.

    ``boxes`` times ``scale`` are cells of a map of ``rows`` x ``columns``; corners are inclusive.
    """
    corners = round_half_away(boxes * scale)
    first = corners[:, :2]
    step = (corners[:, 2:] - first + 1).clamp(min=1) / size
    bins = torch.arange(size, dtype=boxes.dtype, device=boxes.device)[:, None, None]
    limit = boxes.new_tensor([columns, rows])
    low = ((bins * step).floor() + first).clamp(min=0).minimum(limit).long()
    high = (((bins + 1) * step).ceil() + first).clamp(min=0).minimum(limit).long()
    left, top = low.unbind(dim=-1)  # each [P, R]
    right, bottom = high.unbind(dim=-1)
    vertical = (top * (rows + 1) + bottom).T[:, :, None]
    horizontal = (left * (columns + 1) + right).T[:, None, :]
    keys, index = torch.unique(
        vertical * (columns + 1) ** 2 + horizontal, return_inverse=True, sorted=True
    )
    parts = []
    for base in (columns + 1, columns + 1, rows + 1):
        parts.append(keys % base)
        keys = keys // base
    right_edges, left_edges, bottom_edges = parts
    return Windows(
        bounds=torch.stack((keys, bottom_edges, left_edges, right_edges), dim=1), index=index
    )


def round_half_away(values: Float[Tensor, "R 4"]) -> Float[Tensor, "R 4"]:
    """C's ``round``: halves go away from zero (torch rounds them to even)."""
    truncated = values.trunc()
    return truncated + torch.where((values - truncated).abs() >= 0.5, values.sign(), 0.0)


def window_maxima(
    cells: Float[Tensor, "G V C"], bounds: Int64[Tensor, "U 4"]
) -> Float[Tensor, "U C"]:
    """Returns the maximum over each window; 0 for a window without cells."""
    top, bottom, left, right = bounds.unbind(dim=1)
    full = (bottom > top) & (right > left)
    levels_y, levels_x = power_below(bottom - top), power_below(right - left)
    tables = MaximumTables(cells)
    maxima = cells.new_zeros((len(bounds), cells.shape[2]))
    for level_y, level_x in torch.unique(
        torch.stack((levels_y, levels_x), dim=1)[full], dim=0
    ).tolist():
        windows = (full & (levels_y == level_y) & (levels_x == level_x)).nonzero()[:, 0]
        table = tables.table(level_y, level_x)
        rows, columns = [top[windows]], [left[windows]]
        if level_y:  # a power of two covers the window from its top, and again from its bottom
            rows.append(bottom[windows] - 2**level_y)
        if level_x:
            columns.append(right[windows] - 2**level_x)
        flat = table.reshape(-1, table.shape[2])
        corners = [flat[y * table.shape[1] + x] for y in rows for x in columns]
        best = corners[0]
        for corner in corners[1:]:
            best = torch.maximum(best, corner, out=best)
        maxima[windows] = best
    return maxima


def power_below(lengths: Int64[Tensor, " U"]) -> Int64[Tensor, " U"]:
    """Returns the exponent of the largest power of two that is not above a length of at least 1."""
    return torch.frexp(lengths.double()).exponent.long() - 1


class MaximumTables:
    """Holds the maxima over 2^i x 2^j cells from every cell on, made when they are asked for.

    At most 16 for a map of up to 127 cells a side and 14 bins.
    """

    def __init__(self, cells: Float[Tensor, "G V C"]) -> None:
        self._tables = {(0, 0): cells}

    def table(self, i: int, j: int) -> Tensor:
        """Returns at row y, column x the maximum over cells y to y + 2^i - 1 and x to x + 2^j -
        1.
        """
        if (i, j) not in self._tables:
            if i:
                half, step = self.table(i - 1, j), 2 ** (i - 1)
                maxima = torch.maximum(half[:-step], half[step:])
            else:
                half, step = self.table(i, j - 1), 2 ** (j - 1)
                maxima = torch.maximum(half[:, :-step], half[:, step:])
            self._tables[i, j] = maxima
        return self._tables[i, j]
