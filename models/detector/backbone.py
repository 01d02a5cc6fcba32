"""The ResNet's stages in a detector: those of the full image, and the one of its regions."""

from jaxtyping import Float
from torch import Tensor, nn

from vlmill.models.detector.config import BLOCKS, DetectorConfig
from vlmill.models.detector.resnet import Norm, Stem, pre_activation_stage, resnet_stage


class Backbone(nn.Module):
    """Computes stem to res4: one feature map of stride 16."""

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

    def forward(self, image: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N C G V"]:
        features: Tensor = self.res4(self.res3(self.res2(self.stem(image))))
        return features


def make_norm(config: DetectorConfig, number: int) -> Norm:
    """Returns the normalisation of stage ``number`` (the stem is 1): constant in frozen stages."""
    frozen = number <= config.frozen_stages
    return Norm(eps=config.norm_eps, kind="frozen" if frozen else config.batch_norm)


def backbone_stage(config: DetectorConfig, number: int) -> nn.Sequential:
    """Stage 2 to 5 of the configured ResNet; res2 keeps the stem's resolution."""
    factor = 2 ** (number - 2)
    before = config.stem_channels if number == 2 else config.res2_channels * factor // 2
    blocks = BLOCKS[config.depth][number - 2]
    widths = (before, config.res2_width * factor, config.res2_channels * factor)
    stride = {2: 1, 5: config.res5_stride}.get(number, 2)
    norm = make_norm(config, number)
    dilation, in_1x1 = config.res5_dilation if number == 5 else 1, config.stride_in_1x1
    if config.pre_activation:
        return pre_activation_stage(
            blocks,
            *widths,
            norm,
            stride=stride,
            dilation=dilation,
            stride_in_1x1=in_1x1,
            activated=number == 5,
        )
    return resnet_stage(
        blocks, *widths, norm, stride=stride, dilation=dilation, stride_in_1x1=in_1x1
    )
