"""Builds heads with parameters. N labelled positions, H width, V vocabulary, C outputs."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vlmill.models.layers.blocks import activation, layer_norm
from vlmill.models.layers.operators import Linear, linear


class Transform(nn.Module):
    """Computes BERT's transform before a decoder: dense, activation, layer norm if ``norm``.

    ``out_width``: the output width O (default: H).
    """

    def __init__(
        self, width: int, act: str = "gelu", *, norm: bool = True, out_width: int | None = None
    ) -> None:
        super().__init__()
        out_width = out_width or width
        self.dense = Linear(width, out_width)
        self.norm = layer_norm(out_width) if norm else nn.Identity()
        self.act = activation(act)

    def forward(self, hidden: Float[Tensor, "*N H"]) -> Float[Tensor, "*N O"]:
        """Applies the transform to each position separately."""
        mixed: Float[Tensor, "*N O"] = self.norm(self.act(self.dense(hidden)))
        return mixed


class MlmHead(nn.Module):
    """Computes BERT's masked-word head: transform, the word table as decoder, a bias.

    The table is an argument and is not stored, so a state dict contains it once.
    """

    def __init__(self, width: int, vocab_size: int, act: str = "gelu") -> None:
        super().__init__()
        self.transform = Transform(width, act)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(
        self, hidden: Float[Tensor, "*N H"], word_table: Float[Tensor, "V H"]
    ) -> Float[Tensor, "*N V"]:
        """Returns logits over the vocabulary."""
        return linear(self.transform(hidden), word_table, self.bias)


class RegionHead(nn.Module):
    """Computes a transform and a linear decoder: classes or features of masked regions."""

    def __init__(self, width: int, outputs: int, act: str = "gelu", *, norm: bool = True) -> None:
        super().__init__()
        self.transform = Transform(width, act, norm=norm)
        self.decoder = Linear(width, outputs)

    def forward(self, hidden: Float[Tensor, "*N H"]) -> Float[Tensor, "*N C"]:
        """Returns logits or features, one row for each region."""
        outputs: Float[Tensor, "*N C"] = self.decoder(self.transform(hidden))
        return outputs


class Pooler(nn.Module):
    """Computes a dense layer with activation over one position's states; BERT's is ``tanh``."""

    def __init__(self, width: int, pooled_width: int | None = None, act: str = "tanh") -> None:
        super().__init__()
        self.dense = Linear(width, pooled_width or width)
        self.act = torch.tanh if act == "tanh" else activation(act)

    def forward(self, first: Float[Tensor, "B H"]) -> Float[Tensor, "B C"]:
        """Pools the first position's hidden states."""
        return self.act(self.dense(first))


class Classifier(nn.Module):
    """Computes a dense layer, activation, layer norm and linear decoder."""

    def __init__(self, width: int, hidden_width: int, outputs: int, act: str = "gelu") -> None:
        super().__init__()
        self.transform = Transform(width, act, out_width=hidden_width)
        self.decoder = nn.Linear(hidden_width, outputs)

    def forward(self, hidden: Float[Tensor, "*N H"]) -> Float[Tensor, "*N C"]:
        """Returns logits, one row for each of ``hidden``."""
        logits: Float[Tensor, "*N C"] = self.decoder(self.transform(hidden))
        return logits
