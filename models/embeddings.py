"""Input embeddings.  B pairs, T tokens, R regions, D feature width, H width."""

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vlmill.models.blocks import layer_norm


class TextEmbedding(nn.Module):
    """BERT's: LN(word + segment + position), then dropout; positions count from 0.

    ``padding_id`` names a word whose row gets no gradient from being looked up.
    """

    def __init__(
        self,
        vocab_size: int,
        num_positions: int,
        num_segments: int,
        width: int,
        dropout: float,
        padding_id: int | None = None,
    ) -> None:
        super().__init__()
        self.word = nn.Embedding(vocab_size, width)
        self.position = nn.Embedding(num_positions, width)
        self.segment = nn.Embedding(num_segments, width)
        self.norm = layer_norm(width)
        self.dropout = nn.Dropout(dropout)
        self.padding_id = padding_id

    def forward(
        self, tokens: Int[Tensor, "B T"], segments: Int[Tensor, "B T"] | int = 0
    ) -> Float[Tensor, "B T H"]:
        """Embed word-piece ids; ``segments`` of each, or one of all."""
        num_positions = self.position.num_embeddings
        if tokens.shape[1] > num_positions:
            raise ValueError(
                f"tokens has {tokens.shape[1]} positions, the position table {num_positions}; "
                "cut the texts or build the model with more positions"
            )
        words = F.embedding(tokens, self.word.weight, padding_idx=self.padding_id)
        positions = self.position.weight[: tokens.shape[1]]
        summed = words + self.segment.weight[segments] + positions
        embedded: Float[Tensor, "B T H"] = self.dropout(self.norm(summed))
        return embedded


class RegionEmbedding(nn.Module):
    """LN(W_v feature + W_c location + offset), then dropout.

    ``pre_norm`` puts a layer norm on either projection before the sum, as UNITER does
    (arXiv:1909.11740, sec. 3.1).
    """

    def __init__(
        self, region_width: int, width: int, dropout: float, pre_norm: bool = False
    ) -> None:
        super().__init__()
        self.feature = nn.Linear(region_width, width)
        self.location = nn.Linear(5, width)
        self.feature_norm = layer_norm(width) if pre_norm else nn.Identity()
        self.location_norm = layer_norm(width) if pre_norm else nn.Identity()
        self.norm = layer_norm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        features: Float[Tensor, "B R D"],
        locations: Float[Tensor, "B R 5"],
        offset: Float[Tensor, " H"] | None = None,
    ) -> Float[Tensor, "B R H"]:
        """Embed regions; ``offset`` is what all of them share (segment, dummy position)."""
        if features.shape[-1] != self.feature.in_features:
            raise ValueError(
                f"region_features are {features.shape[-1]} wide, the model takes "
                f"{self.feature.in_features}; set region_width or use that detector's regions"
            )
        summed = self.feature_norm(self.feature(features))
        summed = summed + self.location_norm(self.location(locations))
        if offset is not None:
            summed = summed + offset
        embedded: Float[Tensor, "B R H"] = self.dropout(self.norm(summed))
        return embedded
