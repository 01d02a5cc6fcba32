"""Computes convolutions with folded normalisation that apply ReLU while they store the result.

For inference only. On a CPU oneDNN applies ReLU, and adds the shortcut, while it stores a result.
On a GPU cuBLAS does so for 1x1 convolutions, which are products of rows, and cuDNN for others, in
half precision. PyTorch alone makes one more pass over the result for each of bias, shortcut and
ReLU: on an H100 that took as long as res5's products.
"""

import functools
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from vlmill.models.detector.resnet import ConvNorm, relu
from vlmill.models.probes import works

HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, kw_only=True)
class FoldedConv:
    """Holds a folded convolution's weights, in the dtype of the computation, and its geometry."""

    weight: Tensor
    bias: Tensor | None
    padding: list[int]
    stride: list[int]
    dilation: list[int]
    groups: int


@dataclass(frozen=True, kw_only=True)
class FoldedBlock:
    """Holds the convolutions of a folded bottleneck; ``shortcut`` is None if the input is added."""

    conv1: FoldedConv
    conv2: FoldedConv
    conv3: FoldedConv
    shortcut: FoldedConv | None


def in_computed_type(x: Tensor) -> Tensor:
    """Converts the input to autocast's dtype for its device; the stage then keeps that dtype."""
    kind = x.device.type
    if kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind):
        return x.to(torch.get_autocast_dtype(kind))
    return x


def folded_conv(conv: ConvNorm, dtype: torch.dtype) -> FoldedConv:
    """Returns a convolution's weights in the dtype of its input, ``dtype``."""
    assert not isinstance(conv.padding, str)
    return FoldedConv(
        weight=conv.weight.to(dtype),
        bias=None if conv.bias is None else conv.bias.to(dtype),
        padding=list(conv.padding),
        stride=list(conv.stride),
        dilation=list(conv.dilation),
        groups=conv.groups,
    )


def finish(
    block: FoldedBlock, hidden: Float[Tensor, "B M H W"], shortcut: Float[Tensor, "B D G V"]
) -> Float[Tensor, "B D G V"]:
    """Computes a block from its first convolution's output; ``shortcut`` may be overwritten."""
    return conv_add_relu(block.conv3, conv_relu(block.conv2, hidden), shortcut)


