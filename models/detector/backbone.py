"""Builds the ResNet stages of a detector: the stages for full images and the one for regions."""

from typing import Any, cast

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vlmill.models.detector.config import BLOCKS, DetectorConfig
from vlmill.models.detector.resnet import Norm, PreActivationBottleneck, Stem, resnet_stage

# The feature maps that a detector's proposals and regions share, each half as large as the one
# before: res4 alone (C4), p2 to p6 of a pyramid, or the last stage alone for a grid.
Maps = tuple[Float[Tensor, "N _ _ _"], ...]
PYRAMID_STAGES = (2, 3, 4, 5)


class Backbone(nn.Module):
    """Computes the feature maps of full images."""

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        self.stem = Stem(
            config.stem_channels,
            make_norm(config, 1),
            ceil_pool=config.stem_ceil_pool,
            normalise_input=config.pre_activation,
        )
        self.res2 = backbone_stage(config, 2)
        self.res3 = backbone_stage(config, 3)
        self.res4 = backbone_stage(config, 4)
        self.stages: tuple[str, ...] = ("res2", "res3", "res4")
        if config.last_stage == 5:
            self.res5 = backbone_stage(config, 5)
            self.stages += ("res5",)
        self.has_pyramid = bool(config.fpn_channels) and config.regions != "grid"
        if self.has_pyramid:
            for number in PYRAMID_STAGES:
                channels, width = config.res2_channels * 2 ** (number - 2), config.fpn_channels
                self.add_module(f"fpn_lateral{number}", nn.Conv2d(channels, width, 1))
                self.add_module(f"fpn_output{number}", nn.Conv2d(width, width, 3, padding=1))

    def forward(self, image: Float[Tensor, "N 3 H W"]) -> Maps:
        stages = self.stage_maps(image)
        return self.pyramid(stages) if self.has_pyramid else stages[-1:]

    def stage_maps(self, image: Float[Tensor, "N 3 H W"]) -> Maps:
        """Returns the output of each stage from res2 on."""
        x, maps = self.stem(image), []
        for name in self.stages:
            x = self.get_submodule(name)(x)
            maps.append(x)
        return tuple(maps)

    def pyramid(self, stages: Maps) -> Maps:
        """Returns p2 to p6 (Lin et al. 2017, arXiv:1612.03144). Coarser maps are added to finer
        maps of exactly twice their size; p6 has every second cell of p5.
        """
        maps: list[Tensor] = []
        merged: Tensor | None = None
        for number, stage in reversed(list(zip(PYRAMID_STAGES, stages, strict=True))):
            lateral: Tensor = self.get_submodule(f"fpn_lateral{number}")(stage)
            if merged is not None:
                lateral = lateral + F.interpolate(merged, scale_factor=2.0, mode="nearest")
            merged = lateral
            maps.insert(0, self.get_submodule(f"fpn_output{number}")(merged))
        return (*maps, F.max_pool2d(maps[-1], 1, stride=2))


def make_norm(config: DetectorConfig, number: int) -> Norm:
    """Returns the normalisation of stage ``number`` (the stem is 1): fixed in frozen stages."""
    frozen = number <= config.frozen_stages
    return Norm(eps=config.norm_eps, kind="frozen" if frozen else config.batch_norm)


def backbone_stage(config: DetectorConfig, number: int) -> nn.Sequential:
    """Returns stage 2 to 5 of the configured ResNet; res2 keeps the stem's resolution."""
    factor = 2 ** (number - 2)
    before = config.stem_channels if number == 2 else config.res2_channels * factor // 2
    blocks = BLOCKS[config.depth][number - 2]
    widths = (before, config.res2_width * factor, config.res2_channels * factor)
    norm = make_norm(config, number)
    options: dict[str, Any] = {
        "stride": {2: 1, 5: config.res5_stride}.get(number, 2),
        "dilation": config.res5_dilation if number == 5 else 1,
        "stride_in_1x1": config.stride_in_1x1,
    }
    if config.pre_activation:
        stage = resnet_stage(blocks, *widths, norm, block=PreActivationBottleneck, **options)
        cast(PreActivationBottleneck, stage[0]).activated = number == 5
        return stage
    options |= {"groups": config.groups, "deformable": number in config.deformable_stages}
    return resnet_stage(blocks, *widths, norm, **options)
