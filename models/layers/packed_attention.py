"""Computes attention on GPUs without a mask for padding in memory, or with a learned bias.

B sequences, h heads, d width of a head, L and M packed rows of queries and keys; N queries and M
keys of a grid.

With a mask of real keys PyTorch's attention cannot use its fastest kernel. Packed rows need no
mask: the kernel gets the start of each sequence. A learned bias needs a kernel with a gradient for
it.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int32
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from vlmill.models.layers.packing import Layout
from vlmill.models.positions import first_cells
from vlmill.models.probes import works

HALF = (torch.float16, torch.bfloat16)  # the dtypes of the kernels, with float32 sums
LARGEST_HEAD = 256
HEAD_STEP = 8  # widths of heads, and of rows of a bias in memory, are multiples of it


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


def adds_bias(q: Float[Tensor, "B heads N d"]) -> bool:
    """Returns whether `biased_attention` should add a bias: on CUDA, in half precision."""
    return q.device.type == "cuda" and q.dtype in HALF


def biased_attention(
    q: Float[Tensor, "B heads N d"],
    k: Float[Tensor, "B heads M d"],
    v: Float[Tensor, "B heads M d"],
    key_mask: Bool[Tensor, "B M"] | None,
    bias: Float[Tensor, "heads N M"],
) -> Float[Tensor, "B heads N d"]:
    """Computes softmax(q k^T / sqrt(d) + bias) v over real keys; ``bias`` may be learned.

    Uses PyTorch's kernel with a gradient for the bias (Rabe and Staats, arXiv:2112.05682). It reads
    the bias of each pair and head from memory, at most B heads N M numbers of 16 bits.
    """
    keys = bias.shape[-1]
    # The kernel needs rows of whole steps in memory; otherwise PyTorch would copy the bias of all
    # pairs. The padding is never 0 columns: that would be a separate graph when torch.compile
    # traces.
    more = HEAD_STEP - keys % HEAD_STEP
    added = F.pad(bias.to(q.dtype), (0, more))
    if key_mask is not None:
        real = F.pad(key_mask, (0, more))[:, None, None, :]
        added = torch.where(real, added, float("-inf"))
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=added[..., :keys])
    return mixed
