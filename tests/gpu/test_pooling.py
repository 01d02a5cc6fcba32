"""RoI pooling on the device, against another way to the same numbers."""

import pytest
import torch
from tests.gpu.device import DEVICE, assert_near, there
from torch import Tensor
from torchvision.ops import roi_align, roi_pool

from vlmill.models.detector.fused_stages import pooling_windows, window_maxima

pytestmark = pytest.mark.gpu
SIZE, SCALE = 14, 1 / 16
CHANNELS, ROWS, COLUMNS = 8, 24, 31


def feature_maps() -> Tensor:
    return torch.randn(2, CHANNELS, ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))


def regions() -> Tensor:
    """Of both images by turns, some smaller than a cell, some across the border."""
    rng = torch.Generator().manual_seed(1)
    low = torch.rand(40, 2, generator=rng) * torch.tensor([COLUMNS, ROWS]) * 16
    sides = torch.rand(40, 2, generator=rng) * torch.tensor([400.0, 300.0])
    numbers = (torch.arange(40) % 2)[:, None].float()
    return torch.cat((numbers, low, low + sides), dim=1)


def layout(channels_last: bool) -> torch.memory_format:
    return torch.channels_last if channels_last else torch.contiguous_format


@pytest.mark.parametrize("channels_last", [False, True])
def test_maxima_are_those_of_shared_windows(channels_last: bool) -> None:
    features, boxes = feature_maps(), regions()
    expected = torch.empty(len(boxes), CHANNELS, SIZE, SIZE)
    for image in range(2):
        own = boxes[:, 0] == image
        windows = pooling_windows(boxes[own, 1:], SCALE, SIZE, ROWS, COLUMNS)
        maxima = window_maxima(features[image].permute(1, 2, 0).contiguous(), windows.bounds)
        expected[own] = maxima[windows.index].permute(0, 3, 1, 2)
    maps = features.to(DEVICE, memory_format=layout(channels_last))
    pooled = roi_pool(maps, there(boxes), SIZE, SCALE)
    assert torch.equal(pooled.cpu(), expected)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("aligned", [False, True])
def test_aligned_means_are_those_in_double(channels_last: bool, aligned: bool) -> None:
    features, boxes = feature_maps(), regions()
    expected = roi_align(features.double(), boxes.double(), SIZE, SCALE, 0, aligned)
    maps = features.to(DEVICE, memory_format=layout(channels_last))
    assert_near(roi_align(maps, there(boxes), SIZE, SCALE, 0, aligned), expected, 1e-5)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="the kernel is a GPU's (tests/models/detector)")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [7, SIZE])
def test_the_kernel_gives_the_same_in_channels_last(size: int, dtype: torch.dtype) -> None:
    from vlmill.models.detector.gpu_kernels import pooled_regions

    maps, boxes = feature_maps().to(dtype), regions()
    with torch.inference_mode():
        pooled = pooled_regions(there(maps), there(boxes), size, SCALE)
    assert pooled.is_contiguous(memory_format=torch.channels_last) and pooled.dtype == dtype
    assert torch.equal(pooled.float().cpu(), roi_pool(maps.float(), boxes, size, SCALE))
