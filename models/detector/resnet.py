"""Builds the ResNet bodies of the C4 detectors (He et al. 2016), named as in Detectron2's layout.

B images or RoIs, C channels, H x W pixels or cells.
"""

from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vlmill.models.detector.operators import deformable_conv

OFFSETS = 2 * 3 * 3  # of a deformable 3x3 convolution: y and x for each of its positions


@dataclass(frozen=True, kw_only=True)
class Norm:
    """Specifies how a stage normalises: with constants (``frozen``), or as nn.BatchNorm2d does."""

    eps: float = 1e-5
    kind: Literal["frozen", "trained"] = "frozen"

    def layer(self, channels: int) -> nn.Module:
        if self.kind == "trained":
            return nn.BatchNorm2d(channels, eps=self.eps)
        return FrozenBatchNorm(channels, self.eps)


class FrozenBatchNorm(nn.Module):
    """Normalises batches with recorded statistics; all four tensors are frozen."""

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
        """Returns the scale and shift that are equivalent to the four tensors."""
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        return scale, self.bias - self.running_mean * scale

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        # affine() is not used: through 100 layers its different rounding is five times the
        # published code's own spread (res4 of R-101).
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )


class SameConv(nn.Conv2d):
    """Applies a convolution without bias whose padding keeps the size, apart from the stride."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel,
            stride=stride,
            padding=dilation * (kernel // 2),
            dilation=dilation,
            groups=groups,
            bias=False,
        )


class ConvNorm(SameConv):
    """Applies a convolution without bias and the normalisation of its output, in the submodule
    ``norm``.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel: int, norm: Norm, **options: int
    ) -> None:
        super().__init__(in_channels, out_channels, kernel, **options)
        self.norm = norm.layer(out_channels)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D G V"]:
        return cast(Tensor, self.norm(super().forward(x)))

    def fold(self) -> None:
        """Moves the normalisation into the convolution's weight and bias."""
        if isinstance(self.norm, FrozenBatchNorm):
            fold_into(self, self.norm)
            self.norm = nn.Identity()


class DeformableConvNorm(ConvNorm):
    """Applies a convolution whose inputs are sampled at offsets from their cells, and a
    normalisation (Dai et al. 2017, arXiv:1703.06211).
    """

    def deform(
        self, x: Float[Tensor, "B C H W"], offsets: Float[Tensor, "B O G V"]
    ) -> Float[Tensor, "B D G V"]:
        """Returns the normalised output; ``offsets`` are (y, x) in cells for each of the kernel's
        positions.
        """
        assert not isinstance(self.padding, str)
        geometry = (self.stride, self.padding, self.dilation)
        return cast(
            Tensor, self.norm(deformable_conv(x, offsets, self.weight, self.bias, *geometry))
        )


class NormConv(SameConv):
    """Applies a convolution to its normalised and rectified input (He et al. 2016b)."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel: int, norm: Norm, **options: int
    ) -> None:
        super().__init__(in_channels, out_channels, kernel, **options)
        self.norm = norm.layer(in_channels)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D G V"]:
        return super().forward(relu(self.norm(x)))


def relu(x: Tensor) -> Tensor:
    """Applies ReLU, in place if no gradient needs the input."""
    return F.relu(x, inplace=not torch.is_grad_enabled())


def widen(x: Tensor) -> Tensor:
    """Converts to at least float32, for operations that must not run in autocast's bfloat16."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def fold_into(conv: nn.Conv2d, norm: FrozenBatchNorm) -> None:
    """Changes ``conv`` to return the output of ``conv`` followed by ``norm``."""
    scale, shift = norm.affine()
    conv.weight = nn.Parameter(
        conv.weight.detach() * scale[:, None, None, None], requires_grad=False
    )
    conv.bias = nn.Parameter(shift.clone(), requires_grad=False)


