"""How sequences of several lengths lie in one tensor.  B sequences, N positions, H width.

Hidden states come in two layouts. In the *grid* they are [B, N, H] with padding. *Packed* they are
[L, H]: the L real positions only. Products with weights, layer norms and dropout act on each row by
itself and cost in proportion to rows, so packing saves what padding costs; only attention has to
know which rows belong together, and goes through the grid.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

PACK_FROM = 0.03  # share of padding above which packing pays for its copies, measured on a CPU


class Layout(NamedTuple):
    """Where hidden states lie.

    shape: (B, N) of the grid. key_mask: True where a position is real; None if all are.
    real: the grid's cells, counted row by row, that the packed rows come from; None in the grid.
    """

    shape: tuple[int, int]
    key_mask: Bool[Tensor, "B N"] | None = None
    real: Int[Tensor, " L"] | None = None

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

    def keep(self, wanted: Bool[Tensor, "B N"] | None) -> "Kept | None":
        """Only the ``wanted`` rows of this layout; None for all.

        Also None while torch.compile traces, as their number depends on values (see `layout_of`).
        """
        if wanted is None or torch.compiler.is_compiling():
            return None
        flat = wanted.flatten()
        if self.real is None:
            rows = cells = flat.nonzero().flatten()
        else:
            rows = flat.index_select(0, self.real).nonzero().flatten()
            cells = self.real.index_select(0, rows)
        sequences, columns = cells // self.shape[1], cells % self.shape[1]
        reach = int(columns.max()) + 1 if len(columns) else 1
        narrow = Layout((self.shape[0], reach), None, sequences * reach + columns)
        return Kept(rows, Layout(self.shape, wanted, cells), narrow)

    def sequence_of_rows(self) -> Int[Tensor, " L"] | None:
        """Which sequence each packed row belongs to; None in the grid."""
        return None if self.real is None else self.real // self.shape[1]


class Kept(NamedTuple):
    """Some rows of a layout: their numbers in it, and the packed layout that they make.

    narrow: the same in a grid of no more columns than they reach into.
    """

    rows: Int[Tensor, " K"]
    layout: Layout
    narrow: Layout

    def take(self, hidden: Float[Tensor, "*rows H"]) -> Float[Tensor, "K H"]:
        """These rows, from either layout."""
        return hidden.reshape(-1, hidden.shape[-1]).index_select(0, self.rows)


class Read(NamedTuple):
    """True where somebody reads the last hidden state: other positions may come back as zeros.

    Pretraining reads few: masked words, masked regions and what is pooled, which is always
    computed. Most of the last layer is then left out.
    """

    text: Bool[Tensor, "B T"]
    regions: Bool[Tensor, "B R"]

    def joined(self) -> Bool[Tensor, "B N"]:
        """Of one sequence with the text first, whose first position is pooled."""
        return with_first(torch.cat([self.text, self.regions], dim=1))


def with_first(wanted: Bool[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
    """The first position of each sequence besides the ``wanted`` ones."""
    return wanted | (torch.arange(wanted.shape[1], device=wanted.device) == 0)


def layout_of(mask: Bool[Tensor, "B N"], *, pack: bool = True) -> Layout:
    """The layout for sequences whose real positions ``mask`` marks.

    Without padding, attention needs no mask. With ``pack`` and enough padding to pay for it the
    rows are packed, in the order of the grid. Finding out waits for the device once. While
    torch.compile traces, the grid stays: a number of rows that depends on values would break the
    graph; batches of like lengths (buckets) serve there instead.
    """
    shape = (mask.shape[0], mask.shape[1])
    if torch.compiler.is_compiling():
        return Layout(shape, mask)
    padding = mask.numel() - int(mask.sum())
    if not padding:
        return Layout(shape)
    if not pack or padding < PACK_FROM * mask.numel():
        return Layout(shape, mask)
    return Layout(shape, mask, mask.flatten().nonzero().flatten())


def joined_layout(
    first: Bool[Tensor, "B T"], second: Bool[Tensor, "B R"], *, pack: bool = True
) -> tuple[Layout, tuple[int, int]]:
    """The layout of two modalities in one sequence, ``first`` before ``second``, and their rows.

    Packed, all of the first modality's rows lie before all of the second's, so that
    ``hidden.split(rows, dim=-2)`` parts the modalities in either layout.
    """
    layout = layout_of(torch.cat([first, second], dim=1), pack=pack)
    if layout.real is None:
        return layout, (first.shape[1], second.shape[1])
    in_first = layout.real % layout.shape[1] < first.shape[1]
    ordered = torch.cat([layout.real[in_first], layout.real[~in_first]])
    num_first = int(in_first.sum())
    return layout._replace(real=ordered), (num_first, len(ordered) - num_first)
