"""Computes stages of folded bottlenecks for inference: the same results in fewer passes.

On a CPU the convolutions of res5 that read pooled cells, both 1x1, are computed once per distinct
window (below), for regions pooled from one map: 13% less arithmetic at 300 regions. With dilation
2, res5 never mixes even and odd rows or columns of bins, so each region is four independent grids.
Of the grids of 300 regions 7 to 9% are equal (even and odd columns are, if a region is 7 cells
wide), and four distinct grids are computed as one region. Results equal those of the plain modules
within float32 rounding.

Regions are pooled by maxima, and each window is computed once (Girshick 2015, the conventions of
Caffe). Neighbouring bins of one region and overlapping regions often cover the same cells of the
feature map: of the 58,800 bins of 300 regions about a quarter are distinct windows. A window's
maximum comes from a table of maxima over 2^i x 2^j cells, four of which cover any window.

R regions of P x P bins, U distinct windows, S distinct grids of G x G bins, C and D channels. The
pooled feature map has G x V cells.
"""

import functools
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from vlmill.models.detector.folded import (
    FoldedBlock,
    conv_cells,
    conv_relu,
    finish,
    folded_conv,
    in_computed_type,
    plain_conv,
)
from vlmill.models.detector.resnet import Bottleneck, ConvNorm
from vlmill.models.probes import works


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Holds the distinct windows of the regions' bins; ``index`` is the window of each bin."""

    bounds: Int64[Tensor, "U 4"]  # top, bottom, left, right: first cells inside and outside
    index: Int64[Tensor, "R P P"]


def pooling_windows(
    boxes: Float[Tensor, "R 4"], scale: float, size: int, rows: int, columns: int
) -> Windows:
    """Returns the windows that torchvision's ``roi_pool`` reads, with identical bounds.

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
    """Rounds as C's ``round`` does: halves away from zero (torch rounds them to even)."""
    truncated = values.trunc()
    return truncated + torch.where((values - truncated).abs() >= 0.5, values.sign(), 0.0)


def window_maxima(
    cells: Float[Tensor, "G V C"], bounds: Int64[Tensor, "U 4"]
) -> Float[Tensor, "U C"]:
    """Returns the maximum over each window; 0 for a window without cells."""
    top, bottom, left, right = bounds.unbind(dim=1)
    full = (bottom > top) & (right > left)
    levels_y, levels_x = floor_log2(bottom - top), floor_log2(right - left)
    tables = MaximumTables(cells)
    maxima = cells.new_zeros((len(bounds), cells.shape[2]))
    for level_y, level_x in torch.unique(
        torch.stack((levels_y, levels_x), dim=1)[full], dim=0
    ).tolist():
        windows = (full & (levels_y == level_y) & (levels_x == level_x)).nonzero()[:, 0]
        table = tables.table(level_y, level_x)
        rows, columns = [top[windows]], [left[windows]]
        if level_y:  # two powers of two cover the window: one from its top, one to its bottom
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


def floor_log2(lengths: Int64[Tensor, " U"]) -> Int64[Tensor, " U"]:
    """Returns the exponent of the largest power of two up to a length, which is at least 1."""
    return torch.frexp(lengths.double()).exponent.long() - 1


class MaximumTables:
    """Holds the maxima over 2^i x 2^j cells starting at every cell, computed at first use.

    There are at most 16 tables for a map of up to 127 cells a side and 14 bins.
    """

    def __init__(self, cells: Float[Tensor, "G V C"]) -> None:
        self._tables = {(0, 0): cells}

    def table(self, i: int, j: int) -> Tensor:
        """Returns at (y, x) the maximum over cells y to y + 2^i - 1 and x to x + 2^j - 1."""
        if (i, j) not in self._tables:
            if i:
                half, step = self.table(i - 1, j), 2 ** (i - 1)
                maxima = torch.maximum(half[:-step], half[step:])
            else:
                half, step = self.table(i, j - 1), 2 ** (j - 1)
                maxima = torch.maximum(half[:, :-step], half[:, step:])
            self._tables[i, j] = maxima
        return self._tables[i, j]


# Limits for one round of regions: 16384 windows of 1024 + 512 + 2048 float32 are 235 MB.
MAX_WINDOWS = 16384


