"""Heads with parameters.  N labelled positions, H width, V vocabulary."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vlmill.models.blocks import layer_norm


class MlmHead(nn.Module):
    """BERT's masked-word head: dense, GELU, LN, then the word table as decoder, plus a bias.

    The table is passed in and not kept, so a state dict holds it once.
    """

    def __init__(self, width: int, vocab_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.norm = layer_norm(width)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(
        self, hidden: Float[Tensor, "N H"], word_table: Float[Tensor, "V H"]
    ) -> Float[Tensor, "N V"]:
        """Logits over the vocabulary."""
        return F.linear(self.norm(F.gelu(self.dense(hidden))), word_table, self.bias)


class Pooler(nn.Module):
    """BERT's pooler of the first position: dense, tanh."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)

    def forward(self, first: Float[Tensor, "B H"]) -> Float[Tensor, "B H"]:
        """Pool the first position's hidden states."""
        return torch.tanh(self.dense(first))
