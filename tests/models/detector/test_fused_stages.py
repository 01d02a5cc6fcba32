"""Fused stages against the plain modules."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from tests.models.detector.batches import detect, given
from tests.models.detector.placed import Placed
from torch import Tensor, nn

from vlmill.models.detector import folded
from vlmill.models.detector import fused_stages as fused
from vlmill.models.detector.config import ARCHITECTURES, DetectorConfig
from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.models.detector.folded import FoldedConv
from vlmill.models.detector.fused_stages import (
    FusedStage,
    fuse_stages,
    interleave,
    pooling_windows,
    split_grids,
)
from vlmill.models.detector.random_weights import randomise
from vlmill.models.detector.resnet import fold_norms

TINY = dataclasses.replace(ARCHITECTURES["tiny"], num_classes=20, num_attributes=5)
CONVENTIONS = {
    "dilated": TINY,
    "strided in the 1x1": dataclasses.replace(TINY, res5_stride=2, res5_dilation=1),
    "strided in the 3x3": dataclasses.replace(
        TINY, res5_stride=2, res5_dilation=1, stride_in_1x1=False
    ),
}


def both(config: DetectorConfig) -> tuple[FasterRCNN, FasterRCNN]:
    """The same network as published and rewritten for inference."""
    models = FasterRCNN(config), FasterRCNN(config)
    for model in models:
        randomise(model, 5)
        model.requires_grad_(False).eval()
    fold_norms(models[1])
    fuse_stages(models[1])
    models[1].to(memory_format=torch.channels_last)
    return models


def image() -> torch.Tensor:
    coarse = torch.randn((1, 3, 7, 9), generator=torch.Generator().manual_seed(1)) * 64
    return nn.functional.interpolate(coarse, size=(112, 144), mode="bicubic")


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("name", CONVENTIONS)
@pytest.mark.parametrize("max_windows", [fused.MAX_WINDOWS, 300])
def test_regions_equal_the_plain_path(
    name: str, max_windows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "MAX_WINDOWS", max_windows)
    plain, fast = both(CONVENTIONS[name])
    assert isinstance(fast.roi_heads.res5, FusedStage) and isinstance(
        fast.backbone.res2, FusedStage
    )
    with torch.inference_mode():
        ((expected,), (found,)) = (detect(m, image(), [1.0], chunk=7) for m in (plain, fast))
        assert_near(fast.backbone(image())[0], plain.backbone(image())[0])
        assert expected.boxes.shape[1] > 20
        assert_near(found.boxes, expected.boxes)
        assert_near(found.features, expected.features)
        assert_near(found.class_probs, expected.class_probs)


@pytest.mark.parametrize(("name", "apart"), [("dilated", 2), ("strided in the 1x1", 1)])
def test_equal_grids_are_computed_once(name: str, apart: int) -> None:
    plain, fast = both(CONVENTIONS[name])
    # 7 cells wide and high: each bin is half a cell; then a region of its own, and the first again.
    boxes = torch.tensor([[16.0, 0, 112, 96], [0, 0, 130, 75], [16, 0, 112, 96]])
    features = plain.backbone(image())
    index = pooling_windows(boxes, 1 / 16, 14, *features[0].shape[2:]).index
    stage = fast.roi_heads.res5
    assert isinstance(stage, FusedStage) and stage.get_dilation() == apart
    grids, grid_of = split_grids(index, apart)
    assert len(grids) == (1 + 4 if apart == 2 else 2)
    assert torch.equal(grid_of[0], grid_of[2])
    packed = interleave(grids, apart)
    assert len(packed) == 2
    assert torch.equal(split_grids(packed, apart)[0], grids)
    with torch.inference_mode():
        found = fast.roi_heads.region_features(features, *given(boxes), 50)
        assert_near(found, plain.roi_heads.region_features(features, *given(boxes), 50))


def test_a_stage_leaves_its_input_alone() -> None:
    plain, fast = both(TINY)
    blocks = list(fast.backbone.res3)[1:]  # the first of these has no convolution in its shortcut
    x = torch.randn(1, 64, 6, 5).contiguous(memory_format=torch.channels_last)
    before = x.clone()
    with torch.inference_mode():
        found = FusedStage(*blocks)(x)
        expected = nn.Sequential(*list(plain.backbone.res3)[1:])(x)
    assert torch.equal(x, before)
    assert_near(found, expected)


def test_gradients_and_other_types_take_the_plain_operators() -> None:
    _, fast = both(TINY)
    x = torch.randn(1, 3, 48, 48, requires_grad=True)
    fast.backbone(x)[0].sum().backward()
    assert x.grad is not None and x.grad.abs().sum() > 0
    with torch.inference_mode():
        double = fast.double().backbone(x.detach().double())[0]
    assert double.dtype == torch.float64


def test_no_regions() -> None:
    _, fast = both(TINY)
    with torch.inference_mode():
        found = fast.describe(fast.backbone(image()), *given(torch.zeros(0, 4)))
    assert found.features.shape == (1, 0, TINY.feature_size)


@pytest.mark.parametrize("name", CONVENTIONS)
def test_bfloat16_rounds_and_changes_nothing_else(name: str) -> None:
    """8 bits in each of 50 layers; regions' means are summed in float32."""
    plain, fast = both(CONVENTIONS[name])
    boxes = torch.tensor([[16.0, 0, 112, 96], [0, 0, 130, 75], [30, 20, 60, 90]])
    with torch.inference_mode():
        expected = plain.roi_heads.region_features(plain.backbone(image()), *given(boxes), 50)
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            maps = fast.backbone(image())
            found = fast.roi_heads.region_features(maps, *given(boxes), 50)
    assert maps[0].dtype == torch.bfloat16 and found.dtype == torch.float32
    assert nn.functional.cosine_similarity(found, expected, dim=2).min() > 0.999
    assert (found - expected).abs().max() > 1e-5 * expected.abs().max()


def test_means_of_grids_are_summed_in_float32() -> None:
    x = torch.randn(3, 5, 6, 6, generator=torch.Generator().manual_seed(0)) + 9
    for dtype in (torch.float32, torch.bfloat16):
        values = x.to(dtype)
        means = fused.grid_means(values, 2).view(3, 2, 2, 5)
        for row, column in ((0, 0), (0, 1), (1, 0), (1, 1)):
            expected = values.float()[:, :, row::2, column::2].mean(dim=(2, 3))
            torch.testing.assert_close(means[:, row, column], expected)


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
