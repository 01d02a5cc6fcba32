"""Places say which positions of a batch are real, and which are read.

B sequences, N positions, T tokens, R regions. Places of a grid are int64, counted row by row, and
rising. How many are real depends on values, and a GPU that is asked for a value makes the host wait
until all its work is done. So whoever makes a batch on the host sends these places along (`Cells`),
and no layer ever asks.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

Positions = Int[Tensor, "_"]


class Cells(NamedTuple):
    """Names places in the grids of a batch's texts [B, T] and regions [B, R].

    Said of a batch, they are its real positions. Said of what is *read*, they are where somebody
    reads the last hidden state, the first position of each sequence among them, which is pooled:
    other positions may come back as zeros. Pretraining reads few (masked words and regions), so
    that most of the last layer is left out.
    """

    text: Positions
    regions: Positions

    def joined(self, num_tokens: int, num_regions: int, *, width: int | None = None) -> Positions:
        """Gives places in one grid, texts first, of ``width`` columns (T + R if not given)."""
        parts = [(self.text, num_tokens), (self.regions, num_regions)]
        return concatenate_positions(parts, width=width)


def find_positions(mask: Bool[Tensor, "B N"]) -> Positions:
    """Gives the places that a mask marks. Waits for the device."""
    return mask.flatten().nonzero().flatten()


def find_read_positions(text: Bool[Tensor, "B T"], regions: Bool[Tensor, "B R"]) -> Cells:
    """Gives what is read, from masks of it; adds first positions. Waits for the device."""
    return Cells(find_positions(with_first(text)), find_positions(with_first(regions)))


def concatenate_positions(
    parts: Iterable[tuple[Positions, int]], *, width: int | None = None
) -> Positions:
    """Gives places of several grids, each with its columns, in one of all side by side."""
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
    """Gives places of a grid of ``columns`` columns in one of ``width``, from ``start`` on."""
    return positions // columns * width + positions % columns + start


def first_cells(shape: tuple[int, int], like: Tensor) -> Positions:
    """Gives the first place of each sequence of a grid."""
    return torch.arange(shape[0], device=like.device) * shape[1]


def with_first(mask: Bool[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
    """Marks the first position of each sequence besides those that ``mask`` marks."""
    return mask | (torch.arange(mask.shape[1], device=mask.device) == 0)
