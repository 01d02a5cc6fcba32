import numpy as np
import pytest

from vlmill.train.masking import mask_regions, mask_tokens

DRAWS = 100_000


def within_3_sigma(count: int, draws: int, share: float) -> bool:
    return bool(abs(count - draws * share) <= 3 * np.sqrt(draws * share * (1 - share)))


def test_words_are_masked_15_and_80_10_10() -> None:
    tokens = np.full(DRAWS, 7)
    masked = mask_tokens(
        tokens,
        tokens > 0,
        np.random.default_rng(0),
        share=0.15,
        to_mask=0.8,
        to_random=0.1,
        mask_id=4,
        vocab_size=30_522,
    )
    chosen = int(masked.masked.sum())
    assert within_3_sigma(chosen, DRAWS, 0.15)
    seen = masked.tokens[masked.masked]
    assert within_3_sigma(int((seen == 4).sum()), chosen, 0.8)
    assert within_3_sigma(int((seen == 7).sum()), chosen, 0.1)
    assert within_3_sigma(int(((seen != 4) & (seen != 7)).sum()), chosen, 0.1)
    assert (masked.tokens[~masked.masked] == 7).all()


def test_regions_are_masked_15_and_90_10() -> None:
    masks = mask_regions(DRAWS, np.random.default_rng(0), share=0.15, to_zero=0.9)
    chosen = int(masks.masked.sum())
    assert within_3_sigma(chosen, DRAWS, 0.15)
    assert within_3_sigma(int(masks.zeroed.sum()), chosen, 0.9)
    assert not (masks.zeroed & ~masks.masked).any()


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_only_maskable_tokens_are_masked(share: float) -> None:
    tokens = np.array([2, 9, 8, 3])
    maskable = np.array([False, True, True, False])
    masked = mask_tokens(
        tokens,
        maskable,
        np.random.default_rng(0),
        share=share,
        to_mask=1,
        to_random=0,
        mask_id=4,
        vocab_size=10,
    )
    assert masked.masked.tolist() == (maskable & (share == 1)).tolist()
    assert masked.tokens.tolist() == ([2, 4, 4, 3] if share else [2, 9, 8, 3])


def test_nothing_to_mask() -> None:
    masks = mask_regions(0, np.random.default_rng(0), share=0.15, to_zero=0.9)
    assert len(masks.masked) == len(masks.zeroed) == 0
