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

Places = Int[Tensor, "_"]


class Cells(NamedTuple):
    """Names places in the grids of a batch's texts [B, T] and regions [B, R].

    Said of a batch, they are its real positions. Said of what is *read*, they are where somebody
    reads the last hidden state, the first position of each sequence among them, which is pooled:
    other positions may come back as zeros. Pretraining reads few (masked words and regions), so
    that most of the last layer is left out.
    """

    text: Places
    regions: Places

    def joined(self, num_tokens: int, num_regions: int, *, width: int | None = None) -> Places:
        """Gives places in one grid, texts first, of ``width`` columns (T + R if not given)."""
        parts = [(self.text, num_tokens), (self.regions, num_regions)]
        return side_by_side(parts, width=width)


def cells_of(mask: Bool[Tensor, "B N"]) -> Places:
    """Gives the places that a mask marks. Waits for the device."""
    return mask.flatten().nonzero().flatten()


def cells_read(text: Bool[Tensor, "B T"], regions: Bool[Tensor, "B R"]) -> Cells:
    """Gives what is read, from masks of it; adds first positions. Waits for the device."""
    return Cells(cells_of(with_first(text)), cells_of(with_first(regions)))


def side_by_side(parts: Iterable[tuple[Places, int]], *, width: int | None = None) -> Places:
    """Gives places of several grids, each with its columns, in one of all side by side."""
    parts = list(parts)
    width = sum(columns for _, columns in parts) if width is None else width
    moved, start = [], 0
    for places, columns in parts:
        if columns:
            moved.append(moved_to(places, columns, width, start))
        start += columns
    if len(moved) < 2:
        return moved[0] if moved else parts[0][0]
    return torch.cat(moved).sort().values


def moved_to(places: Places, columns: int, width: int, start: int) -> Places:
    """Gives places of a grid of ``columns`` columns in one of ``width``, from ``start`` on."""
    return places // columns * width + places % columns + start


def first_cells(shape: tuple[int, int], like: Tensor) -> Places:
    """Gives the first place of each sequence of a grid."""
    return torch.arange(shape[0], device=like.device) * shape[1]


def with_first(mask: Bool[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
    """Marks the first position of each sequence besides those that ``mask`` marks."""
    return mask | (torch.arange(mask.shape[1], device=mask.device) == 0)