@functools.cache
def sees_moves() -> bool:
    """Returns whether PyTorch calls the private method ``_apply`` of a module whose weights move or
    change their dtype. Without it `FusedStage` caches no weights.
    """
    calls = []

    class Probe(nn.Module):
        def _apply(self, *arguments: Any, **options: Any) -> Any:
            calls.append(arguments)
            return super()._apply(*arguments, **options)  # type: ignore[no-untyped-call]

    def is_called() -> bool:
        nn.Sequential(Probe()).double()
        return bool(calls)

    return works(is_called)


class FusedStage(nn.Sequential):
    """Computes a stage of folded bottlenecks; the names of the weights stay the same."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__(*blocks)
        self._converted: dict[torch.dtype, list[FoldedBlock]] = {}

    def _apply(self, *arguments: Any, **options: Any) -> Any:
        self._converted.clear()  # the weights move, or change their dtype
        return super()._apply(*arguments, **options)  # type: ignore[no-untyped-call]

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D G V"]:
        x = in_computed_type(x)
        for number, block in enumerate(self.folded_blocks(x)):
            hidden = conv_relu(block.conv1, x)
            if block.shortcut is not None:
                shortcut = plain_conv(block.shortcut, x)
            else:  # the shortcut is overwritten, but the caller's tensor must not be
                shortcut = x if number else x.clone()
            x = finish(block, hidden, shortcut)
        return x

    def blocks(self) -> list[Bottleneck]:
        """Returns the bottlenecks in order."""
        return [cast(Bottleneck, block) for block in self]

    def folded_blocks(self, x: Tensor) -> list[FoldedBlock]:
        """Returns the blocks' weights in the dtype of the input ``x``; if the weights have another
        dtype, they are converted once and cached, until they move (`sees_moves`).
        """
        if torch.is_grad_enabled() or not sees_moves():
            return self._blocks_in(x.dtype)
        if x.dtype not in self._converted:
            self._converted[x.dtype] = self._blocks_in(x.dtype)
        return self._converted[x.dtype]

    def _blocks_in(self, dtype: torch.dtype) -> list[FoldedBlock]:
        return [
            FoldedBlock(
                conv1=folded_conv(block.conv1, dtype),
                conv2=folded_conv(block.conv2, dtype),
                conv3=folded_conv(block.conv3, dtype),
                shortcut=folded_conv(block.shortcut, dtype)
                if isinstance(block.shortcut, ConvNorm)
                else None,
            )
            for block in self.blocks()
        ]

    def shared_means(
        self, cells: Float[Tensor, "U C"], index: Int64[Tensor, "R P P"], chunk: int
    ) -> Float[Tensor, "R D"]:
        """Returns the mean of the stage's output over each region, ``chunk`` regions at a time.

        ``cells`` are the values of distinct windows, and ``index`` is the window of each bin.
        """
        dilation = self.get_dilation() if index.shape[1] % 2 == 0 else 1
        grids, grid_index = split_grids(index, dilation)
        cells = in_computed_type(cells)
        first, *later = self.folded_blocks(cells)
        assert first.shortcut is not None
        hidden_cells = conv_cells(first.conv1, cells).relu_()
        shortcut_cells = conv_cells(first.shortcut, cells)
        step, shortcut_step = first.conv1.stride[0], first.shortcut.stride[0]
        means = []
        for part in torch.split(interleave(grids, dilation), chunk):
            hidden = take(hidden_cells, part[:, ::step, ::step])
            x = finish(
                first, hidden, take(shortcut_cells, part[:, ::shortcut_step, ::shortcut_step])
            )
            for block in later:
                x = finish(block, conv_relu(block.conv1, x), x)
            means.append(grid_means(x, dilation))
        return torch.cat(means)[grid_index].mean(dim=1)

    def get_dilation(self) -> int:
        """Returns the number of independent grids along each axis of the stage's input: 2 or 1."""
        blocks = self.blocks()
        dilated = all(block.conv2.dilation == block.conv2.padding == (2, 2) for block in blocks)
        strides = {
            conv.stride
            for block in blocks
            for conv in block.modules()
            if isinstance(conv, ConvNorm)
        }
        return 2 if dilated and strides == {(1, 1)} else 1


