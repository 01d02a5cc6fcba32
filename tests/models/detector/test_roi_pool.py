"""Pooling by distinct windows against torchvision's operator, bit for bit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.ops import roi_pool

from vlmill.models.detector.fused_stages import pooling_windows, round_half_away, window_maxima


def pooled(features: torch.Tensor, boxes: torch.Tensor, size: int) -> torch.Tensor:
    """[R, C, P, P] through windows."""
    windows = pooling_windows(boxes, 1 / 16, size, *features.shape[-2:])
    maxima = window_maxima(features[0].permute(1, 2, 0), windows.bounds)
    return maxima[windows.index].permute(0, 3, 1, 2)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    size=st.sampled_from([1, 7, 14]),
    seed=st.integers(0, 10**6),
)
def test_equals_torchvision(rows: int, columns: int, size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn((1, 3, rows, columns), generator=generator)
    # Corners on halves of cells too, and boxes that leave the map or are inverted.
    raw = torch.randint(-100, 16 * 45, (30, 4), generator=generator).float()
    boxes = torch.cat((raw, (raw / 8).round() * 8, raw + torch.rand(30, 4, generator=generator)))
    assert torch.equal(pooled(features, boxes, size), roi_pool(features, [boxes], size, 1 / 16))


def test_no_boxes() -> None:
    windows = pooling_windows(torch.zeros(0, 4), 1 / 16, 14, 5, 6)
    assert windows.bounds.shape == (0, 4) and windows.index.shape == (0, 14, 14)
    assert window_maxima(torch.randn(5, 6, 2), windows.bounds).shape == (0, 2)


def test_equal_windows_are_listed_once() -> None:
    boxes = torch.tensor([[0.0, 0, 64, 64]]).repeat(5, 1)
    windows = pooling_windows(boxes, 1 / 16, 14, 20, 20)
    assert len(windows.bounds) == len(torch.unique(windows.bounds, dim=0)) <= 14 * 14
    assert torch.equal(windows.index, windows.index[:1].expand(5, -1, -1))


@pytest.mark.parametrize("value", [0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, 7.0, -7.25])
def test_halves_go_away_from_zero(value: float) -> None:
    exact = float(int(abs(value) + 0.5)) if abs(value) != 0.49999997 else 0.0
    rounded = round_half_away(torch.full((1, 4), value))[0, 0].item()
    assert rounded == (exact if value >= 0 else -exact)
