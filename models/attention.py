"""Multi-head attention.  B sequences, N positions, H width; rows in either layout (`Layout`)."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vlmill.models.cpu_attention import cpu_attention
from vlmill.models.layout import Kept, Layout
from vlmill.models.linear import Linear, linear

Bias = Float[Tensor, "heads N N"]


def _check_heads(width: int, num_heads: int) -> None:
    if width % num_heads:
        raise ValueError(
            f"width {width} is no multiple of num_heads {num_heads}; each head takes an "
            "equal share of the width"
        )


def attend(
    q: Float[Tensor, "B N heads d"],
    k: Float[Tensor, "B M heads d"],
    v: Float[Tensor, "B M heads d"],
    keys: Layout,
    dropout: float,
    bias: Float[Tensor, "heads N M"] | None = None,
) -> Float[Tensor, "B N H"]:
    """softmax(q k^T / sqrt(d) + bias) v over the real keys, heads side by side again.

    Scaled dot-product attention (Vaswani et al., arXiv:1706.03762, eq. 1). The key mask is
    broadcast over heads and queries; only a ``bias`` makes it a full matrix, outside training.
    """
    learned = bias is not None and bias.requires_grad and torch.is_grad_enabled()
    on_cpu = q.device.type == "cpu" and not torch.compiler.is_compiling()
    plain = q.dtype == torch.float32 or torch.is_autocast_enabled("cpu")
    if on_cpu and plain and (dropout > 0 or learned):
        return cpu_attention(q, k, v, keys.key_mask, dropout, bias).to(v.dtype).flatten(2)
    mask = None if keys.key_mask is None else keys.key_mask[:, None, None, :]
    if bias is not None:
        full = bias.to(q.dtype)[None]
        mask = full if mask is None else full.masked_fill(~mask, float("-inf"))
    q, k, v = (rows.transpose(1, 2) for rows in (q, k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    return mixed.transpose(1, 2).flatten(2)


def by_heads(
    projected: Float[Tensor, "B N parts_H"], num_heads: int, parts: int = 3
) -> tuple[Float[Tensor, "B N heads d"], ...]:
    """Query, key and value, or some ``parts`` of these, from a product that made them at once."""
    return projected.view(*projected.shape[:2], parts, num_heads, -1).unbind(2)


class SelfAttention(nn.Module):
    """Scaled dot-product self-attention (Vaswani et al., arXiv:1706.03762, sec. 3.2).

    Query, key and value come from one product; ``dropout`` falls on the attention weights.
    ``key_bias=False`` leaves the key's part of the bias out, as BEiT does: a constant for each
    query, which the softmax cancels.
    """

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
        kept: Kept | None = None,
    ) -> Float[Tensor, "*rows2 H"]:
        """Attend from every position to the real ones of its sequence.

        ``bias`` is added to the scores. With ``kept`` only these rows come back. A sequence needs
        one real position at least: without any key the softmax is undefined.
        """
        weight, own_bias = self.qkv.weight, self._bias()
        dropout = self.dropout if self.training else 0.0
        if kept is None:
            projected = layout.unpack(linear(hidden, weight, own_bias))
            q, k, v = by_heads(projected, self.num_heads)
            mixed = layout.pack(attend(q, k, v, layout, dropout, bias))
        else:
            width = self.out.in_features
            of_q, of_kv = torch.split(weight, [width, 2 * width])
            bias_q, bias_kv = torch.split(own_bias, [width, 2 * width])
            queries = kept.narrow.unpack(linear(kept.take(hidden), of_q, bias_q))
            (q,) = by_heads(queries, self.num_heads, 1)
            k, v = by_heads(layout.unpack(linear(hidden, of_kv, bias_kv)), self.num_heads, 2)
            bias = None if bias is None else bias[:, : queries.shape[1]]
            mixed = kept.narrow.pack(attend(q, k, v, layout, dropout, bias))
        merged: Float[Tensor, "*rows2 H"] = self.out(mixed)
        return merged

    def _bias(self) -> Float[Tensor, " three_H"]:
        if self.query_bias is None or self.value_bias is None:
            return self.qkv.bias
        return torch.cat([self.query_bias, torch.zeros_like(self.query_bias), self.value_bias])


class CoAttention(nn.Module):
    """Attention from either stream to the other (ViLBERT, arXiv:1908.02265, sec. 3.1, fig. 2b).

    Both directions read the streams as they came. ``dropouts`` fall on the attention weights of
    the first and of the second stream's queries.
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
    ) -> tuple[Float[Tensor, "*rows1 width"], Float[Tensor, "*rows2 width"]]:
        """What each position of the first stream takes from the second, and the reverse."""
        q1, k1, v1 = by_heads(first_layout.unpack(self.first_qkv(first)), self.num_heads)
        q2, k2, v2 = by_heads(second_layout.unpack(self.second_qkv(second)), self.num_heads)
        rates = self.dropouts if self.training else (0.0, 0.0)
        to_first = attend(q1, k2, v2, second_layout, rates[0])
        to_second = attend(q2, k1, v1, first_layout, rates[1])
        return first_layout.pack(to_first), second_layout.pack(to_second)
