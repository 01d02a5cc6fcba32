"""Computes the vectors of regions, VL-BERT's elements (arXiv:1908.08530, sec. 3.2).

D a feature's width, V a region vector's, H the width of the encoder, G of the geometry embedding.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vlmill.models.checks import check_dtype
from vlmill.models.layers.blocks import layer_norm
from vlmill.models.layers.operators import Dropout, Linear
from vlmill.models.vlbert.config import Geometry, VlBertConfig

LONGEST_WAVE = 1000.0
PERCENT = 100.0


def box_numbers(
    locations: Float[Tensor, "*rows 5"], geometry: Geometry = "centre"
) -> Float[Tensor, "*rows 4"]:
    """Returns four numbers for the position of a box, in hundredths of the image's sides.

    ``locations`` as in `VLInputs`: corners as fractions, and area.
    """
    corners = locations[..., :4]
    if geometry == "corners":
        return corners * PERCENT
    low, high = corners[..., :2], corners[..., 2:]
    return torch.cat([(low + high) / 2, high - low], dim=-1) * PERCENT


def geometry_embedding(
    numbers: Float[Tensor, "*rows 4"], num_wavelengths: int = 256
) -> Float[Tensor, "*rows G"]:
    """Returns sines, then cosines, of numbers at wavelengths 1000^(j / J) (sec. 3.2, code).

    Gives G = 4 * 2J values: for each number J sines and J cosines, J = ``num_wavelengths``.
    """
    steps = torch.arange(num_wavelengths, dtype=numbers.dtype, device=numbers.device)
    angles = numbers[..., None] / LONGEST_WAVE ** (steps / num_wavelengths)
    return torch.cat([angles.sin(), angles.cos()], dim=-1).flatten(-2)


class RegionVectors(nn.Module):
    """Computes r = ReLU(W dropout([geometry; appearance])) of each region (sec. 3.2)."""

    def __init__(self, config: VlBertConfig) -> None:
        super().__init__()
        self.config = config
        self.geometry_width = 8 * config.num_wavelengths
        self.dropout = Dropout(config.dropout)
        self.projection = Linear(self.geometry_width + config.region_width, config.vector_width)

    def forward(
        self, features: Float[Tensor, "*rows D"], locations: Float[Tensor, "*rows 5"]
    ) -> Float[Tensor, "*rows V"]:
        """Computes the vector of each region."""
        config = self.config
        check_dtype("region_features", features, self.projection.weight)
        geometry = geometry_embedding(
            box_numbers(locations, config.geometry), config.num_wavelengths
        )
        joined = torch.cat([geometry.to(features.dtype), features], dim=-1)
        return F.relu(self.projection(self.dropout(joined)))


class VisualInput(nn.Module):
    """Projects a visual vector to an element's width (V to H, if they differ) and scales it.

    The scale is a layer norm's gain or one learned factor, initially ``start``.
    """

    def __init__(self, config: VlBertConfig, start: float) -> None:
        super().__init__()
        vector, width = config.vector_width, config.width
        self.start = start
        self.projection = Linear(vector, width) if vector != width else None
        self.norm = layer_norm(width) if config.visual_norm else None
        self.scale = None if config.visual_norm else nn.Parameter(torch.tensor(start))

    def restart(self, start: float) -> None:
        """Sets the scale to ``start`` again."""
        scale = self.scale if self.norm is None else self.norm.weight
        assert scale is not None
        nn.init.constant_(scale, start)

    def forward(self, vectors: Float[Tensor, "*rows V"]) -> Float[Tensor, "*rows H"]:
        """Projects and scales each vector."""
        x: Tensor = vectors if self.projection is None else self.projection(vectors)
        if self.scale is not None:
            return x * self.scale
        assert self.norm is not None
        normed: Float[Tensor, "*rows H"] = self.norm(x)
        return normed