def plain_conv(conv: FoldedConv, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D G V"]:
    """Computes a folded convolution without ReLU."""
    if multiplies_rows(conv, x):
        return as_map(F.linear(gather_rows(conv, x), conv.weight.flatten(1), conv.bias), conv, x)
    if computes_in_quarters(conv, x):
        parts = F.conv2d(split_even_odd(x), conv.weight, conv.bias, padding=1, groups=conv.groups)
        return from_quarters(parts)
    return F.conv2d(
        x, conv.weight, conv.bias, conv.stride, conv.padding, conv.dilation, conv.groups
    )


def conv_relu(conv: FoldedConv, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D G V"]:
    """Computes a folded convolution with ReLU."""
    if multiplies_rows(conv, x) and rectifies_products():
        assert conv.bias is not None
        columns = conv.weight.flatten(1).T
        rectified: Tensor = torch._addmm_activation(conv.bias, gather_rows(conv, x), columns)
        return as_map(rectified, conv, x)
    if fuses_on_gpu(conv, x):
        fused: Tensor = torch.cudnn_convolution_relu(
            x, conv.weight, conv.bias, *cudnn_geometry(conv)
        )
        return fused
    if not can_fuse(x):
        return relu(plain_conv(conv, x))
    return _relu(conv, x)


def conv_add_relu(
    conv: FoldedConv, x: Float[Tensor, "B C H W"], other: Float[Tensor, "B D G V"]
) -> Float[Tensor, "B D G V"]:
    """Computes the ReLU of a folded convolution plus ``other``, which may be overwritten."""
    if fuses_on_gpu(conv, x):
        fused: Tensor = torch.cudnn_convolution_add_relu(
            x, conv.weight, other, 1.0, conv.bias, *cudnn_geometry(conv)
        )
        return fused
    if not can_fuse(x):
        return relu(plain_conv(conv, x) + other)
    return _add_relu(conv, x, other)


def _relu(conv: FoldedConv, x: Tensor) -> Tensor:
    """Computes a convolution with oneDNN, which applies ReLU while it stores the result."""
    fused: Tensor = torch.ops.mkldnn._convolution_pointwise(
        x, conv.weight, conv.bias, *geometry(conv), "relu", [], ""
    )
    return fused


def _add_relu(conv: FoldedConv, x: Tensor, other: Tensor) -> Tensor:
    """Computes the ReLU of a convolution plus ``other`` with oneDNN, which overwrites ``other``."""
    fused: Tensor = torch.ops.mkldnn._convolution_pointwise_.binary(
        other, x, conv.weight, conv.bias, *geometry(conv), "add", 1.0, "relu", [], ""
    )
    return fused


def infers_on_gpu(conv: FoldedConv, x: Tensor) -> bool:
    """Returns whether a GPU computes a convolution in the dtype of its input, without gradients."""
    return (
        x.device.type == "cuda"
        and not torch.is_grad_enabled()
        and conv.weight.dtype == x.dtype
        and conv.bias is not None
    )


def multiplies_rows(conv: FoldedConv, x: Tensor) -> bool:
    """Returns whether a convolution is a product of an input's cells with its weights, on a GPU."""
    return infers_on_gpu(conv, x) and conv.weight.shape[2:] == (1, 1) and conv.groups == 1


def gather_rows(conv: FoldedConv, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "BGV C"]:
    """Returns the cells that a 1x1 convolution reads. If it reads all of them, a channels-last
    input is not copied.
    """
    down, across = conv.stride
    return x[:, :, ::down, ::across].permute(0, 2, 3, 1).reshape(-1, x.shape[1])


def as_map(
    rows: Float[Tensor, "BGV D"], conv: FoldedConv, x: Float[Tensor, "B C H W"]
) -> Float[Tensor, "B D G V"]:
    """Returns the cells that a 1x1 convolution wrote as a map, channels last."""
    height, width = (-(-side // step) for side, step in zip(x.shape[2:], conv.stride, strict=True))
    return rows.view(len(x), height, width, -1).permute(0, 3, 1, 2)


def computes_in_quarters(conv: FoldedConv, x: Tensor) -> bool:
    """Returns whether a dilated 3x3 convolution is computed as one without dilation: on a GPU in
    float32, where cuDNN takes 28 times as long for it in channels last (res5, H100).
    """
    even = x.shape[2] % 2 == x.shape[3] % 2 == 0
    return (
        x.device.type == "cuda"
        and x.dtype == torch.float32
        and even
        and conv.weight.shape[2:] == (3, 3)
        and conv.dilation == conv.padding == [2, 2]
        and conv.stride == [1, 1]
    )


def split_even_odd(x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B4 C H2 W2"]:
    """Returns even and odd rows and columns separately, because a dilation of 2 never mixes them;
    channels last.
    """
    number, channels, height, width = x.shape
    cells = x.permute(0, 2, 3, 1).reshape(number, height // 2, 2, width // 2, 2, channels)
    parts = cells.permute(0, 2, 4, 1, 3, 5).reshape(-1, height // 2, width // 2, channels)
    return parts.permute(0, 3, 1, 2)


def from_quarters(parts: Float[Tensor, "B4 D G V"]) -> Float[Tensor, "B D G2 V2"]:
    """Merges the parts that :func:`quarters` separated; channels last."""
    number, channels, height, width = parts.shape
    cells = parts.permute(0, 2, 3, 1).reshape(number // 4, 2, 2, height, width, channels)
    merged = cells.permute(0, 3, 1, 4, 2, 5).reshape(number // 4, 2 * height, 2 * width, channels)
    return merged.permute(0, 3, 1, 2)


def fuses_on_gpu(conv: FoldedConv, x: Tensor) -> bool:
    """Returns whether cuDNN applies ReLU while it stores a convolution: in half precision, the only
    dtypes with such kernels.
    """
    if not infers_on_gpu(conv, x) or x.dtype not in HALF or torch.version.cuda is None:
        return False
    cudnn: bool = torch.backends.cudnn.is_available()  # type: ignore[no-untyped-call]
    return cudnn


def can_fuse(x: Tensor) -> bool:
    """Returns whether oneDNN's fused convolutions, which have no gradients, accept a tensor."""
    if x.device.type != "cpu" or torch.is_grad_enabled() or not has_fused_convolutions():
        return False
    if x.dtype == torch.bfloat16:
        return has_bfloat16_convolutions()
    return x.dtype == torch.float32


def _probed() -> tuple[Tensor, FoldedConv]:
    """Returns a small image and a 1x1 convolution on the CPU, regardless of the default device."""
    numbers = torch.linspace(-1.0, 1.0, 32, dtype=torch.float32, device="cpu")
    weight, bias = numbers[:6].view(3, 2, 1, 1), numbers[10:13]
    no_padding, each = [0, 0], [1, 1]
    conv = FoldedConv(
        weight=weight, bias=bias, padding=no_padding, stride=each, dilation=each, groups=1
    )
    return numbers[:18].view(1, 2, 3, 3), conv


@functools.cache
def has_fused_convolutions() -> bool:
    """Returns whether PyTorch's private convolutions of oneDNN work as they are called here."""

    def matches() -> bool:
        x, conv = _probed()
        expected = torch.einsum("dc,bchw->bdhw", conv.weight[:, :, 0, 0], x)
        assert conv.bias is not None
        expected += conv.bias[:, None, None]
        added = _add_relu(conv, x, expected.clone())
        return torch.allclose(_relu(conv, x), expected.relu(), atol=1e-5) and torch.allclose(
            added, (2 * expected).relu(), atol=1e-5
        )

    mkldnn: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        return mkldnn and works(matches)


@functools.cache
def rectifies_products() -> bool:
    """Returns whether PyTorch's private product with a ReLU works as it is called here.

    The probe runs on the CPU, because a GPU may be recording a graph.
    """

    def matches() -> bool:
        x, conv = _probed()
        assert conv.bias is not None
        rows, columns = gather_rows(conv, x), conv.weight.flatten(1).T
        expected = (rows @ columns + conv.bias).relu()
        return torch.allclose(torch._addmm_activation(conv.bias, rows, columns), expected)

    with torch.autocast("cpu", enabled=False):
        return works(matches)


def has_bfloat16_convolutions() -> bool:
    """Returns whether oneDNN can compute in bfloat16 on this processor, with or without hardware
    support.
    """
    mkldnn: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return mkldnn and works(lambda: torch.ops.mkldnn._is_mkldnn_bf16_supported())


def geometry(conv: FoldedConv) -> tuple[list[int], list[int], list[int], int]:
    """Returns padding, stride, dilation and groups, in the order of oneDNN's operators."""
    return conv.padding, conv.stride, conv.dilation, conv.groups


def cudnn_geometry(conv: FoldedConv) -> tuple[list[int], list[int], list[int], int]:
    """Returns stride, padding, dilation and groups, in the order of cuDNN's operators."""
    return conv.stride, conv.padding, conv.dilation, conv.groups


def conv_cells(conv: FoldedConv, cells: Float[Tensor, "U C"]) -> Float[Tensor, "U D"]:
    """Computes a folded 1x1 convolution of single cells; the caller applies its stride first."""
    column = cells.T[None, :, :, None]  # [1, C, U, 1], channels last without a copy
    return F.conv2d(column, conv.weight, conv.bias)[0, :, :, 0].T
