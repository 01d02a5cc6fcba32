"""Transformer layers are built and initialised here.

B sequences, N positions, H width; rows in either layout (`Layout`).
"""

import functools
from collections.abc import Callable, Iterable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vlmill.models.config_checks import ACTIVATIONS, INIT_STD, check_activation
from vlmill.models.layers.attention import Bias, CoAttention, SelfAttention
from vlmill.models.layers.operators import Dropout, Linear
from vlmill.models.layers.packing import Layout, ReadRows

LAYER_NORM_EPS = 1e-12  # BERT's; PyTorch's default of 1e-5 changes published models' outputs


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """Gives the function of that name. Raises ValueError for an unknown one."""
    check_activation(name)
    function: Callable[[Tensor], Tensor] = getattr(F, ACTIVATIONS[name])
    return function


def layer_norm(width: int, eps: float = LAYER_NORM_EPS) -> nn.LayerNorm:
    """Builds a layer normalisation, with BERT's epsilon unless said otherwise."""
    return nn.LayerNorm(width, eps=eps)


class FeedForward(nn.Module):
    """Computes two linear layers with an activation between."""

    def __init__(self, width: int, intermediate_width: int, act: str = "gelu") -> None:
        super().__init__()
        self.up = Linear(width, intermediate_width)
        self.down = Linear(intermediate_width, width)
        self.act = activation(act)

    def forward(self, hidden: Float[Tensor, "*rows H"]) -> Float[Tensor, "*rows H"]:
        """Applies both layers to each position by itself."""
        mixed: Float[Tensor, "*rows H"] = self.down(self.act(self.up(hidden)))
        return mixed


class FeedForwardSublayer(nn.Module):
    """Computes the second half of BERT's layer, x = LN(x + dropout(feed_forward(x)))."""

    def __init__(
        self, width: int, intermediate_width: int, dropout: float, act: str = "gelu"
    ) -> None:
        super().__init__()
        self.feed_forward = FeedForward(width, intermediate_width, act)
        self.norm = layer_norm(width)
        self.dropout = Dropout(dropout)

    def forward(self, hidden: Float[Tensor, "*rows H"]) -> Float[Tensor, "*rows H"]:
        """Applies the half to each position by itself."""
        mixed: Float[Tensor, "*rows H"] = self.norm(
            hidden + self.dropout(self.feed_forward(hidden))
        )
        return mixed


class PostNormBlock(nn.Module):
    """Computes BERT's layer: x = LN(x + attention(x)), then x = LN(x + feed_forward(x))."""

    def __init__(
        self,
        width: int,
        num_heads: int,
        intermediate_width: int,
        dropout: float,
        attention_dropout: float,
        act: str = "gelu",
    ) -> None:
        super().__init__()
        self.attention = SelfAttention(width, num_heads, attention_dropout)
        self.norm = layer_norm(width)
        self.dropout = Dropout(dropout)
        self.feed_forward = FeedForwardSublayer(width, intermediate_width, dropout, act)

    def forward(
        self, hidden: Float[Tensor, "*rows H"], layout: Layout, read: ReadRows | None = None
    ) -> Float[Tensor, "*rows2 H"]:
        """Runs the layer over the positions of ``layout``, for ``read`` rows only if given."""
        attended = self.dropout(self.attention(hidden, layout, read=read))
        if read is not None:
            hidden = read.take(hidden)
        mixed: Float[Tensor, "*rows2 H"] = self.feed_forward(self.norm(hidden + attended))
        return mixed


def post_norm_layers(
    num_layers: int,
    width: int,
    num_heads: int,
    intermediate_width: int,
    *,
    dropout: float,
    attention_dropout: float,
    act: str = "gelu",
) -> nn.ModuleList:
    """Builds a stack of `PostNormBlock`s of one size, for `run_layers`."""
    return nn.ModuleList(
        PostNormBlock(width, num_heads, intermediate_width, dropout, attention_dropout, act)
        for _ in range(num_layers)
    )


def run_layers(
    layers: Iterable[nn.Module],
    hidden: Float[Tensor, "*rows H"],
    layout: Layout,
) -> Float[Tensor, "B N H"]:
    """Runs `PostNormBlock`s in turn and brings rows back into the grid.

    Only the places that ``layout.read`` names are sure to come back, others may be zeros: where
    losses read few of them, most of the last layer need not be computed.
    """
    stack = list(layers)
    read = layout.read_rows() if stack else None
    for layer in stack if read is None else stack[:-1]:
        hidden = layer(hidden, layout)
    if read is None:
        return layout.unpack(hidden)
    return read.layout.unpack(stack[-1](hidden, layout, read))


