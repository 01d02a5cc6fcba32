"""Computes ViLBERT's co-attention layer: two streams that attend to each other.

H1, H2 widths of the streams; rows in either layout (`Layout`).
"""

from jaxtyping import Float
from torch import Tensor, nn

from vlmill.models.layers.attention import CoAttention, Projected
from vlmill.models.layers.blocks import FeedForwardSublayer, layer_norm
from vlmill.models.layers.operators import Dropout, Linear
from vlmill.models.layers.packing import Layout


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
