"""Computes exact scores of bags, and enters the bags into the lists of the best."""

from typing import Any

import numpy as np

from vlmill.pipelines.hard_negatives.arrays import INLINE, WORD_BITS, Bags, Part
from vlmill.pipelines.hard_negatives.compiled import inlined
from vlmill.pipelines.hard_negatives.state import (
    BEST,
    NEAR,
    REJECTS,
    ROUND,
    Query,
    QueryInfo,
    Rules,
    State,
)

CLOSE = 1e-9  # a cosine this close to the threshold is decided with integers


@inlined
def is_below(dot: int, norm2_q: int, norm2_d: int, numerator: int, denominator: int) -> bool:
    """Returns whether dot / sqrt(norm2_q norm2_d) < numerator / denominator, exactly.

    Products with numerator or denominator must be below 2^63; their squares have 126 bits.
    """
    left, right_q, right_d = denominator * dot, numerator * norm2_q, numerator * norm2_d
    left_high, left_low = _product(left, left)
    right_high, right_low = _product(right_q, right_d)
    if left_high != right_high:
        return bool(left_high < right_high)
    return bool(left_low < right_low)


@inlined
def _product(a: int, b: int) -> tuple[Any, Any]:
    """Returns the upper and lower 64 bits of a product of numbers below 2^63."""
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    a1, a0 = np.uint64(a) >> half, np.uint64(a) & low
    b1, b0 = np.uint64(b) >> half, np.uint64(b) & low
    lowest = a0 * b0
    middle = a1 * b0 + (lowest >> half)
    other = a0 * b1 + (middle & low)
    return a1 * b1 + (middle >> half) + (other >> half), (other << half) | (lowest & low)


@inlined
def score_bags(part: Part, state: State, count: int, norm2: int, min_score: float) -> Any:
    """Keeps the bags, of ``count``, whose score is at least ``min_score``; returns their number.

    ``dots``, ``norms`` and ``scores`` receive their values; ``norm2`` is the query's. A bag that
    does not fit into a row is scored once per round, because captions of thousands of words would
    occur in thousands of lists.
    """
    query, scratch, rows, row_numbers = (
        state.query,
        state.scratch,
        part.rows,
        state.scratch.row_numbers,
    )
    ahead = np.int32(0)
    for k in range(count):  # requests all of their cache lines together
        ahead |= rows[np.uint64(row_numbers[k]), 0]
    if ahead < 0:  # never true: keeps the compiler from removing the reads above
        return 0
    num, word_mask = 0, np.int32((1 << WORD_BITS) - 1)
    for k in range(count):
        row = np.uint64(row_numbers[k])
        dot, norm2_d = np.int64(0), np.int64(rows[row, 0])
        for j in range(3, 3 + INLINE):  # without a word, the count is 0
            packed_word = rows[row, j]
            slot = np.uint64(query.slots[np.uint64(packed_word & word_mask)])
            dot += np.int64(packed_word >> np.int32(WORD_BITS)) * query.masses[slot]
        if rows[row, 2]:
            long = rows[row, 0]
            if state.rounds[long] == state.counters[ROUND]:
                continue
            state.rounds[long] = state.counters[ROUND]
            dot, norm2_d = _long_dot(part, query, long)
        score = np.float64(dot) / np.sqrt(np.float64(norm2) * np.float64(norm2_d))
        if score >= min_score and dot > 0:
            row_numbers[num], scratch.dots[num] = row_numbers[k], dot
            scratch.norms[num], scratch.scores[num] = norm2_d, score
            num += 1
    return num


@inlined
def _long_dot(part: Part, query: Query, long: int) -> tuple[Any, Any]:
    """Returns the product with a bag that does not fit into a row, and its squared length."""
    dot = np.int64(0)
    for j in range(part.long_start[long], part.long_start[long + 1]):
        dot += np.int64(part.long_counts[j]) * query.masses[query.slots[part.long_words[j]]]
    return dot, part.long_norm2[long]


@inlined
def judge(bags: Bags, part: Part, rules: Rules, state: State, info: QueryInfo, count: int) -> None:
    """Classifies ``count`` scored bags: each is among the best, a near duplicate, or neither."""
    scratch, counters, below = state.scratch, state.counters, rules.numerator / rules.denominator
    for k in range(count):
        row, score = scratch.row_numbers[k], scratch.scores[k]
        if counters[BEST] == rules.top and score < state.best.scores[rules.top - 1]:
            continue
        valid = score < below
        if abs(score - below) < CLOSE:
            dot, norm2 = scratch.dots[k], scratch.norms[k]
            valid = is_below(dot, info.norm2, norm2, rules.numerator, rules.denominator)
        if valid:
            _consider(bags, part.rows[row, 1], row, score, info.image, rules.top, state)
        elif counters[NEAR] < REJECTS:
            _remember(state, row)


@inlined
def _remember(state: State, row: int) -> None:
    """Stores the position of a near duplicate, once."""
    for j in range(state.counters[NEAR]):
        if state.near[j] == row:
            return
    state.near[state.counters[NEAR]] = row
    state.counters[NEAR] += 1


@inlined
def _consider(
    bags: Bags, who: int, row: int, score: float, image: int, top: int, state: State
) -> None:
    """Enters the captions of a bag into the list of the best.

    ``who`` is the only caption of the bag, or ``-1 - bag``. ``image`` is the query's image, -1 if
    the image has no other caption.
    """
    if who >= 0:
        if image < 0 or bags.images[who] != image:
            _enter(state, top, score, who, row)
        return
    for k in range(bags.member_start[-1 - who], bags.member_start[-who]):
        number = bags.members[k]
        if image >= 0 and bags.images[number] == image:
            continue
        if not _enter(state, top, score, number, row):  # the other captions sort later
            return


@inlined
def _enter(state: State, top: int, score: float, number: int, row: int) -> bool:
    """Adds a caption to the best unless listed; returns False if all ``top`` are better."""
    scores, numbers, row_numbers = state.best
    size = position = state.counters[BEST]
    while position > 0 and (
        scores[position - 1] < score
        or (scores[position - 1] == score and numbers[position - 1] > number)
    ):
        position -= 1
    if position > 0 and numbers[position - 1] == number:
        return True
    if position == top:
        return False
    for k in range(min(size, top - 1), position, -1):
        scores[k], numbers[k], row_numbers[k] = scores[k - 1], numbers[k - 1], row_numbers[k - 1]
    scores[position], numbers[position], row_numbers[position] = score, number, row
    state.counters[BEST] = min(size + 1, top)
    return True
