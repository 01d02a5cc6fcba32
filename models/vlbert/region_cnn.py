"""Defines VL-BERT's trainable Fast R-CNN (released code): appearance of given boxes from pixels.

B images, R regions, L real regions of all images, H x W pixels, C channels, G x E cells of the
feature map, P x P cells of a region, D a feature's width.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vlmill.models.detector.operators import roi_align
from vlmill.models.detector.resnet import Norm, Stem, resnet_stage
from vlmill.models.positions import Positions, find_positions
from vlmill.models.vlbert.config import EXPANSION, RegionCnnConfig

STRIDE = 16
# With parameters and counters, as in the checkpoints; RegionCnn keeps them frozen.
NORM = Norm(kind="trained")


@dataclass(frozen=True, kw_only=True)
class ImageRegions:
    """Holds images with boxes.

    images: normalised, padded on the right and at the bottom. sizes: (width, height) in pixels
    without padding. boxes: (x1, y1, x2, y2) in those pixels, the full image (0, 0, W - 1, H - 1)
    first. instance_masks: objects' outlines, rasterised to the cells of their boxes (VCR).

    Raises ValueError if the shapes do not fit together.
    """

    images: Float[Tensor, "B 3 H W"]
    sizes: Float[Tensor, "B 2"]
    boxes: Float[Tensor, "B R 4"]
    region_mask: Bool[Tensor, "B R"]
    instance_masks: Float[Tensor, "B R P P"] | None = None

    def __post_init__(self) -> None:
        shape = tuple(self.boxes.shape)
        shapes: dict[str, tuple[int, ...]] = {
            "boxes": (len(self.images), *shape[1:2], 4),
            "sizes": (len(self.images), 2),
            "region_mask": shape[:2],
        }
        for name, want in shapes.items():
            if (actual := tuple(getattr(self, name).shape)) != want:
                raise ValueError(
                    f"{name} has shape {actual}, expected {want} with images "
                    f"{tuple(self.images.shape)}"
                )
        if self.instance_masks is not None and tuple(self.instance_masks.shape[:2]) != shape[:2]:
            raise ValueError(
                f"instance_masks has shape {tuple(self.instance_masks.shape)}, boxes {shape}"
            )

    def locations(self) -> Float[Tensor, "B R 5"]:
        """Returns locations in the form of `VLInputs`: corners as fractions, and area."""
        corners = self.boxes / self.sizes.repeat(1, 2)[:, None]
        corners = corners.masked_fill(~self.region_mask[..., None], 0.0)
        area = (corners[..., 2:] - corners[..., :2]).prod(dim=-1, keepdim=True)
        return torch.cat([corners, area], dim=-1)


def _stage(config: RegionCnnConfig, number: int) -> nn.Sequential:
    before = config.stem_channels if number == 2 else config.widths[number - 3] * EXPANSION
    halves = number in (3, 4) or (number == 5 and not config.dilated)
    return resnet_stage(
        config.blocks[number - 2],
        before,
        config.widths[number - 2],
        config.widths[number - 2] * EXPANSION,
        NORM,
        stride=2 if halves else 1,
        dilation=2 if number == 5 and config.dilated else 1,
        stride_in_1x1=config.stride_in_1x1,
    )


class RegionCnn(nn.Module):
    """Runs stem to res4 over the image, RoIAlign, res5 over each region, and a mean.

    Batch normalisation is frozen, in training too; its parameters are counted, not trained.
    """

    def __init__(self, config: RegionCnnConfig) -> None:
        super().__init__()
        self.config = config
        self.stem = Stem(config.stem_channels, NORM, ceil_pool=False)
        self.res2 = _stage(config, 2)
        self.res3 = _stage(config, 3)
        self.res4 = _stage(config, 4)
        self.res5 = _stage(config, 5)
        self._freeze()

    def _freeze(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.requires_grad_(False).eval()
        for number in range(1, self.config.frozen_stages + 1):
            name = "stem" if number == 1 else f"res{number}"
            self.get_submodule(name).requires_grad_(False)

    def train(self, mode: bool = True) -> "RegionCnn":
        """Sets the mode; normalisation keeps its recorded statistics."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self

    def feature_map(self, images: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B C G E"]:
        """Returns res4 of the images, stride 16."""
        features: Tensor = self.res4(self.res3(self.res2(self.stem(images))))
        return features

    def pool(
        self, features: Float[Tensor, "B C G E"], boxes: Float[Tensor, "B R 4"], real: Positions
    ) -> Float[Tensor, "L C P P"]:
        """Returns the cells of the regions at these indices, by RoIAlign without its half-pixel
        shift and with one sample in each bin.
        """
        images = (real // boxes.shape[1]).to(boxes.dtype)
        rois = torch.cat([images[:, None], boxes.flatten(0, 1)[real]], dim=1)
        size = self.config.pool_size
        return roi_align(features, rois, size, 1 / STRIDE, sampling_ratio=1, aligned=False)

    def forward(
        self,
        images: Float[Tensor, "B 3 H W"],
        boxes: Float[Tensor, "B R 4"],
        region_mask: Bool[Tensor, "B R"],
        instance_masks: Float[Tensor, "B R P P"] | None = None,
        real: Positions | None = None,
    ) -> Float[Tensor, "B R D"]:
        """Returns the appearance of the boxes (in pixels of ``images``), zeros at padding.

        ``instance_masks`` set cells of res5 to 0 before the mean, which is over all cells (VCR).
        ``real``: the indices that ``region_mask`` marks; without them the call waits for the
        device.
        """
        if len({len(images), len(boxes), len(region_mask)}) != 1:
            raise ValueError(
                f"images, boxes, region_mask hold {len(images)}, {len(boxes)}, "
                f"{len(region_mask)} images; expected as many each"
            )
        real = find_positions(region_mask) if real is None else real
        cells: Tensor = self.res5(self.pool(self.feature_map(images), boxes, real))
        if instance_masks is not None:
            if instance_masks.shape[-2:] != cells.shape[-2:]:
                raise ValueError(
                    f"instance_masks has {tuple(instance_masks.shape[-2:])} cells, regions have "
                    f"{tuple(cells.shape[-2:])}"
                )
            cells = cells * instance_masks.flatten(0, 1)[real][:, None]
        means = cells.mean(dim=(2, 3))
        appearance = means.new_zeros(region_mask.numel(), means.shape[1]).index_copy(0, real, means)
        return appearance.view(*region_mask.shape, -1)