class CoAttentionBlock(nn.Module):
    """Computes co-attention, then each stream's own feed-forward part (ViLBERT, fig. 2b).

    The streams are numbered; ``widths``, ``intermediate_widths``, ``dropouts`` (on what is added
    to a stream), ``attention_dropouts`` (of its queries' weights) and ``acts`` are theirs.
    """

    def __init__(
        self,
        widths: tuple[int, int],
        attention_width: int,
        num_heads: int,
        intermediate_widths: tuple[int, int],
        dropouts: tuple[float, float],
        attention_dropouts: tuple[float, float],
        acts: tuple[str, str] = ("gelu", "gelu"),
    ) -> None:
        super().__init__()
        self.attention = CoAttention(*widths, attention_width, num_heads, attention_dropouts)
        self.outs = nn.ModuleList(Linear(attention_width, width) for width in widths)
        self.norms = nn.ModuleList(layer_norm(width) for width in widths)
        self.dropouts = nn.ModuleList(Dropout(rate) for rate in dropouts)
        self.feed_forwards = nn.ModuleList(
            FeedForwardSublayer(width, intermediate, rate, act)
            for width, intermediate, rate, act in zip(
                widths, intermediate_widths, dropouts, acts, strict=True
            )
        )

    def forward(
        self,
        first: Float[Tensor, "*rows1 H1"],
        first_layout: Layout,
        second: Float[Tensor, "*rows2 H2"],
        second_layout: Layout,
    ) -> tuple[Float[Tensor, "*rows1 H1"], Float[Tensor, "*rows2 H2"]]:
        """Updates both streams, each from what the other was before the layer."""
        taken = self.attention(first, first_layout, second, second_layout)
        mixed = []
        for number, (stream, context) in enumerate(zip((first, second), taken, strict=True)):
            added = self.dropouts[number](self.outs[number](context))
            mixed.append(self.feed_forwards[number](self.norms[number](stream + added)))
        return mixed[0], mixed[1]


class DropPath(nn.Module):
    """Leaves a residual branch out for whole sequences (stochastic depth, arXiv:1603.09382).

    In training a sequence keeps the branch with probability 1 - ``rate``, scaled by its inverse.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(
        self, hidden: Float[Tensor, "*rows H"], layout: Layout, rows: slice
    ) -> Float[Tensor, "*factors 1"] | None:
        """Draws what a branch is multiplied with, by sequence or by row; None for nothing.

        ``hidden`` holds the ``rows`` (along the last but one dimension) of ``layout``.
        """
        if not self.training or self.rate == 0.0:
            return None
        keep = hidden.new_empty(layout.shape[0]).bernoulli_(1.0 - self.rate) / (1.0 - self.rate)
        of_rows = layout.sequence_of_rows()
        return keep[:, None, None] if of_rows is None else keep[of_rows[rows], None]


Route = Sequence[tuple[str, int]]  # experts with the number of rows that each takes, in order


class PreNormBlock(nn.Module):
    """Computes x = x + g1 * attention(LN(x)), then x = x + g2 * expert(LN(x)), with drop path.

    The layer of BEiT (arXiv:2106.08254) and, with several ``experts``, of VLMo (arXiv:2111.02358,
    sec. 3.2, eq. 1 and 2): attention, its norm and the layer scales g1, g2 are shared, and each
    expert has a layer norm and a feed-forward part of its own. ``layer_scale`` is the initial
    value of g1 and g2; None leaves them out.
    """

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
        """Runs the layer; ``route`` names each stretch's expert, ``bias`` as in attention.

        Drop path draws once for attention and once for each stretch. With ``read`` only these rows
        come back, and ``route`` is theirs.
        """
        attended = self.attention(self.attention_norm(hidden), layout, bias, read)
        if read is not None:
            hidden, layout = read.take(hidden), read.layout
        drop = self.drop_path(attended, layout, slice(None))
        hidden = _add_scaled(hidden, attended, self.attention_scale, drop)
        lengths, stretches, start = [length for _, length in route], [], 0
        for (name, length), part in zip(route, torch.split(hidden, lengths, dim=-2), strict=True):
            mixed = self.experts[name](self.expert_norms[name](part))
            drop = self.drop_path(mixed, layout, slice(start, start + length))
            stretches.append(_add_scaled(part, mixed, self.expert_scale, drop))
            start += length
        return stretches[0] if len(stretches) == 1 else torch.cat(stretches, dim=-2)


def _layer_scale(width: int, start: float | None) -> nn.Parameter | None:
    return None if start is None else nn.Parameter(torch.full((width,), start))


def _add_scaled(
    hidden: Tensor, branch: Tensor, scale: Tensor | None, drop: Tensor | None
) -> Tensor:
    """Adds branch * scale * drop in one pass over the rows, as far as there are factors."""
    factors = [factor for factor in (scale, drop) if factor is not None]
    if not factors:
        return hidden + branch
    return torch.addcmul(hidden, branch, functools.reduce(torch.mul, factors))


def init_bert(module: nn.Module, std: float = INIT_STD) -> None:
    """Initialises ``module`` and all it holds as BERT does.

    Weights of linear layers and tables from N(0, std^2), biases 0, layer norms 1 and 0.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=std)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
            nn.init.zeros_(part.bias)
