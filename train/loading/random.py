"""Generates counter-based random numbers: pure functions of (seed, stage, epoch, pair).

B pairs, N numbers. The n-th number of a pair is splitmix64's n-th from the pair's own start
(Steele, Lea and Flood 2014), so that the numbers of a whole batch are computed in one pass:
creating NumPy's generator for one pair takes longer than sampling a pair's masks. Orders use such
streams too. PyTorch samples its numbers (dropout, initial weights) separately.
"""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from vlmill.train.loading.arrays import Ids, Keys

FACTOR, ALL_BITS = 0x9E3779B97F4A7C15, (1 << 64) - 1


Numbers = npt.NDArray[np.float64]
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
BLOCK = 256  # numbers that a pair is given per block
MANTISSA = 2.0**-53
KEYS_AT_ONCE = 1 << 16  # keys that are made in one pass, so that they stay in the cache


def scramble(values: Keys) -> Keys:
    """Maps any 64 bits to others, one to one: splitmix64's last step."""
    values = (values ^ (values >> np.uint64(30))) * FIRST
    values = (values ^ (values >> np.uint64(27))) * SECOND
    return values ^ (values >> np.uint64(31))


def stream_starts(seed: int, stage: int, epochs: Any, keys: Any) -> Keys:
    """Returns where the streams of pairs [B], each in its epoch, begin."""
    start = np.zeros(len(keys), dtype=np.uint64)
    for part in (seed, stage, epochs, keys):
        start = scramble(start + GOLDEN + np.asarray(part, dtype=np.uint64))
    return start


def uniforms(starts: Keys, first: int, count: int) -> Numbers:
    """Returns ``count`` numbers of each stream from ``first``, in [0, 1): float64 [B, N]."""
    steps = np.arange(first + 1, first + count + 1, dtype=np.uint64) * GOLDEN
    numbers: Numbers = (scramble(starts[:, None] + steps) >> np.uint64(11)).astype("f8") * MANTISSA
    return numbers


class Uniforms:
    """Reads one stream number by number; ``drawn`` are its first numbers."""

    def __init__(self, start: int = 0, drawn: Numbers | None = None) -> None:
        self._start, self._at = start, 0
        self._drawn = np.empty(0) if drawn is None else drawn

    def random(self) -> float:
        """Returns a number from 0 to below 1."""
        position = self._at
        if position >= len(self._drawn):
            self._extend(1)
        self._at = position + 1
        return self._drawn.item(position)

    def many(self, count: int) -> Numbers:
        """Returns the next ``count`` numbers: float64 [N]."""
        position, self._at = self._at, self._at + count
        if self._at > len(self._drawn):
            self._extend(self._at - len(self._drawn))
        return self._drawn[position : self._at]

    def _extend(self, count: int) -> None:
        starts = np.array([self._start], dtype=np.uint64)
        further = uniforms(starts, len(self._drawn), max(count, BLOCK))[0]
        self._drawn = np.concatenate([self._drawn, further])

    def integers(self, low: int, high: int) -> int:
        """Returns an integer from ``low`` to below ``high``."""
        return low + int(self.random() * (high - low))

    def shuffle(self, x: list[int]) -> None:
        """Shuffles a list in place."""
        x[:] = [value for _, value in sorted(zip(self.many(len(x)).tolist(), x, strict=True))]


def streams(seed: int, stage: int, epochs: Any, keys: Any) -> list[Uniforms]:
    """Returns the streams of pairs [B], each in its epoch."""
    starts = stream_starts(seed, stage, epochs, keys)
    drawn = uniforms(starts, 0, BLOCK)
    return [Uniforms(start, row) for start, row in zip(starts.tolist(), drawn, strict=True)]


class Draws(Protocol):
    """Lists the methods that rules call for random numbers."""

    def random(self) -> float:
        """Returns a number from 0 to below 1."""

    def integers(self, low: int, high: int) -> Any:
        """Returns an integer from ``low`` to below ``high``."""

    def shuffle(self, x: list[int]) -> None:
        """Shuffles a list in place."""


def permutation(start: int, count: int) -> Ids:
    """Returns the numbers from 0 to below ``count`` in random order, int64 [count].

    They are sorted by the numbers of the stream that begins at ``start``. Each value keeps the
    upper bits of its number, with its index in the lower bits: sorting one array of values takes a
    third of the time of NumPy's shuffling (10 million: 0.15 s, not 0.5). Equal upper bits leave two
    numbers in their order, which happens to a pair of 10 million with a chance of 2^-40.
    """
    mask = np.uint64((1 << max(count - 1, 1).bit_length()) - 1)
    keys = np.empty(count, dtype=np.uint64)
    for first in range(0, count, KEYS_AT_ONCE):
        numbers = np.arange(first, min(first + KEYS_AT_ONCE, count), dtype=np.uint64)
        drawn = scramble(np.uint64(start) + (numbers + np.uint64(1)) * GOLDEN)
        keys[first : first + len(numbers)] = drawn & ~mask | numbers
    keys.sort()
    keys &= mask
    return keys.view(np.int64)


def mix(text_key: Keys | int, image_key: Keys | int) -> Any:
    """Returns one uint64 key of a text and an image, or an array of them."""
    if isinstance(text_key, int):
        return np.uint64((FACTOR * text_key + int(image_key)) & ALL_BITS)
    return np.uint64(FACTOR) * text_key + image_key  # wraps around
