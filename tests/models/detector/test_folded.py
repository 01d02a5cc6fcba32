"""What a GPU computes of folded convolutions, by PyTorch's operators of a CPU."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from tests.models.detector.placed import Placed
from torch import Tensor

from vlmill.models.detector import folded
from vlmill.models.detector.folded import FoldedConv


def convolution(
    kernel: int = 1, *, stride: int = 1, dilation: int = 1, channels: tuple[int, int] = (6, 10)
) -> FoldedConv:
    into, out = channels
    rng = torch.Generator().manual_seed(kernel)
    return FoldedConv(
        weight=torch.randn(out, into, kernel, kernel, generator=rng),
        bias=torch.randn(out, generator=rng),
        padding=[dilation * (kernel // 2)] * 2,
        stride=[stride] * 2,
        dilation=[dilation] * 2,
        groups=1,
    )


def maps(height: int = 8, width: int = 6) -> Tensor:
    x = torch.randn(3, 6, height, width, generator=torch.Generator().manual_seed(0))
    return x.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("compute", [folded.plain_conv, folded.conv_relu])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(8, 6), (7, 5)])
def test_a_1x1_convolution_is_a_product_of_cells(
    compute: Callable[[FoldedConv, Tensor], Tensor],
    stride: int,
    size: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conv, x = convolution(stride=stride), maps(*size)
    expected = compute(conv, x)
    monkeypatch.setattr(folded, "multiplies_rows", lambda conv, x: conv.weight.shape[2] == 1)
    product = compute(conv, x)
    assert product.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(product, expected)


def test_a_dilated_convolution_is_one_of_quarters(monkeypatch: pytest.MonkeyPatch) -> None:
    conv, x = convolution(3, dilation=2), maps()
    expected = folded.plain_conv(conv, x)
    monkeypatch.setattr(folded, "computes_in_quarters", lambda conv, x: True)
    parts = folded.plain_conv(conv, x)
    assert parts.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(parts, expected)
    assert torch.equal(folded.from_quarters(folded.split_even_odd(x)), x)


def test_who_computes_what() -> None:
    """Asked of tensors without values, as if they lay on a GPU."""
    x = torch.empty(2, 6, 8, 6, device="meta")
    there = Placed(x)
    dilated, plain = convolution(3, dilation=2), convolution(3)
    assert folded.computes_in_quarters(dilated, there)
    assert not folded.computes_in_quarters(plain, there)
    assert not folded.computes_in_quarters(dilated, Placed(x[:, :, :7]))
    assert not folded.computes_in_quarters(dilated, Placed(x.half()))
    assert not folded.computes_in_quarters(dilated, maps())
    pointwise = convolution()
    with torch.inference_mode():
        assert folded.multiplies_rows(pointwise, there)
        assert not folded.multiplies_rows(plain, there)
        assert not folded.multiplies_rows(pointwise, Placed(x.half()))
        assert not folded.multiplies_rows(dataclasses.replace(pointwise, bias=None), there)
        assert not folded.multiplies_rows(pointwise, maps())
    assert not folded.multiplies_rows(pointwise, there)  # nobody would have its gradient
