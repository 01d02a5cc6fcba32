"""Transformer layers and their initialisation.  B sequences, N positions, H width."""

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vlmill.models.attention import SelfAttention

LAYER_NORM_EPS = 1e-12  # BERT's; PyTorch's default of 1e-5 changes published models' outputs
INIT_STD = 0.02  # BERT, arXiv:1810.04805, released code


def layer_norm(width: int) -> nn.LayerNorm:
    """A layer normalisation as BERT has it."""
    return nn.LayerNorm(width, eps=LAYER_NORM_EPS)


class FeedForward(nn.Module):
    """Two linear layers with GELU (the exact one, by the error function) between."""

    def __init__(self, width: int, intermediate_width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, intermediate_width)
        self.down = nn.Linear(intermediate_width, width)

    def forward(self, hidden: Float[Tensor, "*N H"]) -> Float[Tensor, "*N H"]:
        """Apply to each position by itself."""
        mixed: Float[Tensor, "*N H"] = self.down(F.gelu(self.up(hidden)))
        return mixed


class PostNormBlock(nn.Module):
    """BERT's layer: x = LN(x + attention(x)), then x = LN(x + feed_forward(x))."""

    def __init__(
        self,
        width: int,
        num_heads: int,
        intermediate_width: int,
        dropout: float,
        attention_dropout: float,
    ) -> None:
        super().__init__()
        self.attention = SelfAttention(width, num_heads, attention_dropout)
        self.attention_norm = layer_norm(width)
        self.feed_forward = FeedForward(width, intermediate_width)
        self.feed_forward_norm = layer_norm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, hidden: Float[Tensor, "B N H"], key_mask: Bool[Tensor, "B N"] | None
    ) -> Float[Tensor, "B N H"]:
        """One layer; ``key_mask`` as in `SelfAttention`."""
        hidden = self.attention_norm(hidden + self.dropout(self.attention(hidden, key_mask)))
        hidden = self.feed_forward_norm(hidden + self.dropout(self.feed_forward(hidden)))
        return hidden


def init_bert(module: nn.Module, std: float = INIT_STD) -> None:
    """Initialise ``module`` and all it holds as BERT does.

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
