"""Several parts of a sequence, each with gaps, as one sequence without.

B sequences, N slots (the parts side by side, padding between them), S cells (the longest sequence
without padding), H width.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from vlmill.models.input_checks import readable
from vlmill.models.layout import Layout, Places, first_cells, layout_of


class Compaction(NamedTuple):
    """Which slot lies where.

    layout: of the compacted sequences, or of the slots where these stay as they are. Where they
    move, slots: for each row of ``layout`` the slot that it holds, counted over the batch; in the
    grid, cells of padding hold slots of padding. cells: for each real slot its cell in its
    sequence. real: which slots hold something.
    """

    layout: Layout
    real: Bool[Tensor, "B N"]
    slots: Int[Tensor, "*rows"] | None = None
    cells: Int[Tensor, "B N"] | None = None

    def take(self, hidden: Shaped[Tensor, "B N H"]) -> Shaped[Tensor, "*rows H"]:
        """From slots into the compacted layout."""
        if self.slots is None:
            return self.layout.pack(hidden)
        rows = hidden.flatten(0, 1).index_select(0, self.slots.flatten())
        return rows.view(*self.slots.shape, hidden.shape[-1])

    def put_back(self, grid: Float[Tensor, "B S H"]) -> Float[Tensor, "B N H"]:
        """From the grid of the compacted layout into slots; zeros in empty ones."""
        if self.cells is not None:
            cells = self.cells.clamp(min=0)[..., None].expand(-1, -1, grid.shape[-1])
            grid = grid.gather(1, cells)
        return grid.masked_fill(~self.real[..., None], 0.0)

    def places(self, slots: Places) -> Places:
        """Where these slots lie in the compacted grid, without those that are empty."""
        if self.cells is None:
            return slots
        slots = slots[self.real.flatten()[slots]]
        sequences = slots // self.real.shape[1]
        return sequences * self.layout.shape[1] + self.cells.flatten()[slots]


def compact(
    mask: Bool[Tensor, "B N"], real: Places | None = None, *, pack: bool = True
) -> Compaction:
    """Move each sequence's real slots, which ``mask`` marks, to its front, in their order.

    Attention in a grid then costs what the longest sequence needs, and not the sum of the longest
    parts. Elsewhere than on a CPU, and while torch.compile traces, they stay: packed rows, whose
    places are ``real``, have no gaps, and what the longest sequence needs nobody may ask.
    """
    if not readable(mask):
        return Compaction(layout_of(mask, real, pack=pack), mask)
    lengths, num_slots = mask.sum(dim=1), mask.shape[1]
    longest = int(lengths.max()) if len(mask) else num_slots
    order = (~mask).to(torch.uint8).argsort(dim=1, stable=True)[:, :longest]
    layout = layout_of(torch.arange(longest) < lengths[:, None], pack=pack)
    slots = order + first_cells((len(mask), num_slots), mask)[:, None]
    if layout.real is not None:
        slots = slots.flatten().index_select(0, layout.real)
    return Compaction(layout, mask, slots, mask.cumsum(dim=1) - 1)
