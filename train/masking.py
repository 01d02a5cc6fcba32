"""Masking of words and regions: pure functions of a generator.  T tokens, R regions."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class MaskedTokens:
    """``tokens`` [T] as the model sees them; ``masked`` [T] where the original is to be guessed."""

    tokens: Ids
    masked: Flags


def mask_tokens(
    tokens: Ids,
    maskable: Flags,
    rng: np.random.Generator,
    *,
    share: float,
    to_mask: float,
    to_random: float,
    mask_id: int,
    vocab_size: int,
) -> MaskedTokens:
    """BERT's masking (Devlin et al. 2018, sec. 3.1): each maskable token with chance ``share``.

    Of the chosen, ``to_mask`` become [MASK], ``to_random`` any token of the vocabulary, the rest
    stays; all of them are to be guessed. Special tokens are not ``maskable``.
    """
    masked = maskable & (rng.random(len(tokens)) < share)
    fate = rng.random(len(tokens))
    random_tokens = rng.integers(vocab_size, size=len(tokens))
    seen = np.where(masked & (fate < to_mask), mask_id, tokens)
    seen = np.where(masked & (fate >= to_mask) & (fate < to_mask + to_random), random_tokens, seen)
    return MaskedTokens(tokens=seen.astype(np.int64), masked=masked)


@dataclass(frozen=True, kw_only=True)
class MaskedRegions:
    """``masked`` [R] regions are to be guessed; of those ``zeroed`` [R] lose their feature."""

    masked: Flags
    zeroed: Flags


def mask_regions(
    count: int, rng: np.random.Generator, *, share: float, to_zero: float
) -> MaskedRegions:
    """ImageBERT's masking of regions (sec. 3.3): 15 %, of those 90 % zeroed, the others kept."""
    masked = rng.random(count) < share
    return MaskedRegions(masked=masked, zeroed=masked & (rng.random(count) < to_zero))
