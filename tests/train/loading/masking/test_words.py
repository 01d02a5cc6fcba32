"""Masking of words."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmill.train.loading.arrays import Flags, Ids
from vlmill.train.loading.masking.words import (
    MaskedTokens,
    Replacement,
    mask_drawn,
    one_span,
    replace_masked,
    segments,
    whole_words,
)

DRAWS = 100_000
REPLACEMENT = Replacement(mask_id=4, vocab_size=30_522)


def within_3_sigma(count: int, draws: int, share: float) -> bool:
    return bool(abs(count - draws * share) <= 3 * np.sqrt(draws * share * (1 - share)))


def check_80_10_10(masked: MaskedTokens) -> None:
    """Of tokens that were all 7."""
    chosen = int(masked.masked.sum())
    seen = masked.tokens[masked.masked]
    assert within_3_sigma(int((seen == 4).sum()), chosen, 0.8)
    assert within_3_sigma(int((seen == 7).sum()), chosen, 0.1)
    assert within_3_sigma(int(((seen != 4) & (seen != 7)).sum()), chosen, 0.1)
    assert (masked.tokens[~masked.masked] == 7).all()


def masked_at_random(tokens: Ids, words: Ids, seed: int, share: float) -> MaskedTokens:
    """Tokens [T] of the ``words`` [T], of none where it is below 0, masked by random numbers."""
    first = np.diff(words, prepend=-1) != 0
    drawn = np.random.default_rng(seed).random((len(tokens), 2))
    return mask_drawn(tokens, words >= 0, first, drawn, share=share, replacement=REPLACEMENT)


def test_words_are_masked_15_and_80_10_10() -> None:
    tokens, rng = np.full(DRAWS, 7), np.random.default_rng(0)
    masked = masked_at_random(tokens, np.arange(DRAWS), 0, 0.15)
    assert within_3_sigma(int(masked.masked.sum()), DRAWS, 0.15)
    check_80_10_10(masked)
    check_80_10_10(replace_masked(tokens, tokens > 0, rng, REPLACEMENT))


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_only_maskable_tokens_are_masked(share: float) -> None:
    tokens, maskable = np.array([2, 9, 8, 3]), np.array([False, True, True, False])
    always = Replacement(mask_id=4, vocab_size=10, to_mask=1, to_random=0)
    drawn = np.random.default_rng(0).random((4, 2))
    every = np.ones(4, dtype=np.bool_)
    masked = mask_drawn(tokens, maskable, every, drawn, share=share, replacement=always)
    assert masked.masked.tolist() == (maskable & (share == 1)).tolist()
    assert masked.tokens.tolist() == ([2, 4, 4, 3] if share else [2, 9, 8, 3])


@given(st.lists(st.integers(0, 3), max_size=12), st.integers(0, 2**32))
def test_pieces_of_a_word_have_one_fate(lengths: list[int], seed: int) -> None:
    words = np.array([-1, *(w for w, n in enumerate(lengths) for _ in range(n)), -1])
    tokens = np.arange(len(words)) + 100
    masked = masked_at_random(tokens, words, seed, 0.5)
    assert not masked.masked[[0, -1]].any()
    assert (masked.tokens == tokens)[~masked.masked].all()
    for word in set(words.tolist()):
        pieces = words == word
        assert len(set(masked.masked[pieces].tolist())) == 1
        assert len(set((masked.tokens[pieces] == REPLACEMENT.mask_id).tolist())) == 1


@pytest.mark.parametrize("rule", [segments, one_span])
def test_rules_for_nothing(rule: Callable[..., Flags]) -> None:
    assert rule(0, np.random.default_rng(0)).tolist() == []


@pytest.mark.parametrize(("count", "share"), [(10, 0.176), (13, 0.179), (20, 0.182), (34, 0.185)])
def test_segments_mask_as_much_as_the_paper_s_rule(count: int, share: float) -> None:
    rng = np.random.default_rng(0)
    masked = sum(int(segments(count, rng).sum()) for _ in range(4000)) / (4000 * count)
    assert masked == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize(("count", "share"), [(3, 0.0), (10, 0.350), (13, 0.346), (20, 0.342)])
def test_spans_mask_as_much_as_the_released_rule(count: int, share: float) -> None:
    rng = np.random.default_rng(0)
    masked = sum(int(one_span(count, rng).sum()) for _ in range(8000)) / (8000 * count)
    assert masked == pytest.approx(share, abs=0.012)


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.integers(0, 2**32))
def test_whole_words_keep_to_their_budget(continues: list[bool], seed: int) -> None:
    count = len(continues)
    blocked = [i in (0, count - 1) for i in range(count)]
    masked = whole_words(continues, blocked, np.random.default_rng(seed), share=0.15)
    assert masked.sum() <= max(1, round(0.15 * count))
    assert not (masked & blocked).any()
    for i in range(2, count - 1):
        if continues[i]:
            assert masked[i] == masked[i - 1]


@given(
    words=st.lists(st.tuples(st.booleans(), st.booleans()), max_size=12),
    share=st.sampled_from([0.0, 0.15, 0.6, 1.0]),
    seed=st.integers(0, 1000),
)
def test_texts_at_once_are_masked_as_token_by_token(
    words: list[tuple[bool, bool]], share: float, seed: int
) -> None:
    """Given for each token whether it may be masked and whether it goes on with a word."""
    maskable = np.array([may for may, _ in words], dtype=np.bool_)
    first = np.array([not on for _, on in words], dtype=np.bool_)
    first[:1] = True
    tokens = np.arange(100, 100 + len(words))
    drawn = np.random.default_rng(seed).random((len(words), 2))
    masked = mask_drawn(tokens, maskable, first, drawn, share=share, replacement=REPLACEMENT)
    seen, flags, fate = tokens.copy(), np.zeros(len(words), dtype=np.bool_), 1.0
    for i, (number, other) in enumerate(drawn.tolist()):
        fate = number if first[i] else fate
        flags[i] = maskable[i] and fate < share
        if flags[i] and fate / share < 0.8:
            seen[i] = REPLACEMENT.mask_id
        elif flags[i] and fate / share < 0.9:
            seen[i] = int(other * REPLACEMENT.vocab_size)
    assert masked.masked.tolist() == flags.tolist()
    assert masked.tokens.tolist() == seen.tolist()
