"""Exact scores of bags, and the lists of the best that they enter."""

from typing import Any, NamedTuple

import numpy as np

from vlmill.pipelines.hard_negatives.arrays import INLINE, WORD_BITS, Array
from vlmill.pipelines.hard_negatives.compiled import compiled_bare


class Rules(NamedTuple):
    """What counts: ``top`` best with a cosine strictly below ``numerator / denominator``."""

    top: int
    numerator: int
    denominator: int


class Best(NamedTuple):
    """The best so far, best first: cosines float64, captions and places of their bags int32."""

    scores: Array
    numbers: Array
    places: Array


@compiled_bare
def is_below(dot: int, norm2_q: int, norm2_d: int, numerator: int, denominator: int) -> bool:
    """Whether dot / sqrt(norm2_q norm2_d) < numerator / denominator, exactly.

    Products with numerator or denominator must stay below 2^63; their squares are of 126 bits.
    """
    left, right_q, right_d = denominator * dot, numerator * norm2_q, numerator * norm2_d
    left_high, left_low = _product(left, left)
    right_high, right_low = _product(right_q, right_d)
    if left_high != right_high:
        return bool(left_high < right_high)
    return bool(left_low < right_low)


@compiled_bare
def _product(a: int, b: int) -> tuple[Any, Any]:
    """The upper and lower 64 bits of a product of numbers below 2^63."""
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    a1, a0 = np.uint64(a) >> half, np.uint64(a) & low
    b1, b0 = np.uint64(b) >> half, np.uint64(b) & low
    lowest = a0 * b0
    middle = a1 * b0 + (lowest >> half)
    other = a0 * b1 + (middle & low)
    return a1 * b1 + (middle >> half) + (other >> half), (other << half) | (lowest & low)


@compiled_bare
def score_bags(
    rows: Array,
    long_start: Array,
    long_norm2: Array,
    long_words: Array,
    long_counts: Array,
    slots: Array,
    masses: Array,
    norm2_q: int,
    least: float,
    places: Array,
    count: int,
    dots: Array,
    norms: Array,
    scores: Array,
) -> Any:
    """Keeps of ``count`` places those whose score is at least ``least``; returns how many.

    ``dots`` and ``norms`` int64 and ``scores`` float64 receive what belongs to them.
    """
    ahead = np.int32(0)
    for k in range(count):  # all of their cache lines are on their way at once
        ahead |= rows[np.uint64(places[k]), 0]
    if ahead < 0:  # never: so that the reads above are not left out
        return 0
    num, word_mask = 0, np.int32((1 << WORD_BITS) - 1)
    for k in range(count):
        place = np.uint64(places[k])
        dot, norm2 = np.int64(0), np.int64(rows[place, 0])
        for j in range(3, 3 + INLINE):  # where there is no word, the count is 0
            packed = rows[place, j]
            slot = np.uint64(slots[np.uint64(packed & word_mask)])
            dot += np.int64(packed >> np.int32(WORD_BITS)) * masses[slot]
        if rows[place, 2]:
            long = rows[place, 0]
            dot, norm2 = np.int64(0), long_norm2[long]
            for j in range(long_start[long], long_start[long + 1]):
                dot += np.int64(long_counts[j]) * masses[slots[long_words[j]]]
        score = np.float64(dot) / np.sqrt(np.float64(norm2_q) * np.float64(norm2))
        if score >= least and dot > 0:
            places[num], dots[num], norms[num], scores[num] = places[k], dot, norm2, score
            num += 1
    return num


@compiled_bare
def consider(
    member_start: Array,
    members: Array,
    images: Array,
    best: Best,
    size: int,
    rules: Rules,
    score: float,
    who: int,
    place: int,
    image: int,
) -> int:
    """Enters the captions of a bag into the ``size`` best; returns how many these are then.

    ``who`` is the only caption of the bag, or ``-1 - bag``. ``image`` is the query's picture, -1
    where it has no other caption.
    """
    if who >= 0:
        if image >= 0 and images[who] == image:
            return size
        return abs(_enter(best, size, rules.top, score, who, place))
    for k in range(member_start[-1 - who], member_start[-who]):
        number = members[k]
        if image >= 0 and images[number] == image:
            continue
        outcome = _enter(best, size, rules.top, score, number, place)
        if outcome < 0:  # the others come later among equals
            break
        size = outcome
    return size


@compiled_bare
def _enter(best: Best, size: int, top: int, score: float, number: int, place: int) -> int:
    """Puts a caption among the ``size`` best unless it is there: how many are they then.

    The number is negative where all of ``top`` are better.
    """
    at = size
    while at > 0 and (
        best.scores[at - 1] < score
        or (best.scores[at - 1] == score and best.numbers[at - 1] > number)
    ):
        at -= 1
    if at > 0 and best.numbers[at - 1] == number:
        return size
    if at == top:
        return -size
    for k in range(min(size, top - 1), at, -1):
        best.scores[k], best.numbers[k] = best.scores[k - 1], best.numbers[k - 1]
        best.places[k] = best.places[k - 1]
    best.scores[at], best.numbers[at], best.places[at] = score, number, place
    return min(size + 1, top)
