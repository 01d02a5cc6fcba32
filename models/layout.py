"""How sequences of several lengths lie in one tensor.  B sequences, N positions, H width.

Hidden states come in two layouts. In the *grid* they are [B, N, H] with padding. *Packed* they are
[L, H]: the L real positions only. Products with weights, layer norms and dropout act on each row by
itself and cost in proportion to rows, so packing saves what padding costs; only attention has to
know which rows belong together. On a CPU it goes through the grid; kernels for GPUs read packed
rows as they lie (`packed_attention`).

Places of a grid are int64, counted row by row, and rising. How many are real depends on values,
and a GPU that is asked for a value makes the host wait until all its work is done. So whoever makes
a batch on the host sends these places along (`Cells`), and no layer ever asks.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Int32, Shaped
from torch import Tensor

from vlmill.models.input_checks import readable

PACK_FROM = 0.03  # share of padding above which packing pays for its copies, measured on a CPU

Places = Int[Tensor, "_"]


class Layout(NamedTuple):
    """Where hidden states lie.

    shape: (B, N) of the grid. key_mask: True where a position is real; None if all are.
    real: the grid's cells that the packed rows come from; None in the grid. starts: the first row
    of each sequence and the end of the last, where a sequence's rows lie side by side.
    """

    shape: tuple[int, int]
    key_mask: Bool[Tensor, "B N"] | None = None
    real: Places | None = None
    starts: Int32[Tensor, " B1"] | None = None

    def pack(self, hidden: Shaped[Tensor, "B N H"]) -> Shaped[Tensor, "*rows H"]:
        """From the grid into this layout, values of any kind."""
        if self.real is None:
            return hidden
        return hidden.flatten(0, 1).index_select(0, self.real)

    def unpack(self, hidden: Shaped[Tensor, "*rows H"]) -> Shaped[Tensor, "B N H"]:
        """From this layout into the grid; padding becomes zeros."""
        if self.real is None:
            return hidden
        cells = self.shape[0] * self.shape[1]
        grid = hidden.new_zeros(cells, hidden.shape[-1]).index_copy(0, self.real, hidden)
        return grid.view(*self.shape, hidden.shape[-1])

    def keep(self, places: Places | None) -> "Kept | None":
        """Only the rows of these places; None for all.

        Places of padding are left out on a CPU. Elsewhere packed rows must have every one.
        """
        if places is None:
            return None
        rows = places
        if self.real is not None:
            numbers = torch.arange(len(self.real), device=places.device)
            cells = self.shape[0] * self.shape[1]
            rows = places.new_full((cells,), -1).index_copy(0, self.real, numbers)[places]
            if readable(places):
                rows, places = rows[rows >= 0], places[rows >= 0]
        layout = Layout(self.shape, None, places, _starts(places, self.shape))
        return Kept(rows, layout, _narrowed(places, layout))

    def sequence_of_rows(self) -> Places | None:
        """Which sequence each packed row belongs to; None in the grid."""
        return None if self.real is None else self.real // self.shape[1]


class Kept(NamedTuple):
    """Some rows of a layout: their numbers in it, and the packed layout that they make.

    narrow: the same in a grid of no more columns than they reach into, where the host may look.
    """

    rows: Int[Tensor, " K"]
    layout: Layout
    narrow: Layout

    def take(self, hidden: Float[Tensor, "*rows H"]) -> Float[Tensor, "K H"]:
        """These rows, from either layout."""
        return hidden.reshape(-1, hidden.shape[-1]).index_select(0, self.rows)


def _narrowed(places: Places, layout: Layout) -> Layout:
    if not readable(places):
        return layout
    sequences, columns = places // layout.shape[1], places % layout.shape[1]
    reach = int(columns.max()) + 1 if len(columns) else 1
    return layout._replace(shape=(layout.shape[0], reach), real=sequences * reach + columns)


class Cells(NamedTuple):
    """Places in the grids of a batch's texts [B, T] and regions [B, R].

    Said of a batch, they are its real positions. Said of what is *read*, they are where somebody
    reads the last hidden state, the first position of each sequence among them, which is pooled:
    other positions may come back as zeros. Pretraining reads few (masked words and regions), so
    that most of the last layer is left out.
    """

    text: Places
    regions: Places

    def joined(self, num_tokens: int, num_regions: int, *, width: int | None = None) -> Places:
        """In one grid with the texts first, of ``width`` columns (T + R if not given)."""
        parts = [(self.text, num_tokens), (self.regions, num_regions)]
        return side_by_side(parts, width=width)


def cells_of(mask: Bool[Tensor, "B N"]) -> Places:
    """The places that a mask marks. Waits for the device."""
    return mask.flatten().nonzero().flatten()


def cells_read(text: Bool[Tensor, "B T"], regions: Bool[Tensor, "B R"]) -> Cells:
    """What is read, from masks of it; first positions are added. Waits for the device."""
    return Cells(cells_of(with_first(text)), cells_of(with_first(regions)))


def side_by_side(parts: Iterable[tuple[Places, int]], *, width: int | None = None) -> Places:
    """Places of several grids, each with its columns, in one that has them side by side."""
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
    """Places of a grid of ``columns`` columns in one of ``width``, from column ``start`` on."""
    return places // columns * width + places % columns + start


def first_cells(shape: tuple[int, int], like: Tensor) -> Places:
    """The first place of each sequence of a grid."""
    return torch.arange(shape[0], device=like.device) * shape[1]


def with_first(wanted: Bool[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
    """The first position of each sequence besides the ``wanted`` ones."""
    return wanted | (torch.arange(wanted.shape[1], device=wanted.device) == 0)


def layout_of(
    mask: Bool[Tensor, "B N"], real: Places | None = None, *, pack: bool = True
) -> Layout:
    """The layout for sequences whose real positions ``mask`` marks, with their places if known.

    Without padding, attention needs no mask. With ``pack`` and enough padding to pay for it the
    rows are packed, in the order of the grid; off the CPU any padding pays, for a mask keeps
    attention from its fastest kernels. Where the places are not given, the grid stays for other
    devices, and while torch.compile traces, which knows no number that depends on values.
    """
    shape = (mask.shape[0], mask.shape[1])
    if torch.compiler.is_compiling():  # one graph for all numbers: no choice depends on them
        if real is None or not pack:
            return Layout(shape, mask)
        return Layout(shape, mask, real, _starts(real, shape))
    if real is None and not readable(mask):
        return Layout(shape, mask)
    padding = mask.numel() - (int(mask.sum()) if real is None else len(real))
    if not padding:
        return Layout(shape)
    if not pack or (readable(mask) and padding < PACK_FROM * mask.numel()):
        return Layout(shape, mask)
    real = cells_of(mask) if real is None else real
    return Layout(shape, mask, real, _starts(real, shape))


def _starts(places: Places, shape: tuple[int, int]) -> Int32[Tensor, " B1"]:
    """The first row of each sequence among rows of these places, and the end of the last."""
    firsts = torch.arange(shape[0] + 1, device=places.device) * shape[1]
    return torch.searchsorted(places, firsts, out_int32=True)


def joined_layout(
    first: Bool[Tensor, "B T"],
    second: Bool[Tensor, "B R"],
    real: Cells | None = None,
    *,
    pack: bool = True,
) -> tuple[Layout, tuple[int, int]]:
    """The layout of two modalities in one sequence, ``first`` before ``second``, and their rows.

    Packed, all of the first modality's rows lie before all of the second's, so that
    ``hidden.split(rows, dim=-2)`` parts the modalities in either layout. ``real``: of the two.
    """
    columns = (first.shape[1], second.shape[1])
    places = None if real is None else real.joined(*columns)
    layout = layout_of(torch.cat([first, second], dim=1), places, pack=pack)
    if layout.real is None:
        return layout, columns
    if real is None:
        in_first = layout.real % layout.shape[1] < columns[0]
        parts = [layout.real[in_first], layout.real[~in_first]]
    else:
        parts = [
            moved_to(real.text, columns[0], sum(columns), 0),
            moved_to(real.regions, columns[1], sum(columns), columns[0]),
        ]
    parted = layout._replace(real=torch.cat(parts), starts=None)
    return parted, (len(parts[0]), len(parts[1]))
