"""Stores sequences of several lengths in one tensor. B sequences, N positions, H width.

Hidden states have one of two layouts. In the *grid* they are [B, N, H] with padding. *Packed* they
are [L, H]: the L real positions only. Products with weights, layer norms and dropout process each
row separately and cost in proportion to rows, so packing saves the cost of padding; only attention
needs to know which rows belong together. On a CPU attention uses the grid; kernels for GPUs read
packed rows directly (`packed_attention`). A compaction merges several parts of a sequence, each
with gaps, into one without gaps: S cells are then the longest sequence without padding.

The number of real positions depends on values, and no layer reads one from a GPU: see
`vlmill.models.positions`.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Int32, Shaped
from torch import Tensor

from vlmill.models.inputs import readable
from vlmill.models.positions import Cells, Positions, find_positions, first_cells, shift_positions

PACK_FROM = 0.03  # share of padding above which packing repays its copies, measured on a CPU


class Layout(NamedTuple):
    """Describes the positions of hidden states in a tensor.

    shape: (B, N) of the grid. key_mask: True where a position is real; None if all are. real: the
    grid's cells that the packed rows come from; None in the grid. starts: the first row of each
    sequence and the end of the last, if a sequence's rows are contiguous; None on a CPU, where it
    is not used. read: the grid's cells that are read after the last layer; None if all may be.
    """

    shape: tuple[int, int]
    key_mask: Bool[Tensor, "B N"] | None = None
    real: Positions | None = None
    starts: Int32[Tensor, " B1"] | None = None
    read: Positions | None = None

    def pack(self, hidden: Shaped[Tensor, "B N H"]) -> Shaped[Tensor, "*rows H"]:
        """Converts a grid of values of any dtype to this layout."""
        if self.real is None:
            return hidden
        return hidden.flatten(0, 1).index_select(0, self.real)

    def unpack(self, hidden: Shaped[Tensor, "*rows H"]) -> Shaped[Tensor, "B N H"]:
        """Converts this layout to the grid; padding becomes zeros."""
        if self.real is None:
            return hidden
        cells = self.shape[0] * self.shape[1]
        grid = hidden.new_zeros(cells, hidden.shape[-1]).index_copy(0, self.real, hidden)
        return grid.view(*self.shape, hidden.shape[-1])

    def read_rows(self) -> "ReadRows | None":
        """Returns the rows of the positions that are read; None for all.

        A CPU omits positions of padding. On other devices packed rows must include every position.
        """
        if self.read is None:
            return None
        rows = positions = self.read
        if self.real is not None:
            numbers = torch.arange(len(self.real), device=positions.device)
            cells = self.shape[0] * self.shape[1]
            rows = positions.new_full((cells,), -1).index_copy(0, self.real, numbers)[positions]
            if readable(positions):
                rows, positions = rows[rows >= 0], positions[rows >= 0]
        layout = narrow = Layout(self.shape, None, positions, _starts(positions, self.shape))
        if readable(positions):
            sequences, columns = positions // self.shape[1], positions % self.shape[1]
            reach = int(columns.max()) + 1 if len(columns) else 1
            narrow_cells = sequences * reach + columns
            narrow = layout._replace(shape=(self.shape[0], reach), real=narrow_cells)
        return ReadRows(rows, layout, narrow)

    def sequence_of_rows(self) -> Positions | None:
        """Returns the sequence of each packed row; None in the grid."""
        return None if self.real is None else self.real // self.shape[1]

    def mask_of_grid(self) -> Bool[Tensor, "B N"] | None:
        """Returns the mask of rows that include padding; None for packed rows."""
        return self.key_mask if self.real is None else None

    def rows_of_cells(self) -> Int32[Tensor, "B N"] | None:
        """Returns the packed row of each cell of the grid, -1 for padding; None in the grid."""
        if self.real is None:
            return None
        numbers = torch.arange(len(self.real), dtype=torch.int32, device=self.real.device)
        cells = numbers.new_full((self.shape[0] * self.shape[1],), -1)
        return cells.index_copy(0, self.real, numbers).view(self.shape)


class ReadRows(NamedTuple):
    """Holds the rows of a layout that are read, and the packed layout that they form.

    narrow: the same in a grid cut to the columns that they use, if the host may read them.
    """

    rows: Int[Tensor, " K"]
    layout: Layout
    narrow: Layout

    def take(self, hidden: Float[Tensor, "*rows H"]) -> Float[Tensor, "K H"]:
        """Selects these rows, from either layout."""
        return hidden.reshape(-1, hidden.shape[-1]).index_select(0, self.rows)


def make_layout(
    mask: Bool[Tensor, "B N"],
    real: Positions | None = None,
    *,
    read: Positions | None = None,
    pack: bool = True,
) -> Layout:
    """Returns the layout of sequences whose real positions are in ``mask``, and ``real`` if known.

    Without padding, attention needs no mask. With ``pack`` and enough padding to repay it the rows
    are packed, in the order of the grid. Off the CPU packing repays any padding, because with a
    mask attention cannot use its fastest kernels. Without ``real``, other devices keep the grid,
    and so does torch.compile's tracing, which has no numbers that depend on values. The layout also
    has the positions that are ``read`` (`Layout`).
    """
    grid = Layout((mask.shape[0], mask.shape[1]), mask, read=read)
    if not torch.compiler.is_compiling():  # which has one graph for all numbers of rows
        if real is None and readable(mask):
            real = find_positions(mask)
        if real is None:
            return grid
        padding = mask.numel() - len(real)
        if not padding:
            return grid._replace(key_mask=None)
        if readable(mask) and padding < PACK_FROM * mask.numel():
            return grid
    if real is None or not pack:
        return grid
    return grid._replace(real=real, starts=_starts(real, grid.shape))


def _starts(positions: Positions, shape: tuple[int, int]) -> Int32[Tensor, " B1"] | None:
    """Returns the first row of each sequence among rows of these positions, and the last one's end.

    None if attention uses the grid.
    """
    if readable(positions):
        return None
    firsts = torch.arange(shape[0] + 1, device=positions.device) * shape[1]
    return torch.searchsorted(positions, firsts, out_int32=True)


def make_joint_layout(
    first: Bool[Tensor, "B T"],
    second: Bool[Tensor, "B R"],
    real: Cells | None = None,
    *,
    read: Cells | None = None,
    pack: bool = True,
) -> tuple[Layout, tuple[int, int]]:
    """Returns the layout of ``first`` before ``second`` in one sequence, and both row counts.

    If packed, all of the first modality's rows are before all of the second's, so that
    ``hidden.split(rows, dim=-2)`` separates the modalities in either layout. ``real`` and ``read``
    are positions of the two.
    """
    columns = (first.shape[1], second.shape[1])
    positions = None if real is None else real.joined(*columns)
    mask = torch.cat([first, second], dim=1)
    layout = make_layout(mask, positions, read=read and read.joined(*columns), pack=pack)
    if layout.real is None:
        return layout, columns
    if real is None:
        in_first = layout.real % layout.shape[1] < columns[0]
        parts = [layout.real[in_first], layout.real[~in_first]]
    else:
        parts = [
            shift_positions(real.text, columns[0], sum(columns), 0),
            shift_positions(real.regions, columns[1], sum(columns), columns[0]),
        ]
    parted = layout._replace(real=torch.cat(parts), starts=None)
    return parted, (len(parts[0]), len(parts[1]))


class Compaction(NamedTuple):
    """Describes the compacted position of each slot.

    layout: of the compacted sequences, or of the slots if these are not moved. If they are moved,
    slots: for each row of ``layout`` the slot that it holds, counted over the batch; in the grid,
    cells of padding hold slots of padding. cells: for each real slot its cell in its sequence.
    real: which slots are not empty.
    """

    layout: Layout
    real: Bool[Tensor, "B N"]
    slots: Int[Tensor, "*rows"] | None = None
    cells: Int[Tensor, "B N"] | None = None

    def take(self, hidden: Shaped[Tensor, "B N H"]) -> Shaped[Tensor, "*rows H"]:
        """Converts slots to the compacted layout."""
        if self.slots is None:
            return self.layout.pack(hidden)
        rows = hidden.flatten(0, 1).index_select(0, self.slots.flatten())
        return rows.view(*self.slots.shape, hidden.shape[-1])

    def put_back(self, grid: Float[Tensor, "B S H"]) -> Float[Tensor, "B N H"]:
        """Converts the grid of the compacted layout to slots; zeros in empty ones."""
        if self.cells is not None:
            cells = self.cells.clamp(min=0)[..., None].expand(-1, -1, grid.shape[-1])
            grid = grid.gather(1, cells)
        return grid.masked_fill(~self.real[..., None], 0.0)

    def locate_slots(self, slots: Positions) -> Positions:
        """Returns the positions of these slots in the compacted grid, without the empty ones."""
        if self.cells is None:
            return slots
        slots = slots[self.real.flatten()[slots]]
        sequences = slots // self.real.shape[1]
        return sequences * self.layout.shape[1] + self.cells.flatten()[slots]


def compact(
    mask: Bool[Tensor, "B N"],
    real: Positions | None = None,
    *,
    read: Positions | None = None,
    pack: bool = True,
) -> Compaction:
    """Moves each sequence's real slots, which are True in ``mask``, to its front, in their order.

    Attention in a grid then costs as much as the longest sequence needs, and not the sum of the
    longest parts. On other devices than a CPU, and while torch.compile traces, slots are not moved:
    packed rows, at the positions ``real``, have no gaps, and the longest sequence must not be read.
    ``read``: the slots that are read; the layout has their positions.
    """
    if not readable(mask):
        return Compaction(make_layout(mask, real, read=read, pack=pack), mask)
    lengths, num_slots = mask.sum(dim=1), mask.shape[1]
    longest = int(lengths.max()) if len(mask) else num_slots
    order = (~mask).to(torch.uint8).argsort(dim=1, stable=True)[:, :longest]
    layout = make_layout(torch.arange(longest) < lengths[:, None], pack=pack)
    slots = order + first_cells((len(mask), num_slots), mask)[:, None]
    if layout.real is not None:
        slots = slots.flatten().index_select(0, layout.real)
    compaction = Compaction(layout, mask, slots, mask.cumsum(dim=1) - 1)
    if read is None:
        return compaction
    return compaction._replace(layout=layout._replace(read=compaction.locate_slots(read)))
