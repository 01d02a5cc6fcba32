"""Computes the indices of the positions of a batch that are real, and of those that are read.

B sequences, N positions, T tokens, R regions. Indices of a grid are int64, flat in row-major order,
and ascending. The number of real positions depends on values, and reading a value from a GPU makes
the host wait until all its work is done. So the code that creates a batch on the host adds these
indices (`Cells`), and no layer reads values.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

Positions = Int[Tensor, "_"]


class Cells(NamedTuple):
    """Holds indices into the grids of a batch's texts [B, T] and regions [B, R].

    For a batch, they are its real positions. For positions that are *read*, they are where the last
    hidden state is used, including the first position of each sequence, which is pooled; other
    positions may be returned as zeros. Pretraining reads few positions (masked words and regions),
    so most of the last layer is skipped.
    """

    text: Positions
    regions: Positions

    def joined(self, num_tokens: int, num_regions: int, *, width: int | None = None) -> Positions:
        """Returns indices into one grid of ``width`` columns (default: T + R), texts first."""
        parts = [(self.text, num_tokens), (self.regions, num_regions)]
        return concatenate_positions(parts, width=width)


def find_positions(mask: Bool[Tensor, "B N"]) -> Positions:
    """Returns the indices that a mask marks. Waits for the device."""
    return mask.flatten().nonzero().flatten()


def find_read_positions(text: Bool[Tensor, "B T"], regions: Bool[Tensor, "B R"]) -> Cells:
    """Returns the indices that are read, from masks; adds first positions. Waits for the device."""
    return Cells(find_positions(with_first(text)), find_positions(with_first(regions)))


def concatenate_positions(
    parts: Iterable[tuple[Positions, int]], *, width: int | None = None
) -> Positions:
    """Returns the indices of several grids in their concatenation by columns."""
    parts = list(parts)
    width = sum(columns for _, columns in parts) if width is None else width
    shifted, start = [], 0
    for positions, columns in parts:
        if columns:
            shifted.append(shift_positions(positions, columns, width, start))
        start += columns
    if len(shifted) < 2:
        return shifted[0] if shifted else parts[0][0]
    return torch.cat(shifted).sort().values


def shift_positions(positions: Positions, columns: int, width: int, start: int) -> Positions:
    """Returns indices of a grid of ``columns`` columns at column ``start`` of one of ``width``."""
    return positions // columns * width + positions % columns + start


def first_cells(shape: tuple[int, int], like: Tensor) -> Positions:
    """Returns the index of the first position of each sequence of a grid."""
    return torch.arange(shape[0], device=like.device) * shape[1]


def with_first(mask: Bool[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
    """Returns ``mask`` with the first position of each sequence marked too."""
    return mask | (torch.arange(mask.shape[1], device=mask.device) == 0)
