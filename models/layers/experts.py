"""Builds layers with a feed-forward expert for each modality (VLMo), or with one expert (BEiT).

B sequences, N positions, H width; rows in either layout (`Layout`).
"""

import functools
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vlmill.models.layers.attention import Bias, SelfAttention
from vlmill.models.layers.blocks import FeedForward, layer_norm
from vlmill.models.layers.gpu.residual import add_scaled, sums_by_kernel
from vlmill.models.layers.packing import Layout, ReadRows


class DropPath(nn.Module):
    """Drops a residual branch for whole sequences (stochastic depth, arXiv:1603.09382).

    In training a sequence keeps the branch with probability 1 - ``rate``, scaled by its inverse.
    The probability is a tensor, because torch.compile treats a number as a constant and would make
    a graph for each layer, since all layers have different rates.
    """

    keep_probability: Tensor

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.drops = rate > 0
        self.register_buffer("keep_probability", torch.tensor(1.0 - rate), persistent=False)

    def forward(
        self, hidden: Float[Tensor, "*rows H"], layout: Layout, rows: slice
    ) -> Float[Tensor, "*factors 1"] | None:
        """Returns random factors for a branch, by sequence or by row; None if nothing is dropped.

        ``hidden`` holds the ``rows`` (along the last but one dimension) of ``layout``.
        """
        if not self.training or not self.drops:
            return None
        probabilities = self.keep_probability.expand(layout.shape[0])
        keep = (torch.bernoulli(probabilities) / self.keep_probability).to(hidden.dtype)
        sequence_index = layout.sequence_of_rows()
        return keep[:, None, None] if sequence_index is None else keep[sequence_index[rows], None]


Route = Sequence[tuple[str, int]]  # experts and the number of rows of each, in order


class PreNormBlock(nn.Module):
    """Computes x = x + g1 * attention(LN(x)), then x = x + g2 * expert(LN(x)), with drop path.

    The layer of BEiT (arXiv:2106.08254) and, with several ``experts``, of VLMo (arXiv:2111.02358,
    sec. 3.2, eq. 1 and 2): attention, its norm and the layer scales g1, g2 are shared, and each
    expert has its own layer norm and feed-forward part. ``layer_scale`` is the initial value of g1
    and g2; with None they are omitted. With ``residual_kernel`` set to True the gradients of both
    sums come from vlmill's kernel if it supports the rows (`sums_by_kernel`).
    """

    residual_kernel = False

    def __init__(
        self,
        width: int,
        num_heads: int,
        intermediate_width: int,
        *,
        experts: Sequence[str],
        layer_scale: float | None,
        drop_path: float = 0.0,
        eps: float = 1e-6,
        key_bias: bool = False,
    ) -> None:
        super().__init__()
        self.attention_norm = layer_norm(width, eps)
        self.attention = SelfAttention(width, num_heads, key_bias=key_bias)
        self.expert_norms = nn.ModuleDict({name: layer_norm(width, eps) for name in experts})
        self.experts = nn.ModuleDict(
            {name: FeedForward(width, intermediate_width) for name in experts}
        )
        self.drop_path = DropPath(drop_path)
        self.attention_scale = _layer_scale(width, layer_scale)
        self.expert_scale = _layer_scale(width, layer_scale)

    def forward(
        self,
        hidden: Float[Tensor, "*rows H"],
        layout: Layout,
        route: Route,
        bias: Bias | None = None,
        read: ReadRows | None = None,
    ) -> Float[Tensor, "*rows2 H"]:
        """Runs the layer; ``route`` lists the experts of consecutive rows, ``bias`` is for
        attention.

        Drop path draws once for attention and once for each expert. With ``read`` only these rows
        are returned, and ``route`` refers to them.
        """
        attended = self.attention(self.attention_norm(hidden), layout, bias, read)
        if read is not None:
            hidden, layout = read.take(hidden), read.layout
        drop = self.drop_path(attended, layout, slice(None))
        hidden = self._add(hidden, attended, self.attention_scale, drop)
        lengths, stretches, start = [length for _, length in route], [], 0
        for (name, length), part in zip(route, torch.split(hidden, lengths, dim=-2), strict=True):
            mixed = self.experts[name](self.expert_norms[name](part))
            drop = self.drop_path(mixed, layout, slice(start, start + length))
            stretches.append(self._add(part, mixed, self.expert_scale, drop))
            start += length
        return stretches[0] if len(stretches) == 1 else torch.cat(stretches, dim=-2)

    def _add(
        self, hidden: Tensor, branch: Tensor, scale: Tensor | None, drop: Tensor | None
    ) -> Tensor:
        if self.residual_kernel and scale is not None and sums_by_kernel(branch):
            return add_scaled(hidden, branch, scale, drop)
        return _add_scaled(hidden, branch, scale, drop)


def _layer_scale(width: int, start: float | None) -> nn.Parameter | None:
    return None if start is None else nn.Parameter(torch.full((width,), start))


def _add_scaled(
    hidden: Tensor, branch: Tensor, scale: Tensor | None, drop: Tensor | None
) -> Tensor:
    """Adds branch * scale * drop in one pass over the rows; absent factors are skipped."""
    factors = [factor for factor in (scale, drop) if factor is not None]
    if not factors:
        return hidden + branch
    return torch.addcmul(hidden, branch, functools.reduce(torch.mul, factors))
