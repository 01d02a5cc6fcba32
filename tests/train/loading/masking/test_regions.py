"""Masking of regions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.train.loading.masking.test_words import DRAWS, within_3_sigma

from vlmill.train.loading.boxes import overlapping, overlaps
from vlmill.train.loading.masking.regions import mask_groups, masked_by


def test_regions_are_masked_15_and_90_10() -> None:
    masks = masked_by(np.random.default_rng(0).random(DRAWS), share=0.15, to_zero=0.9)
    chosen = int(masks.masked.sum())
    assert within_3_sigma(chosen, DRAWS, 0.15)
    assert within_3_sigma(int(masks.zeroed.sum()), chosen, 0.9)
    assert not (masks.zeroed & ~masks.masked).any()


def test_nothing_to_mask() -> None:
    rng, none = np.random.default_rng(0), np.zeros((0, 4), dtype=np.float32)
    masks = masked_by(rng.random(0), share=0.15, to_zero=0.9)
    assert len(masks.masked) == len(masks.zeroed) == 0
    assert len(mask_groups(overlaps(none), rng).masked) == 0


def test_overlaps_by_hand() -> None:
    boxes = np.array([[0, 0, 2, 2], [1, 0, 3, 2], [5, 5, 5, 9]], dtype=np.float32)
    points = np.array([[1, 1 / 3, 0], [1 / 3, 1, 0], [0, 0, 0]], dtype=np.float32)
    np.testing.assert_allclose(overlaps(boxes), points, rtol=1e-6)
    # In whole pixels the first two are 3 x 3 and share 2 x 3; the third is 1 x 5.
    pixels = np.array([[1, 0.5, 0], [0.5, 1, 0], [0, 0, 1]], dtype=np.float32)
    np.testing.assert_allclose(overlaps(boxes, pixel=(1, 1)), pixels, rtol=1e-6)


@given(st.integers(0, 8), st.integers(0, 2**32))
def test_groups_are_anchors_and_what_overlaps_with_them(count: int, seed: int) -> None:
    corners = np.random.default_rng(seed).random((count, 2, 2)).astype(np.float32)
    boxes = np.concatenate([corners.min(1), corners.max(1)], axis=1)
    overlap = overlaps(boxes)
    masks = mask_groups(overlap, np.random.default_rng(seed), anchor_share=0.3)
    anchors = np.random.default_rng(seed).random(count) < 0.3
    expected = [
        any(a and (i == j or overlap[i, j] > 0.4) for j, a in enumerate(anchors))
        for i in range(count)
    ]
    assert masks.masked.tolist() == masks.zeroed.tolist() == expected


@pytest.mark.parametrize(("inclusive", "reached"), [(False, [True, False]), (True, [True, True])])
def test_an_overlap_of_just_the_threshold(inclusive: bool, reached: list[bool]) -> None:
    overlap = np.array([[1, 0.5], [0.5, 1]], dtype=np.float32)
    masked = np.array([True, False])
    assert overlapping(masked, overlap, threshold=0.5, inclusive=inclusive).tolist() == reached