def split_grids(
    index: Int64[Tensor, "R P P"], dilation: int
) -> tuple[Int64[Tensor, "S G G"], Int64[Tensor, "R A"]]:
    """Returns the distinct grids of every ``dilation``-th bin of an axis, and the grids of each
    region.
    """
    regions, size, _ = index.shape
    side = size // dilation
    grids = index.reshape(regions, side, dilation, side, dilation).permute(0, 2, 4, 1, 3)
    flat = grids.reshape(regions * dilation**2, side * side)
    different, which = torch.unique(flat, dim=0, return_inverse=True)
    return different.reshape(-1, side, side), which.reshape(regions, dilation**2)


def interleave(grids: Int64[Tensor, "S G G"], dilation: int) -> Int64[Tensor, "V P P"]:
    """Merges each ``dilation`` x ``dilation`` grids into the bins of one region; copies of the last
    grid pad it.
    """
    count, side, _ = grids.shape
    missing = -count % dilation**2
    padded = torch.cat((grids, grids[-1:].expand(missing, -1, -1)))
    quarters = padded.reshape(-1, dilation, dilation, side, side).permute(0, 3, 1, 4, 2)
    return quarters.reshape(-1, side * dilation, side * dilation)


def grid_means(x: Float[Tensor, "V D P P"], dilation: int) -> Float[Tensor, "S D"]:
    """Returns the mean of each grid, in the order of :func:`interleave`'s grids; at least float32.

    Means are taken row by row: one over both axes takes seven times as long, and twice that in
    bfloat16.
    """
    regions, channels, size, _ = x.shape
    side = size // dilation
    cells = x.permute(0, 2, 3, 1).reshape(regions, side, dilation, side, dilation, channels)
    sums = torch.zeros_like(cells[:, 0], dtype=torch.promote_types(x.dtype, torch.float32))
    for row in cells.unbind(dim=1):
        sums += row
    return (sums.sum(dim=2) / side**2).reshape(regions * dilation**2, channels)


def fuse_stages(model: nn.Module) -> None:
    """Replaces every stage of folded bottlenecks in place; other stages are not changed."""
    for name, stage in list(model.named_modules()):
        if type(stage) is nn.Sequential and all(is_folded(block) for block in stage):
            model.set_submodule(name, FusedStage(*stage))


def is_folded(block: nn.Module) -> bool:
    """Returns whether a bottleneck is plain with normalisations folded into its convolutions."""
    return (
        isinstance(block, Bottleneck)
        and not block.deformable
        and all(
            isinstance(conv.norm, nn.Identity)
            for conv in block.modules()
            if isinstance(conv, ConvNorm)
        )
    )


def take(cells: Float[Tensor, "U D"], index: Int64[Tensor, "R G V"]) -> Float[Tensor, "R D G V"]:
    """Gathers the cells of each region, channels last."""
    regions, rows, columns = index.shape
    gathered = cells.index_select(0, index.reshape(-1))
    return gathered.view(regions, rows, columns, -1).permute(0, 3, 1, 2)


def shares_windows(stage: nn.Module) -> TypeGuard[FusedStage]:
    """Returns whether :func:`pooled_means` supports a stage: its first block projects its
    shortcut.
    """
    return isinstance(stage, FusedStage) and isinstance(stage.blocks()[0].shortcut, ConvNorm)


def pooled_means(
    stage: FusedStage,
    features: Float[Tensor, "1 C G V"],
    boxes: Float[Tensor, "R 4"],
    *,
    scale: float,
    size: int,
    chunk: int,
) -> Float[Tensor, "R D"]:
    """Returns the mean of a stage over RoI max pooled regions (``torchvision.ops.roi_pool``).

    Memory is bounded by ``MAX_WINDOWS`` and ``chunk``: a set of regions with too many distinct
    windows is split in half.
    """
    rows, columns = features.shape[2:]
    windows = pooling_windows(boxes, scale, size, rows, columns)
    if len(windows.bounds) > MAX_WINDOWS and len(boxes) > 1:
        halves = torch.split(boxes, -(-len(boxes) // 2))
        return torch.cat(
            [
                pooled_means(stage, features, half, scale=scale, size=size, chunk=chunk)
                for half in halves
            ]
        )
    cells = window_maxima(features[0].permute(1, 2, 0).contiguous(), windows.bounds)
    return stage.shared_means(cells, windows.index, chunk)
