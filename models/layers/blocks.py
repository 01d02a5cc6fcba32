"""Builds and initialises transformer layers.

B sequences, N positions, H width; rows in either layout (`Layout`).
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vlmill.models.config_checks import ACTIVATIONS, INIT_STD, check_activation
from vlmill.models.layers.attention import CoAttention, Projected, SelfAttention
from vlmill.models.layers.operators import Dropout, LayerNorm, Linear, gelu_linear
from vlmill.models.layers.packing import Layout, ReadRows

LAYER_NORM_EPS = 1e-12  # BERT's; PyTorch's default of 1e-5 changes published models' outputs


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """Returns the activation function of a name. Raises ValueError for an unknown name."""
    check_activation(name)
    function: Callable[[Tensor], Tensor] = getattr(F, ACTIVATIONS[name])
    return function


def layer_norm(width: int, eps: float = LAYER_NORM_EPS) -> nn.LayerNorm:
    """Builds a layer normalisation, with BERT's epsilon by default."""
    return LayerNorm(width, eps=eps)


class FeedForward(nn.Module):
    """Computes two linear layers with an activation between them."""

    def __init__(self, width: int, intermediate_width: int, act: str = "gelu") -> None:
        super().__init__()
        self.up = Linear(width, intermediate_width)
        self.down = Linear(intermediate_width, width)
        self.act = activation(act)

    def forward(self, hidden: Float[Tensor, "*rows H"]) -> Float[Tensor, "*rows H"]:
        """Applies both layers to each position separately."""
        if self.act is F.gelu:
            between = gelu_linear(hidden, self.up.weight, self.up.bias)
        else:
            between = self.act(self.up(hidden))
        mixed: Float[Tensor, "*rows H"] = self.down(between)
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
        """Applies the half to each position separately."""
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
    """Builds a stack of `PostNormBlock`s of the same size, for `run_layers`."""
    return nn.ModuleList(
        PostNormBlock(width, num_heads, intermediate_width, dropout, attention_dropout, act)
        for _ in range(num_layers)
    )


def config_layers(config: Any, num_layers: int, prefix: str = "") -> nn.ModuleList:
    """Builds a stack with the sizes and rates of a configuration, whose fields begin with
    ``prefix``; the width is the text's if images have none of their own.
    """
    return post_norm_layers(
        num_layers,
        getattr(config, f"{prefix}width", config.width),
        getattr(config, f"{prefix}num_heads"),
        getattr(config, f"{prefix}intermediate_width"),
        dropout=getattr(config, f"{prefix}dropout"),
        attention_dropout=getattr(config, f"{prefix}attention_dropout"),
        act=getattr(config, f"{prefix}act", "gelu"),
    )


def run_layers(
    layers: Iterable[nn.Module], hidden: Float[Tensor, "*rows H"], layout: Layout
) -> Float[Tensor, "B N H"]:
    """Runs `PostNormBlock`s in sequence and converts rows back to the grid.

    Only the positions in ``layout.read`` are guaranteed to be returned, others may be zeros: if
    losses read few of them, most of the last layer need not be computed.
    """
    stack = list(layers)
    read = layout.read_rows() if stack else None
    for layer in stack if read is None else stack[:-1]:
        hidden = layer(hidden, layout)
    if read is None:
        return layout.unpack(hidden)
    return read.layout.unpack(stack[-1](hidden, layout, read))


def init_bert(module: nn.Module, std: float = INIT_STD) -> None:
    """Initialises ``module`` and its submodules as BERT does.

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


class CoAttentionBlock(nn.Module):
    """Computes co-attention, then each stream's feed-forward part (ViLBERT, fig. 2b).

    The streams are numbered; each has one item of ``widths``, ``intermediate_widths``, ``dropouts``
    (of values added to it), ``attention_dropouts`` (of its queries' weights) and ``acts``.
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
        projected: Projected = (None, None),
    ) -> tuple[Float[Tensor, "*rows1 H1"], Float[Tensor, "*rows2 H2"]]:
        """Updates both streams, each from the other's state before the layer.

        ``projected``: the streams' queries, keys and values, if already computed.
        """
        contexts = self.attention(first, first_layout, second, second_layout, projected)
        mixed = []
        for number, (stream, context) in enumerate(zip((first, second), contexts, strict=True)):
            added = self.dropouts[number](self.outs[number](context))
            mixed.append(self.feed_forwards[number](self.norms[number](stream + added)))
        return mixed[0], mixed[1]
