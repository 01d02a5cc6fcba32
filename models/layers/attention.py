"""Computes attention between positions. B sequences, N positions, H width, rows in any `Layout`.

With a mask of real keys PyTorch's attention cannot use its fastest kernel for GPUs. Packed rows, L
and M of queries and keys with heads of width d, need no mask: the kernel gets the start of each
sequence.
"""

import torch
from jaxtyping import Float, Int32
from torch import Tensor, nn

from vlmill.models.layers.gpu.biased_attention import (
    biased_attention,
    biased_attention_from,
    reads_bias_once,
)
from vlmill.models.layers.operators import HALF, HEAD_STEP, Linear, attention, linear
from vlmill.models.layers.packing import Layout, ReadRows
from vlmill.models.positions import first_cells
from vlmill.models.probes import works

LARGEST_HEAD = 256  # that the kernel supports
Bias = Float[Tensor, "heads N N"]
Projected = tuple[
    Float[Tensor, "*rows1 three_width"] | None, Float[Tensor, "*rows2 three_width"] | None
]


def _check_heads(width: int, num_heads: int) -> None:
    if width % num_heads:
        raise ValueError(
            f"width {width} is not a multiple of num_heads {num_heads}; each head needs "
            "an equal share of the width"
        )


def by_heads(
    projected: Float[Tensor, "*rows parts_H"], num_heads: int, parts: int = 3
) -> tuple[Float[Tensor, "*rows heads d"], ...]:
    """Splits one product into query, key and value by head, or into another number of ``parts``."""
    *rows, width = projected.shape
    return projected.view(*rows, parts, num_heads, width // (parts * num_heads)).unbind(-3)


class SelfAttention(nn.Module):
    """Computes scaled dot-product self-attention (Vaswani et al., arXiv:1706.03762, sec. 3.2).

    Query, key and value come from one product; ``dropout`` is applied to the attention weights.
    ``key_bias=False`` omits the key's part of the bias, as BEiT does: it is a constant for each
    query, which the softmax cancels. With ``bias_kernel`` set to True vlmill's kernels add a bias
    if they support the rows (`reads_bias_once`).
    """

    bias_kernel = False

    def __init__(
        self, width: int, num_heads: int, dropout: float = 0.0, *, key_bias: bool = True
    ) -> None:
        super().__init__()
        _check_heads(width, num_heads)
        self.num_heads = num_heads
        self.dropout = dropout
        self.qkv = Linear(width, 3 * width, bias=key_bias)
        self.query_bias = None if key_bias else nn.Parameter(torch.zeros(width))
        self.value_bias = None if key_bias else nn.Parameter(torch.zeros(width))
        self.out = Linear(width, width)

    def forward(
        self,
        hidden: Float[Tensor, "*rows H"],
        layout: Layout,
        bias: Bias | None = None,
        read: ReadRows | None = None,
    ) -> Float[Tensor, "*rows2 H"]:
        """Attends from every position to the real positions of its sequence.

        ``bias`` is added to the scores. With ``read`` only these rows are returned. A sequence
        needs at least one real position: without any key the softmax is undefined.
        """
        weight, qkv_bias = self.qkv.weight, self._bias()
        dropout = self.dropout if self.training else 0.0
        if read is None:
            mixed = self._mixed(linear(hidden, weight, qkv_bias), layout, dropout, bias)
        else:
            width = self.out.in_features
            weight_q, weight_kv = torch.split(weight, [width, 2 * width])
            bias_q, bias_kv = torch.split(qkv_bias, [width, 2 * width])
            queries = linear(read.take(hidden), weight_q, bias_q)
            keys_values = linear(hidden, weight_kv, bias_kv)
            mixed = self._mixed_read(queries, keys_values, layout, read, dropout, bias)
        merged: Float[Tensor, "*rows2 H"] = self.out(mixed)
        return merged

    def _mixed(
        self,
        projected: Float[Tensor, "*rows three_H"],
        layout: Layout,
        dropout: float,
        bias: Bias | None,
    ) -> Float[Tensor, "*rows H"]:
        """Attends from all rows, with concatenated queries, keys and values."""
        q, k, v = by_heads(projected, self.num_heads)
        if bias is None and reads_packed(q, layout, layout):
            return packed_attention(q, k, v, layout, layout, dropout).flatten(-2)
        if bias is not None and self.bias_kernel and reads_bias_once(q, dropout):
            by_head = projected.view(*projected.shape[:-1], 3, self.num_heads, -1)
            rows, mask = layout.rows_of_cells(), layout.mask_of_grid()
            return biased_attention(by_head, bias, rows, mask).flatten(-2)
        q, k, v = by_heads(layout.unpack(projected), self.num_heads)
        mixed = attention(q, k, v, layout.key_mask, dropout, bias)
        return layout.pack(mixed.flatten(2))

    def _mixed_read(
        self,
        queries: Float[Tensor, "K H"],
        keys_values: Float[Tensor, "*rows two_H"],
        layout: Layout,
        read: ReadRows,
        dropout: float,
        bias: Bias | None,
    ) -> Float[Tensor, "K H"]:
        """Attends from the rows that are read to the keys and values of all rows."""
        (q,), (k, v) = (
            by_heads(queries, self.num_heads, 1),
            by_heads(keys_values, self.num_heads, 2),
        )
        if bias is None and reads_packed(q, read.layout, layout):
            return packed_attention(q, k, v, read.layout, layout, dropout).flatten(-2)
        if bias is not None and self.bias_kernel and reads_bias_once(q, dropout):
            by_head = keys_values.view(*keys_values.shape[:-1], 2, self.num_heads, -1)
            query_rows, key_rows = read.layout.rows_of_cells(), layout.rows_of_cells()
            assert query_rows is not None  # rows that are read are packed
            mask = layout.mask_of_grid()
            mixed = biased_attention_from(q, by_head, bias, query_rows, key_rows, mask)
            return mixed.flatten(-2)
        (q,) = by_heads(read.narrow.unpack(queries), self.num_heads, 1)
        k, v = by_heads(layout.unpack(keys_values), self.num_heads, 2)
        bias = None if bias is None else bias[:, : q.shape[1]]
        mixed = attention(q, k, v, layout.key_mask, dropout, bias)
        return read.narrow.pack(mixed.flatten(2))

    def _bias(self) -> Float[Tensor, " three_H"]:
        if self.query_bias is None or self.value_bias is None:
            return self.qkv.bias
        return torch.cat([self.query_bias, torch.zeros_like(self.query_bias), self.value_bias])


class CoAttention(nn.Module):
    """Attends from each stream to the other (ViLBERT, arXiv:1908.02265, sec. 3.1, fig. 2b).

    Both directions read the unchanged input streams. ``dropouts`` are applied to the attention
    weights of the first and of the second stream's queries.
    """

    def __init__(
        self,
        first_width: int,
        second_width: int,
        width: int,
        num_heads: int,
        dropouts: tuple[float, float],
    ) -> None:
        super().__init__()
        _check_heads(width, num_heads)
        self.num_heads = num_heads
        self.dropouts = dropouts
        self.first_qkv = Linear(first_width, 3 * width)
        self.second_qkv = Linear(second_width, 3 * width)

    def forward(
        self,
        first: Float[Tensor, "*rows1 H1"],
        first_layout: Layout,
        second: Float[Tensor, "*rows2 H2"],
        second_layout: Layout,
        projected: Projected = (None, None),
    ) -> tuple[Float[Tensor, "*rows1 width"], Float[Tensor, "*rows2 width"]]:
        """Returns the values that each position of one stream reads from the other, for both
        streams.

        ``projected``: the outputs of `first_qkv` and `second_qkv`, if already computed.
        """
        first_projected, second_projected = projected
        first_projected = self.first_qkv(first) if first_projected is None else first_projected
        second_projected = self.second_qkv(second) if second_projected is None else second_projected
        rates = self.dropouts if self.training else (0.0, 0.0)
        (q1, k1, v1), (q2, k2, v2) = (
            by_heads(rows, self.num_heads) for rows in (first_projected, second_projected)
        )
        if reads_packed(q1, first_layout, second_layout):
            to_first = packed_attention(q1, k2, v2, first_layout, second_layout, rates[0])
            to_second = packed_attention(q2, k1, v1, second_layout, first_layout, rates[1])
            return to_first.flatten(-2), to_second.flatten(-2)
        q1, k1, v1 = by_heads(first_layout.unpack(first_projected), self.num_heads)
        q2, k2, v2 = by_heads(second_layout.unpack(second_projected), self.num_heads)
        to_first = attention(q1, k2, v2, second_layout.key_mask, rates[0])
        to_second = attention(q2, k1, v1, first_layout.key_mask, rates[1])
        return first_layout.pack(to_first.flatten(2)), second_layout.pack(to_second.flatten(2))


def reads_packed(rows: Float[Tensor, "*rows heads d"], queries: Layout, keys: Layout) -> bool:
    """Returns whether `packed_attention` supports rows: off the CPU, in half precision,
    unmasked.
    """
    width = rows.shape[-1]
    return (
        rows.device.type != "cpu"
        and HAS_FLASH
        and rows.dtype in HALF
        and width <= LARGEST_HEAD
        and width % HEAD_STEP == 0
        and _lies_together(queries)
        and _lies_together(keys)
        and (queries.real is not None or keys.real is not None)
    )


def _lies_together(layout: Layout) -> bool:
    """Returns whether each sequence's rows are contiguous, without padding between them."""
    return layout.starts is not None or (layout.real is None and layout.key_mask is None)


def packed_attention(
    q: Float[Tensor, "*rows heads d"],
    k: Float[Tensor, "*rows2 heads d"],
    v: Float[Tensor, "*rows2 heads d"],
    queries: Layout,
    keys: Layout,
    dropout: float,
) -> Float[Tensor, "*rows heads d"]:
    """Computes softmax(q k^T / sqrt(d)) v, each query over the keys of its sequence.

    Scaled dot-product attention (Vaswani et al., arXiv:1706.03762, eq. 1); ``dropout`` applies to
    the weights. `reads_packed` must accept the rows, which may be those of a grid without padding.
    """
    mixed = _flash(
        q.reshape(-1, *q.shape[-2:]),
        k.reshape(-1, *k.shape[-2:]),
        v.reshape(-1, *v.shape[-2:]),
        _starts(queries, q),
        _starts(keys, k),
        queries.shape[1],
        keys.shape[1],
        dropout,
    )
    return mixed.view(q.shape)


def _flash(
    q: Float[Tensor, "L heads d"],
    k: Float[Tensor, "M heads d"],
    v: Float[Tensor, "M heads d"],
    query_starts: Int32[Tensor, " B1"],
    key_starts: Int32[Tensor, " B1"],
    longest_query: int,
    longest_key: int,
    dropout: float,
) -> Float[Tensor, "L heads d"]:
    """Calls the kernel directly, because PyTorch's public function for such rows has no dropout."""
    causal = debug = False
    mixed: Tensor = torch.ops.aten._flash_attention_forward(
        q, k, v, query_starts, key_starts, longest_query, longest_key, dropout, causal, debug
    )[0]
    return mixed


def _probe_flash() -> bool:
    """Calls the kernel on the meta device, which checks its arguments and computes no numbers."""
    rows = torch.empty(4, 1, HEAD_STEP, dtype=torch.bfloat16, device="meta")
    starts = torch.empty(3, dtype=torch.int32, device="meta")
    return _flash(rows, rows, rows, starts, starts, 2, 2, 0.0).shape == rows.shape


# Checked at import, because code traced by torch.compile must not check it.
HAS_FLASH = works(_probe_flash)


def _starts(layout: Layout, like: Tensor) -> Int32[Tensor, " B1"]:
    if layout.starts is not None:
        return layout.starts
    sequences, columns = layout.shape
    return first_cells((sequences + 1, columns), like).int()