class Stem(nn.Module):
    """Applies a 7x7 convolution and a 3x3 max pool, both of stride 2: 1/4 of the image's side.

    ``ceil_pool`` pools as Caffe does, without padding and with a last window cut at the border;
    otherwise as torchvision and Detectron2 do, with padding 1. ``normalise_input`` is for the
    pre-activation ResNet, which also scales the pixels.
    """

    def __init__(
        self, channels: int, norm: Norm, *, ceil_pool: bool, normalise_input: bool = False
    ) -> None:
        super().__init__()
        if normalise_input:
            self.norm = norm.layer(3)
        self.normalise_input = normalise_input
        self.conv1 = ConvNorm(3, channels, 7, norm, stride=2)
        self.ceil_pool = ceil_pool

    def forward(self, image: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B C G V"]:
        x = self.norm(image) if self.normalise_input else image
        return stem_pool(relu(self.conv1(x)), ceil_pool=self.ceil_pool)


def stem_pool(x: Float[Tensor, "B C H W"], *, ceil_pool: bool) -> Float[Tensor, "B C G V"]:
    """Applies the 3x3 max pool of stride 2 in one of its two conventions (see :class:`Stem`)."""
    if ceil_pool:
        return F.max_pool2d(x, 3, stride=2, ceil_mode=True)
    return F.max_pool2d(x, 3, stride=2, padding=1)


class Bottleneck(nn.Module):
    """Applies 1x1, 3x3, 1x1 with a shortcut; the stride is in the first 1x1 (Caffe) or in the 3x3.

    ``groups`` above 1 in the 3x3 make it a ResNeXt block (Xie et al. 2017, arXiv:1611.05431).
    ``deformable`` samples the 3x3 at offsets that a convolution of the same geometry computes.
    """

    def __init__(
        self,
        in_channels: int,
        mid_channels: int,
        out_channels: int,
        norm: Norm,
        *,
        stride: int,
        dilation: int,
        stride_in_1x1: bool,
        groups: int = 1,
        deformable: bool = False,
    ) -> None:
        super().__init__()
        first, second = (stride, 1) if stride_in_1x1 else (1, stride)
        self.deformable = deformable
        self.shortcut: nn.Module = nn.Identity()
        if in_channels != out_channels:
            self.shortcut = ConvNorm(in_channels, out_channels, 1, norm, stride=stride)
        self.conv1 = ConvNorm(in_channels, mid_channels, 1, norm, stride=first)
        if deformable:
            self.conv2_offset = nn.Conv2d(
                mid_channels, OFFSETS, 3, stride=second, padding=dilation, dilation=dilation
            )
        middle = DeformableConvNorm if deformable else ConvNorm
        self.conv2: ConvNorm = middle(
            mid_channels, mid_channels, 3, norm, stride=second, dilation=dilation, groups=groups
        )
        self.conv3 = ConvNorm(mid_channels, out_channels, 1, norm)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D G V"]:
        y = self.middle(relu(self.conv1(x)))
        return relu(self.conv3(y) + self.shortcut(x))

    def middle(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C G V"]:
        """Returns the output of the 3x3 convolution after ReLU."""
        if isinstance(self.conv2, DeformableConvNorm):
            return relu(self.conv2.deform(x, self.conv2_offset(x)))
        return relu(self.conv2(x))


class PreActivationBottleneck(nn.Module):
    """Computes the bottleneck of ResNet v2 (He et al. 2016b, arXiv:1603.05027): the sum is the
    output.

    ``activated`` means that the input is already normalised and rectified with this block's
    ``norm`` (:meth:`activate`): the detector does so once for the whole map, and res5 reads parts
    of the map.
    """

    def __init__(
        self,
        in_channels: int,
        mid_channels: int,
        out_channels: int,
        norm: Norm,
        *,
        stride: int,
        dilation: int = 1,
        stride_in_1x1: bool = False,
    ) -> None:
        super().__init__()
        first, second = (stride, 1) if stride_in_1x1 else (1, stride)
        self.activated = False
        self.norm = norm.layer(in_channels)
        self.conv1 = nn.Conv2d(in_channels, mid_channels, 1, stride=first, bias=False)
        self.conv2 = NormConv(mid_channels, mid_channels, 3, norm, stride=second, dilation=dilation)
        self.conv3 = NormConv(mid_channels, out_channels, 1, norm)
        self.has_shortcut = in_channels != out_channels
        if self.has_shortcut:
            self.shortcut = nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False)

    def activate(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        """Normalises and rectifies, which is the block's first step."""
        return relu(self.norm(x))

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D G V"]:
        t = x if self.activated else self.activate(x)
        y = self.conv3(self.conv2(self.conv1(t)))
        return cast(Tensor, y + (self.shortcut(t) if self.has_shortcut else x))

    def fold(self) -> None:
        """Moves each inner normalisation into the convolution before it."""
        for before, after in ((self.conv1, self.conv2), (self.conv2, self.conv3)):
            if isinstance(after.norm, FrozenBatchNorm):
                fold_into(before, after.norm)
                after.norm = nn.Identity()


def resnet_stage(
    num_blocks: int,
    in_channels: int,
    mid_channels: int,
    out_channels: int,
    norm: Norm,
    *,
    stride: int,
    block: type[Bottleneck] | type[PreActivationBottleneck] = Bottleneck,
    **options: Any,
) -> nn.Sequential:
    """Returns the blocks of one resolution, built with ``options``; only the first one strides."""
    first = block(in_channels, mid_channels, out_channels, norm, stride=stride, **options)
    following = (
        block(out_channels, mid_channels, out_channels, norm, stride=1, **options)
        for _ in range(num_blocks - 1)
    )
    return nn.Sequential(first, *following)


def fold_norms(model: nn.Module) -> None:
    """Folds every frozen normalisation that follows a convolution into the convolution, in place.

    The results are equal up to rounding (1e-6). A folded model does not have the published
    state-dict keys, so fold after loading. Backbones run 1.2 times faster.
    """
    for module in model.modules():
        if isinstance(module, ConvNorm | PreActivationBottleneck):
            module.fold()
