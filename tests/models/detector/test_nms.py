"""Suppression in tensors of fixed sizes, against torchvision's in each class by itself."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from tests.models.detector.placed import Placed
from torchvision.ops import nms as torchvision_nms

from vlmill.models.detector import nms
from vlmill.models.detector.nms import exclusive_corners, first_survivors, float32_limit


@pytest.mark.parametrize("threshold", [0.1, 0.3, 0.4, 0.5, 0.6, 0.7, 0.9])
def test_a_limit_decides_as_the_double_does(threshold: float) -> None:
    near = np.float32(threshold)
    for overlap in (np.nextafter(near, np.float32(0)), near, np.nextafter(near, np.float32(1))):
        limit = torch.tensor(float32_limit(threshold, inclusive=False))
        assert bool(torch.tensor(overlap) > limit) == (float(overlap) > threshold)
        limit = torch.tensor(float32_limit(threshold, inclusive=True))
        assert bool(torch.tensor(overlap) > limit) == bool(overlap >= near)


@given(
    seed=st.integers(0, 2**16),
    images=st.integers(1, 3),
    rows=st.integers(1, 9),
    classes=st.integers(1, 3),
    own_boxes=st.booleans(),
    count=st.integers(0, 12),
    offset=st.sampled_from([0.0, 1.0]),
    inclusive=st.booleans(),
    whole=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_first_survivors_are_those_of_each_class(
    seed: int,
    images: int,
    rows: int,
    classes: int,
    own_boxes: bool,
    count: int,
    offset: float,
    inclusive: bool,
    whole: bool,
) -> None:
    """``whole`` numbers make overlaps equal to thresholds, empty boxes and equal boxes."""
    rng = torch.Generator().manual_seed(seed)
    low = torch.rand(images, rows, classes if own_boxes else 1, 2, generator=rng) * 6
    boxes = torch.cat((low, low + torch.rand(low.shape, generator=rng) * 6), dim=3)
    boxes = boxes.round() if whole else boxes
    scores = torch.rand(images, rows, classes, generator=rng)
    scores[torch.rand(scores.shape, generator=rng) < 0.2] = -torch.inf
    thresholds, rules = (0.3, 0.5), {"offset": offset, "inclusive": inclusive}
    places, values = first_survivors(boxes, scores, thresholds, count, **rules)  # type: ignore[arg-type]
    for image in range(images):
        ids, of_class = torch.nonzero(scores[image] > -torch.inf, as_tuple=True)
        own = boxes[image, ids, of_class if own_boxes else torch.zeros_like(of_class)]
        for number, threshold in enumerate(thresholds):
            alive = scores[image, ids, of_class]
            kept = by_class(own, alive, of_class, threshold, rules)[:count]
            found = places[image, number][values[image, number] > -torch.inf]
            assert found.tolist() == (ids * classes + of_class)[kept].tolist()
            assert values[image, number, : len(kept)].tolist() == alive[kept].tolist()


def by_class(boxes: Any, scores: Any, classes: Any, threshold: float, rules: Any) -> Any:
    """Suppresses each class by itself: torchvision's batched_nms moves boxes, which rounds."""
    kept = []
    for one in classes.unique():
        own = torch.nonzero(classes == one)[:, 0]
        limit = np.float32(threshold)
        strict = np.nextafter(limit, np.float32(-np.inf)) if rules["inclusive"] else threshold
        corners = exclusive_corners(boxes[own], rules["offset"])
        kept.append(own[torchvision_nms(corners, scores[own], float(strict))])
    every = torch.cat(kept) if kept else torch.zeros(0, dtype=torch.long)
    return every[scores[every].sort(descending=True, stable=True).indices]


def test_equal_scores_go_by_region_and_then_by_class() -> None:
    apart = torch.tensor([[0.0, 0, 1, 1], [5, 5, 6, 6]])[None, :, None]
    scores = torch.tensor([[0.5, 0.9, 0.5], [0.9, 0.5, 0.9]])[None]
    places, _ = first_survivors(apart, scores, (0.5,), 6, offset=0.0, inclusive=False)
    assert places[0, 0].tolist() == [1, 3, 5, 0, 2, 4]


def test_none_are_asked_for() -> None:
    boxes, scores = torch.zeros(2, 3, 1, 4), torch.zeros(2, 3, 4)
    places, values = first_survivors(boxes, scores, (0.3, 0.5), 0, offset=0.0, inclusive=False)
    assert places.shape == values.shape == (2, 2, 0)


def test_on_a_gpu_where_nobody_wants_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nms, "can_compile", lambda work: True)
    here, there = torch.empty(2), Placed(torch.empty(2))
    with torch.inference_mode():
        assert nms.has_kernels(there) and not nms.has_kernels(here)
    assert not nms.has_kernels(there)
