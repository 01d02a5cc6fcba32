"""Block-wise masks of images."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmill.train.loading.masking.patches import BlockMasking


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 16), st.integers(0, 60), st.integers(1, 20), st.integers(0, 2**32))
def test_never_more_than_asked_for(grid: int, patches: int, smallest: int, seed: int) -> None:
    masking = BlockMasking(grid=grid, patches=patches, smallest=smallest)
    mask = masking.draw(np.random.default_rng(seed))
    assert mask.shape == (grid, grid) and mask.sum() <= patches


def test_vlmo_s_masks_cover_two_fifths_of_the_image() -> None:
    rng = np.random.default_rng(0)
    counts = [int(BlockMasking().draw(rng).sum()) for _ in range(400)]
    assert 74 < np.mean(counts) <= 75 and max(counts) == 75


def test_other_grids_have_the_same_shares() -> None:
    assert BlockMasking.for_grid(14) == BlockMasking()
    masking, rng = BlockMasking.for_grid(4), np.random.default_rng(0)
    counts = [int(masking.draw(rng).sum()) for _ in range(100)]
    assert masking.patches == 6 and 5 < np.mean(counts) <= 6
