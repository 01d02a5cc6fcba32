"""Trains VL-BERT from pixels with its Fast R-CNN (arXiv:1908.08530, sec. 3.4).

B samples, R regions, H x W pixels, P x P cells of a region.
"""

import dataclasses
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vlmill.models.inputs import VLInputs
from vlmill.models.positions import Positions
from vlmill.models.vlbert.config import (
    TaskConfig,
    VlBertEndToEndConfig,
    VlBertRefcocoConfig,
    VlBertVcrConfig,
    VlBertVqaConfig,
)
from vlmill.models.vlbert.model import VlBert
from vlmill.models.vlbert.region_cnn import ImageRegions, RegionCnn
from vlmill.models.vlbert.tasks import ChoiceInputs, VlBertRefcoco, VlBertVcr, VlBertVqa


def build_vlbert(config: TaskConfig) -> VlBert | VlBertVqa | VlBertRefcoco | VlBertVcr:
    """Builds the model that a configuration describes."""
    if isinstance(config, VlBertVqaConfig):
        return VlBertVqa(config)
    if isinstance(config, VlBertRefcocoConfig):
        return VlBertRefcoco(config)
    if isinstance(config, VlBertVcrConfig):
        return VlBertVcr(config)
    return VlBert(config)


def without_pixels(
    images: Float[Tensor, "B 3 H W"],
    boxes: Float[Tensor, "B R 4"],
    masked_regions: Bool[Tensor, "B R"],
) -> Float[Tensor, "B 3 H W"]:
    """Sets the masked regions' pixels of normalised images to 0, the mean colour.

    Boxes' corners are truncated to integers; both ends belong to the box. This happens before
    features are computed, so that no other region contains the pixels of masked regions (sec. 3.3).
    """
    rows = torch.arange(images.shape[2], device=images.device)
    columns = torch.arange(images.shape[3], device=images.device)
    left, top, right, bottom = boxes.trunc()[..., None].unbind(dim=2)
    inside_y = (rows >= top) & (rows <= bottom) & masked_regions[..., None]
    inside_x = (columns >= left) & (columns <= right)
    blank = (inside_y.float().transpose(1, 2) @ inside_x.float()) > 0
    return images.masked_fill(blank[:, None], 0.0)


class VlBertEndToEnd(nn.Module):
    """Holds the region network and, on top, VL-BERT for pretraining or for a task."""

    def __init__(self, config: VlBertEndToEndConfig) -> None:
        super().__init__()
        self.config = config
        self.cnn = RegionCnn(config.cnn)
        self.model = build_vlbert(config.model)

    def forward(
        self,
        regions: ImageRegions,
        texts: VLInputs | ChoiceInputs,
        *arguments: Any,
        real: Positions | None = None,
        pack: bool = True,
        **options: Any,
    ) -> Any:
        """Runs ``model`` on ``texts`` with features and locations from the images.

        ``texts`` has the same regions; its own features, which may have width 0, and locations are
        replaced. The pixels of regions that it masks are set to 0. ``real`` are the indices that
        ``regions.region_mask`` marks, if they are known. ``arguments`` and ``options`` go to the
        model.
        """
        images, masked = regions.images, texts.masked_regions
        if masked is not None:
            images = without_pixels(images, regions.boxes, masked)
        features = self.cnn(
            images, regions.boxes, regions.region_mask, regions.instance_masks, real
        )
        filled = dataclasses.replace(
            texts,
            region_features=features,
            region_locations=regions.locations(),
            region_mask=regions.region_mask,
        )
        return self.model(filled, *arguments, pack=pack, **options)


class VlBertRefcocoEndToEnd(VlBertEndToEnd):
    """Holds the region network with RefCOCO+'s head (sec. 4.2; released code)."""


class VlBertVcrEndToEnd(VlBertEndToEnd):
    """Holds the region network with VCR's heads (sec. 4.2; released code)."""


def build_end_to_end(config: VlBertEndToEndConfig) -> VlBertEndToEnd:
    """Builds the region network and, on top, the model that a configuration describes."""
    if isinstance(config.model, VlBertRefcocoConfig):
        return VlBertRefcocoEndToEnd(config)
    if isinstance(config.model, VlBertVcrConfig):
        return VlBertVcrEndToEnd(config)
    return VlBertEndToEnd(config)
