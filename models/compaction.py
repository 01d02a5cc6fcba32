"""Several parts of a sequence, each with gaps, as one sequence without.

B sequences, N slots (the parts side by side, padding between them), S cells (the longest sequence
without padding), H width.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from vlmill.models.layout import Layout, layout_of


class Compaction(NamedTuple):
    """Which slot lies where.

    layout: of the compacted sequences. slots: for each row of ``layout`` the slot that it holds,
    counted over the batch; in the grid, cells of padding hold slots of padding. cells: for each
    real slot its cell in its sequence. real: which slots hold something.
    """

    layout: Layout
    slots: Int[Tensor, "*rows"]
    cells: Int[Tensor, "B N"]
    real: Bool[Tensor, "B N"]

    def take(self, hidden: Shaped[Tensor, "B N H"]) -> Shaped[Tensor, "*rows H"]:
        """From slots into the compacted layout."""
        rows = hidden.flatten(0, 1).index_select(0, self.slots.flatten())
        return rows.view(*self.slots.shape, hidden.shape[-1])

    def put_back(self, grid: Float[Tensor, "B S H"]) -> Float[Tensor, "B N H"]:
        """From the grid of the compacted layout into slots; zeros in empty ones."""
        cells = self.cells.clamp(min=0)[..., None].expand(-1, -1, grid.shape[-1])
        return grid.gather(1, cells).masked_fill(~self.real[..., None], 0.0)


def compact(real: Bool[Tensor, "B N"], *, pack: bool = True) -> Compaction:
    """Move each sequence's ``real`` slots to its front, in their order.

    Attention then costs what the longest sequence needs, and not the sum of the longest parts. As
    in `layout_of`, torch.compile keeps the size that does not depend on values.
    """
    lengths = real.sum(dim=1)
    num_slots = real.shape[1]
    longest = num_slots
    if not torch.compiler.is_compiling() and len(real):
        longest = int(lengths.max())
    order = (~real).to(torch.uint8).argsort(dim=1, stable=True)[:, :longest]
    layout = layout_of(torch.arange(longest, device=real.device) < lengths[:, None], pack=pack)
    first = torch.arange(len(real), device=real.device)[:, None] * num_slots
    slots = order + first
    if layout.real is not None:
        slots = slots.flatten().index_select(0, layout.real)
    return Compaction(layout, slots, real.cumsum(dim=1) - 1, real)
