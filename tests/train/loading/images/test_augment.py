"""RandAugment; parity with the recordings stands in tests/parity."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmill.train.loading.images.crop import OPERATIONS, auto_contrast, rand_augment, translate_x


def image(
    height: int, width: int, seed: int = 0
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(40, 200, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("name", list(OPERATIONS))
@pytest.mark.parametrize("size", [(1, 1), (2, 5), (9, 7)])
def test_sizes_stay(name: str, size: tuple[int, int]) -> None:
    before = image(*size)
    kept = before.copy()
    for sign in (1, -1):
        after = OPERATIONS[name][0](before, sign)
        assert after.shape == before.shape and after.dtype == np.uint8
        assert (before == kept).all()


def test_a_move_to_the_left_fills_with_grey() -> None:
    before = image(4, 10)
    after = translate_x(before)
    assert (after[:, :3] == before[:, 7:]).all() and (after[:, 3:] == 128).all()


def test_contrast_is_stretched_by_channel() -> None:
    before = np.stack([[[10, 20, 30]], [[5, 5, 5]]], axis=-1).astype(np.uint8)
    assert auto_contrast(before)[..., 0].tolist() == [[0, 127, 255]]
    assert auto_contrast(before)[..., 1].tolist() == [[5, 5, 5]]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_the_same_draws_give_the_same_image(seed: int) -> None:
    before = image(8, 8, seed)
    once, again = (rand_augment(before, np.random.default_rng(seed)) for _ in range(2))
    assert (once == again).all()
