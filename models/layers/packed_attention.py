"""Attention on GPUs skips padding, or adds a learned bias, without a mask in memory.

B sequences, h heads, d width of a head, L and M packed rows of queries and keys; N queries and M
keys of a grid.

A mask of real keys keeps PyTorch's attention from its fastest kernel, and a bias together with one
is a matrix [B, h, N, M] a layer. Packed rows need no mask: the kernel is told where each sequence
begins. A bias is added, and padding skipped, inside a kernel that FlexAttention generates.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int32
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from vlmill.models.layers.packing import Layout
from vlmill.models.places import first_cells

HALF = (torch.float16, torch.bfloat16)  # what the kernels compute in, with float32 sums
LARGEST_HEAD = 256
HEAD_STEP = 8  # widths of heads are multiples of it


def reads_packed(rows: Float[Tensor, "*rows heads d"], queries: Layout, keys: Layout) -> bool:
    """Says if `packed_attention` takes these rows: off the CPU, in half precision, unmasked."""
    width = rows.shape[-1]
    return (
        rows.device.type != "cpu"
        and rows.dtype in HALF
        and width <= LARGEST_HEAD
        and width % HEAD_STEP == 0
        and _lies_together(queries)
        and _lies_together(keys)
        and (queries.real is not None or keys.real is not None)
    )


def _lies_together(layout: Layout) -> bool:
    """Says whether each sequence's rows lie side by side, without padding between them."""
    return layout.starts is not None or (layout.real is None and layout.key_mask is None)


def packed_attention(
    q: Float[Tensor, "*rows heads d"],
    k: Float[Tensor, "*rows2 heads d"],
    v: Float[Tensor, "*rows2 heads d"],
    queries: Layout,
    keys: Layout,
    dropout: float,
) -> Float[Tensor, "*rows heads d"]:
    """Computes softmax(q k^T / sqrt(d)) v, each query over its own sequence's keys.

    Scaled dot-product attention (Vaswani et al., arXiv:1706.03762, eq. 1); ``dropout`` falls on the
    weights. Rows as `reads_packed` wants them, those of a grid without padding included.
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
    """Calls the kernel, below PyTorch's public function for such rows, which knows no dropout."""
    causal = debug = False
    mixed: Tensor = torch.ops.aten._flash_attention_forward(
        q,
        k,
        v,
        query_starts,
        key_starts,
        longest_query,
        longest_key,
        dropout,
        causal,
        debug,
    )[0]
    return mixed


def _starts(layout: Layout, like: Tensor) -> Int32[Tensor, " B1"]:
    if layout.starts is not None:
        return layout.starts
    sequences, columns = layout.shape
    return first_cells((sequences + 1, columns), like).int()


def adds_bias(q: Float[Tensor, "B heads N d"]) -> bool:
    """Says if `biased_attention` is the way to add a bias: on CUDA, in half precision."""
    return q.device.type == "cuda" and q.dtype in HALF


def biased_attention(
    q: Float[Tensor, "B heads N d"],
    k: Float[Tensor, "B heads M d"],
    v: Float[Tensor, "B heads M d"],
    key_mask: Bool[Tensor, "B M"] | None,
    bias: Float[Tensor, "heads N M"],
) -> Float[Tensor, "B heads N d"]:
    """Computes softmax(q k^T / sqrt(d) + bias) v over real keys; ``bias`` may be learned.

    FlexAttention (Dong et al., arXiv:2412.05496). Outside torch.compile it is compiled by itself:
    uncompiled it would hold all scores.
    """

    def score(score: Tensor, b: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        biased = score + bias[head, query, key]
        if key_mask is None:
            return biased
        return torch.where(key_mask[b, key], biased, -float("inf"))

    attend = _traced if torch.compiler.is_compiling() else _compiled()
    mixed: Float[Tensor, "B heads N d"] = attend(q, k, v, score_mod=score)
    return mixed


_traced: Callable[..., Any] = flex_attention


@functools.cache
def _compiled() -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(flex_attention)
    return compiled
