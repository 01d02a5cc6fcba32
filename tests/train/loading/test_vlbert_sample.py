"""VL-BERT's samples; parity with the recordings stands in tests/parity."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmill.train.loading.boxes import Size, resized_boxes
from vlmill.train.loading.sample import kept_lengths, kept_tokens
from vlmill.train.loading.vlbert_sample import (
    Regions,
    hide_pixels,
    joined_lines,
    mask_picture_regions,
    with_picture,
)


def some_regions(count: int, *, features: bool = True) -> Regions:
    rng = np.random.default_rng(0)
    low = rng.random((count, 2)) * 20
    return Regions(
        boxes=np.concatenate([low, low + 5], axis=1).astype(np.float32),
        distributions=rng.dirichlet(np.ones(4), count).astype(np.float32).reshape(count, 4),
        features=rng.random((count, 3)).astype(np.float32) if features else None,
    )


@pytest.mark.parametrize(
    ("width", "height", "limits", "resized"),
    [(64, 48, (60, 100), (80, 60)), (1652, 938, (600, 1000), (998, 567))],
)
def test_sizes(width: int, height: int, limits: tuple[int, int], resized: tuple[int, int]) -> None:
    new = Size(width=width, height=height).resized(*limits)
    assert (new.width, new.height) == resized
    turned = Size(width=height, height=width).resized(*limits)
    assert (turned.height, turned.width) == resized


def test_mirrored_twice_is_not_mirrored() -> None:
    size = Size(width=30, height=30)
    boxes = some_regions(3).boxes
    once = resized_boxes(boxes, size, size, mirrored=True)
    again = resized_boxes(once, size, size, mirrored=True)
    np.testing.assert_allclose(again, np.clip(boxes, 0, 29), atol=1e-5)


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("features", [True, False])
def test_the_picture_comes_first_then_the_surest(count: int, features: bool) -> None:
    regions = some_regions(count, features=features)
    ordered = with_picture(regions, Size(width=30, height=20))
    assert ordered.boxes[0].tolist() == [0, 0, 29, 19] and len(ordered.boxes) == count + 1
    sure = ordered.distributions.max(axis=1)
    assert sure[0] == 0 and (np.diff(sure[1:]) <= 0).all()
    assert (ordered.features is not None) == features
    masked, masks = mask_picture_regions(ordered, np.random.default_rng(0))
    assert not masks.masked[0] and len(masks.masked) == count + 1
    assert (masked.distributions.any(axis=1) == masks.masked).all()


@given(st.integers(2, 80), st.integers(1, 110), st.integers(0, 100))
def test_what_is_kept_fits(tokens: int, regions: int, longest: int) -> None:
    kept, number = kept_lengths(tokens, regions, longest)
    assert 2 <= kept <= tokens and 1 <= number <= regions
    assert kept + number == min(tokens + regions, max(longest, 3))
    places = kept_tokens(tokens, kept)
    assert len(places) == kept and places[-1] == tokens - 1 and (np.diff(places) > 0).all()


def test_hidden_pixels_are_zero_to_the_last() -> None:
    picture, boxes = np.ones((3, 4, 5), dtype=np.float32), np.array([[1.9, 1, 2.9, 2]])
    hidden = hide_pixels(picture, boxes.astype(np.float32), np.array([True]))
    assert (hidden[:, 1:3, 1:3] == 0).all() and hidden.sum() == 3 * (20 - 4)
    assert picture.all()


def test_lines_are_joined_round_the_end() -> None:
    assert joined_lines([3, 2, 4], 1, 7) == [1, 2, 0]
    assert joined_lines([3, 2, 4], 1, 2) == [1]
    assert joined_lines([1], 0, 3) == [0, 0, 0]
    assert joined_lines([0, 0], 0, 3) == []
