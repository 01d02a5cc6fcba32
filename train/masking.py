"""Masking of words: pure functions of a source of random numbers.  T tokens, W words.

Every rule draws in the order of the published code, one number at a time, so that a test can feed
it what a run of that code drew.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

NO_WORD = -1  # a token that no rule may mask, such as [CLS]


class Draws(Protocol):
    """Where rules take their random numbers from; NumPy's ``Generator`` is one."""

    def random(self) -> float:
        """A number from 0 to below 1."""

    def integers(self, low: int, high: int) -> Any:
        """An integer from ``low`` to below ``high``."""

    def shuffle(self, x: list[int]) -> None:
        """Bring a list into random order, in place."""


@dataclass(frozen=True, kw_only=True)
class MaskedTokens:
    """``tokens`` [T] as the model sees them; ``masked`` [T] where the original is to be guessed."""

    tokens: Ids
    masked: Flags

    def labels(self, original: Ids, ignored: int) -> Ids:
        """The ids [T] to be guessed, ``ignored`` where nothing is."""
        return np.where(self.masked, original, ignored)


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """What becomes of masked tokens: ``to_mask`` [MASK], ``to_random`` any id, the rest stays.

    BERT's shares (Devlin et al. 2018, sec. 3.1), which all five papers keep. Random ids are of the
    whole vocabulary, special and unused entries included.
    """

    mask_id: int
    vocab_size: int
    to_mask: float = 0.8
    to_random: float = 0.1

    def of(self, token: int, fate: float, draws: Draws) -> int:
        """What the model sees of a masked token whose ``fate`` was drawn from [0, 1)."""
        if fate < self.to_mask:
            return self.mask_id
        if fate < self.to_mask + self.to_random:
            return int(draws.integers(0, self.vocab_size))
        return token


def mask_tokens(
    tokens: Ids, maskable: Flags, draws: Draws, *, share: float, replacement: Replacement
) -> MaskedTokens:
    """BERT's masking: each maskable token [T] with chance ``share``, each for itself.

    That of ViLBERT (its code, 15 %), ImageBERT, InterBERT without segments and VLMo without whole
    words. Special tokens are not ``maskable``.
    """
    words = np.where(maskable, np.arange(len(tokens)), NO_WORD)
    return mask_words(tokens, words, draws, share=share, replacement=replacement)


def mask_words(
    tokens: Ids, words: Ids, draws: Draws, *, share: float, replacement: Replacement
) -> MaskedTokens:
    """Whole words [T] with chance ``share``: all pieces of a word have one fate (VL-BERT, 15 %).

    ``words`` gives each token's word, :data:`NO_WORD` for none; pieces of a word are neighbours.
    One number u decides: masked below ``share``, and u/share between the kinds of replacement.
    """
    seen, masked = tokens.astype(np.int64), np.zeros(len(tokens), dtype=np.bool_)
    word, drawn = NO_WORD, 1.0
    for i, own in enumerate(words.tolist()):
        if own != word and own != NO_WORD:
            drawn = draws.random()
        word = own
        if own != NO_WORD and drawn < share:
            masked[i] = True
            seen[i] = replacement.of(int(tokens[i]), drawn / share, draws)
    return MaskedTokens(tokens=seen, masked=masked)


def mask_drawn(
    tokens: Ids,
    maskable: Flags,
    first: Flags,
    drawn: npt.NDArray[np.float64],
    *,
    share: float,
    replacement: Replacement,
) -> MaskedTokens:
    """:func:`mask_words` of many texts at once: tokens [N], which begin a word ``first`` [N].

    Of the numbers ``drawn`` [N, 2] from [0, 1), the first of a word's first token is the word's
    fate, and the second of each token says which it becomes where it becomes any.
    """
    places = np.arange(len(tokens))
    fates = drawn[np.maximum.accumulate(np.where(first, places, 0)), 0]
    masked = maskable & (fates < share)
    at = np.flatnonzero(masked)
    fate = fates[at] / max(share, np.finfo(np.float64).tiny)
    others = (drawn[at, 1] * replacement.vocab_size).astype(np.int64)
    kept = fate >= replacement.to_mask + replacement.to_random
    seen = tokens.astype(np.int64)
    seen[at] = np.where(
        fate < replacement.to_mask, replacement.mask_id, np.where(kept, tokens[at], others)
    )
    return MaskedTokens(tokens=seen, masked=masked)


def replace_masked(
    tokens: Ids, masked: Flags, draws: Draws, replacement: Replacement
) -> MaskedTokens:
    """Tokens [T] of which ``masked`` were chosen before: one number for each, in their order."""
    seen = tokens.astype(np.int64)
    for i in np.flatnonzero(masked).tolist():
        seen[i] = replacement.of(int(tokens[i]), draws.random(), draws)
    return MaskedTokens(tokens=seen, masked=masked.astype(np.bool_))


def segments(
    count: int, draws: Draws, *, anchor_share: float = 0.10, max_further: int = 2
) -> Flags:
    """InterBERT's masked segment modelling as its paper says it: which of ``count`` tokens.

    Each token is an anchor with chance ``anchor_share`` and is masked with the next 0 to
    ``max_further`` (equal chances), as far as there are any; segments may overlap.
    """
    masked = np.zeros(count, dtype=np.bool_)
    for i in range(count):
        if draws.random() < anchor_share:
            masked[i : i + 1 + int(draws.integers(0, max_further + 1))] = True
    return masked


def one_span(count: int, draws: Draws) -> Flags:
    """InterBERT's released code: one span of ``count`` tokens, of up to all of them.

    Captions of up to three tokens stay whole. The start may be the place after the last token, and
    the span ends with the caption, so that often less than its length is masked.
    """
    masked = np.zeros(count, dtype=np.bool_)
    if int(0.3 * count):
        start = int(draws.integers(0, count + 1))
        length = int(draws.integers(1, count + 1))
        masked[start : start + length] = True
    return masked


def whole_words(
    continues: Sequence[bool], blocked: Sequence[bool], draws: Draws, *, share: float
) -> Flags:
    """VLMo's choice of whole words (its code): which of T tokens, before special ones are dropped.

    Token i belongs to the word before it where ``continues[i]``; ``blocked`` are [CLS] and [SEP].
    Padding counts as words, one each, so the budget of ``share`` of T (at least 1, halves to even)
    is that of the padded length unless only the caption itself is given. Words come in random
    order; one that would exceed the budget is passed over.
    """
    words: list[list[int]] = []
    for i in (i for i, is_blocked in enumerate(blocked) if not is_blocked):
        if continues[i] and words:
            words[-1].append(i)
        else:
            words.append([i])
    order, masked = list(range(len(words))), np.zeros(len(blocked), dtype=np.bool_)
    draws.shuffle(order)
    left = max(1, round(share * len(blocked)))
    for word in (words[i] for i in order):
        if not left:
            break
        if len(word) <= left:
            masked[word] = True
            left -= len(word)
    return masked
