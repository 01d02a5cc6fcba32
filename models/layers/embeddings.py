"""Embeds words, regions and patches.

B pairs, T tokens, R regions, D feature width, H width; S pixels and n patches a side, N = n * n.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vlmill.models.inputs import check_dtype
from vlmill.models.layers.blocks import layer_norm
from vlmill.models.layers.operators import Dropout, Linear
from vlmill.models.layers.packing import Layout
from vlmill.models.positions import Positions


class TextEmbedding(nn.Module):
    """Embeds text like BERT: LN(word + segment + position), then dropout; positions count from 0.

    ``padding_id`` is a word whose row gets no gradient from lookups. Without ``add_positions`` the
    position table exists, as in published checkpoints, but is not used. With ``fixed_first_rows``
    position 0 and segment 0 get no gradient.
    """

    def __init__(
        self,
        vocab_size: int,
        num_positions: int,
        num_segments: int,
        width: int,
        dropout: float,
        padding_id: int | None = None,
        *,
        add_positions: bool = True,
        fixed_first_rows: bool = False,
    ) -> None:
        super().__init__()
        self.word = nn.Embedding(vocab_size, width)
        self.position = nn.Embedding(num_positions, width)
        self.segment = nn.Embedding(num_segments, width)
        self.norm = layer_norm(width)
        self.dropout = Dropout(dropout)
        self.padding_id = padding_id
        self.add_positions = add_positions
        self.position.weight.requires_grad_(add_positions)
        self.fixed_first_rows = fixed_first_rows

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        segments: Int[Tensor, "B T"] | int = 0,
        inserted: Float[Tensor, "B K H"] | None = None,
    ) -> Float[Tensor, "B N H"]:
        """Embeds word-piece ids; ``segments`` has one id per token, or one for all.

        ``inserted`` rows come after the first position, before the norm, and have no position or
        segment: N = T + K, otherwise N = T.
        """
        num_positions = self.position.num_embeddings
        if tokens.shape[1] > num_positions:
            raise ValueError(
                f"tokens has {tokens.shape[1]} positions, the position table {num_positions}; "
                "cut the texts or build the model with more positions"
            )
        words = F.embedding(tokens, self.word.weight, padding_idx=self.padding_id)
        position, segment = self.position.weight, self.segment.weight
        if self.fixed_first_rows:
            position, segment = (torch.cat([t[:1].detach(), t[1:]]) for t in (position, segment))
        summed = words + segment[segments]
        if self.add_positions:
            summed = summed + position[: tokens.shape[1]]
        if inserted is not None:
            summed = torch.cat([summed[:, :1], inserted, summed[:, 1:]], dim=1)
        embedded: Float[Tensor, "B N H"] = self.dropout(self.norm(summed))
        return embedded


class RegionEmbedding(nn.Module):
    """Computes LN(W_v feature + W_c location + offset), then dropout.

    ``pre_norm`` applies a layer norm to each projection before the sum, as UNITER does
    (arXiv:1909.11740, sec. 3.1).
    """

    def __init__(
        self, region_width: int, width: int, dropout: float, pre_norm: bool = False
    ) -> None:
        super().__init__()
        self.feature = Linear(region_width, width)
        self.location = Linear(5, width)
        self.feature_norm = layer_norm(width) if pre_norm else nn.Identity()
        self.location_norm = layer_norm(width) if pre_norm else nn.Identity()
        self.norm = layer_norm(width)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        features: Float[Tensor, "B R D"],
        locations: Float[Tensor, "B R 5"],
        offset: Float[Tensor, " H"] | None = None,
        real: Positions | None = None,
    ) -> Float[Tensor, "B R H"]:
        """Embeds regions; all share ``offset`` (segment, dummy position).

        ``real``: the positions of regions in the flattened [B R]; the others are padding, which
        becomes zeros and is not computed.
        """
        if features.shape[-1] != self.feature.in_features:
            raise ValueError(
                f"region_features are {features.shape[-1]} wide, the model takes "
                f"{self.feature.in_features}; set region_width or use that detector's regions"
            )
        check_dtype("region_features", features, self.feature.weight)
        check_dtype("region_locations", locations, self.location.weight)
        layout = Layout((features.shape[0], features.shape[1]), real=real)
        rows, row_locations = layout.pack(features), layout.pack(locations)
        return layout.unpack(self.join(self.feature(rows), row_locations, offset))

    def join(
        self,
        projected: Float[Tensor, "*rows H"],
        locations: Float[Tensor, "*rows 5"],
        offset: Float[Tensor, " H"] | None = None,
    ) -> Float[Tensor, "*rows H"]:
        """Embeds features that are already projected, for example by another layer."""
        summed = self.feature_norm(projected) + self.location_norm(self.location(locations))
        if offset is not None:
            summed = summed + offset
        embedded: Float[Tensor, "*rows H"] = self.dropout(self.norm(summed))
        return embedded

    @torch.no_grad()
    def standardise(self, mean: Float[Tensor, " D"], std: Float[Tensor, " D"]) -> None:
        """Changes a new projection as if features had mean 0 and variance 1, given their
        statistics.

        It can still compute the same functions. Features after a ReLU are close to a common mean,
        so without this images initially differ only a little.
        """
        self.feature.weight.div_(std)
        self.feature.bias.sub_(self.feature.weight @ mean)


class PatchEmbedding(nn.Module):
    """Maps each P x P patch linearly, row by row, after a learned class token.

    As ViT (arXiv:2010.11929, sec. 3.1), with learned positions if ``positions``.
    """

    def __init__(
        self, image_size: int, patch_size: int, width: int, *, positions: bool = False
    ) -> None:
        super().__init__()
        self.image_size = image_size
        self.side = image_size // patch_size
        self.projection = nn.Conv2d(3, width, patch_size, stride=patch_size)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.zeros(1, self.side**2 + 1, width)) if positions else None

    def forward(
        self,
        pixels: Float[Tensor, "B 3 S S"],
        masked: Bool[Tensor, "B N"] | None = None,
        mask_token: Float[Tensor, " H"] | None = None,
    ) -> Float[Tensor, "B N1 H"]:
        """Embeds images of exactly ``image_size``; ``masked`` patches become ``mask_token``.

        Raises ValueError for another size.
        """
        shape = (3, self.image_size, self.image_size)
        if tuple(pixels.shape[1:]) != shape:
            raise ValueError(
                f"pixels has shape {tuple(pixels.shape)}, expected [images, 3, image_size="
                f"{self.image_size}, {self.image_size}]; resize them or build the model with "
                "that image_size"
            )
        check_dtype("pixels", pixels, self.projection.weight)
        patches = self.projection(pixels).flatten(2).transpose(1, 2)
        if masked is not None and mask_token is not None:
            patches = torch.where(masked[..., None], mask_token.to(patches.dtype), patches)
        embedded = torch.cat([self.class_token.expand(pixels.shape[0], -1, -1), patches], dim=1)
        return embedded if self.position is None else embedded + self.position
