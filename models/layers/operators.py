"""Selects the implementation of linear layers, dropout and attention for each device.

B sequences, N queries, M keys, h heads, d width of a head; K inputs and J outputs of a layer.

Only this module selects implementations. ``cpu`` contains those that are faster than PyTorch on a
CPU: they compute the same numbers, and dropout has the same distribution. Without that folder
PyTorch computes everything. On a GPU a learned bias needs a kernel with a gradient for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

HAS_CPU = find_spec("vlmill.models.layers.cpu") is not None
if HAS_CPU:
    from vlmill.models.layers.cpu.attention import (
        attends_faster,
        cpu_attention,
        cpu_dropout,
        drops_faster,
    )
    from vlmill.models.layers.cpu.linear import cache_packed_weights, is_faster, onednn_linear

HALF = (torch.float16, torch.bfloat16)  # the dtypes of GPUs' kernels, with float32 sums
HEAD_STEP = 8  # widths of heads, and of rows of a bias in memory, are multiples of it


def linear(
    hidden: Float[Tensor, "*rows K"],
    weight: Float[Tensor, "J K"],
    bias: Float[Tensor, " J"] | None = None,
) -> Float[Tensor, "*rows J"]:
    """Computes x W^T + b, row by row."""
    if HAS_CPU and is_faster(hidden, weight):
        return onednn_linear(hidden, weight, bias)
    return F.linear(hidden, weight, bias)


def gelu_linear(
    hidden: Float[Tensor, "*rows K"], weight: Float[Tensor, "J K"], bias: Float[Tensor, " J"]
) -> Float[Tensor, "*rows J"]:
    """Computes GELU(x W^T + b), in one operator if no gradient is needed."""
    if HAS_CPU and not torch.is_grad_enabled() and is_faster(hidden, weight):
        return onednn_linear(hidden, weight, bias, "gelu")
    return F.gelu(linear(hidden, weight, bias))


@contextmanager
def unchanging_weights(num_sequences: int) -> Iterator[None]:
    """Declares that no weight changes while ``num_sequences`` are computed without gradients.

    For many sequences a CPU converts weights to its products' layout once; memory then has both.
    """
    with cache_packed_weights(num_sequences) if HAS_CPU else nullcontext():
        yield


class Linear(nn.Linear):
    """Applies a linear layer by `linear`."""

    def forward(self, hidden: Float[Tensor, "*rows K"]) -> Float[Tensor, "*rows J"]:
        """Computes x W^T + b, row by row."""
        return linear(hidden, self.weight, self.bias)


class LayerNorm(nn.LayerNorm):
    """Normalises over the last dimension; with ``gives_half``, the output has autocast's dtype.

    Autocast computes layer norms in float32 and returns float32, which later products cast. The
    statistics are in float32 in either case.
    """

    gives_half = False

    def forward(self, hidden: Float[Tensor, "*rows H"]) -> Float[Tensor, "*rows H"]:
        """Normalises each row."""
        device = hidden.device.type
        if not self.gives_half or not torch.is_autocast_enabled(device):
            return super().forward(hidden)
        dtype = torch.get_autocast_dtype(device)
        with torch.autocast(device, enabled=False):
            return F.layer_norm(
                hidden.to(dtype),
                self.normalized_shape,
                self.weight.to(dtype),
                self.bias.to(dtype),
                self.eps,
            )


class Dropout(nn.Module):
    """Sets each number to 0 with probability ``rate`` in training, else divides it by 1 - ``rate``.

    Raises ValueError unless 0 <= ``rate`` < 1.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"dropout rate {rate}: expected a share from 0 to below 1")
        self.rate = rate

    def forward(self, hidden: Tensor) -> Tensor:
        """Applies dropout to a tensor of any shape; returns it unchanged in evaluation."""
        if not self.training:
            return hidden
        if HAS_CPU and drops_faster(hidden):
            return cpu_dropout(hidden, self.rate)
        return F.dropout(hidden, self.rate)


def attention(
    q: Float[Tensor, "B N h d"],
    k: Float[Tensor, "B M h d"],
    v: Float[Tensor, "B M h d"],
    key_mask: Bool[Tensor, "B M"] | None = None,
    dropout: float = 0.0,
    bias: Float[Tensor, "h N M"] | None = None,
) -> Float[Tensor, "B N h d"]:
    """Computes dropout(softmax(q k^T / sqrt(d) + bias)) v over the keys that are real.

    Scaled dot-product attention (Vaswani et al., arXiv:1706.03762, eq. 1). The mask is broadcast
    over heads and queries; only a ``bias`` that is neither trained nor in half precision on a GPU
    makes it a full matrix.
    """
    if HAS_CPU and attends_faster(q, dropout, bias):
        return cpu_attention(q, k, v, key_mask, dropout, bias).to(v.dtype)
    mask = None if key_mask is None else key_mask[:, None, None, :]
    q, k, v = (rows.transpose(1, 2) for rows in (q, k, v))
    if bias is not None and adds_bias(q) and dropout == 0:
        return biased_attention(q, k, v, key_mask, bias).transpose(1, 2)
    if bias is not None:
        full = bias.to(q.dtype)[None]
        mask = full if mask is None else full.masked_fill(~mask, float("-inf"))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    return mixed.transpose(1, 2)


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
