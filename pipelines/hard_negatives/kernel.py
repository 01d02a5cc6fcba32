"""Searches the index, compiled by numba, reading few postings and few bags.

The similarity of a bag is bounded by values stored with its postings, in memory that is read
sequentially. Only bags whose bound reaches the current 30th best are read, and scored exactly.
Every bound is rounded upwards, so no skipped bag could have been among the best.
"""

from typing import Any

import numpy as np

from vlmill.pipelines.hard_negatives.arrays import (
    CHUNK,
    EXCESS_UNIT,
    INLINE,
    MOST_EXCESS,
    NORM_UNIT,
    UNKNOWN,
    WORD_BITS,
    Array,
    Bags,
    Part,
)
from vlmill.pipelines.hard_negatives.compiled import compiled, inlined
from vlmill.pipelines.hard_negatives.state import (
    BEST,
    LOOKED_UP,
    NEAR,
    POSTINGS,
    REJECTS,
    ROUND,
    WARM,
    Query,
    QueryInfo,
    Rules,
    Scratch,
    State,
    lay_out,
    new_state,
)

CLOSE = 1e-9  # a cosine this close to the threshold is decided with integers

WIDTH = 16  # postings that fill the widest vector register


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


@inlined
def list_masks(query: Query, first: int, last: int, scratch: Scratch) -> None:
    """Lists the distinct bits of the query's words ``first`` to ``last``, and their masses.

    The masses are rounded up.
    """
    sizes = scratch.mask_sizes
    for third in range(3):
        sizes[third] = 0
        mask_union = np.uint32(0)
        for k in range(first, last + 1):
            bit = query.bits[k]
            mask = np.uint32(1) << np.uint32(bit & 31)
            if bit >> 5 == third and not mask_union & mask:
                scratch.masks[third, sizes[third]] = mask
                mass = np.float32(query.bit_mass[bit]) * np.float32(1.000001)
                scratch.mask_mass[third, sizes[third]] = mass
                sizes[third] += 1
                mask_union |= mask


@inlined
def _add_bits(scratch: Scratch, third: int, bits: Array, offset: Any, width: Any) -> None:
    bounds = scratch.bounds
    for a in range(scratch.mask_sizes[third]):
        mask, mass = scratch.masks[third, a], scratch.mask_mass[third, a]
        for k in range(width):
            has = np.uint32(bits[offset + k] & mask) != np.uint32(0)
            bounds[k] += mass if has else np.float32(0)


@inlined
def list_reaching(
    part: Part, start: int, count: int, scratch: Scratch, base: float, spread: float, limit: float
) -> Any:
    """Stores in ``scratch.row_numbers`` the postings that may reach a score; returns their number.

    A bag's product with the query is at most ``base``, ``spread`` for each unit of its excess, and
    the masses of its bits; it must reach ``limit`` for each unit of its norm.
    """
    excess, norm, posting_rows = part.excess, part.norm, part.place
    bounds, passed, row_numbers = scratch.bounds, scratch.passed, scratch.row_numbers
    offset, num = np.uint64(start), np.uint64(count)
    # Full registers: arrays of postings end with padding that counts nothing.
    width = (num + np.uint64(WIDTH - 1)) // np.uint64(WIDTH) * np.uint64(WIDTH)
    first, more, threshold = np.float32(base), np.float32(spread * EXCESS_UNIT), np.float32(limit)
    for k in range(width):
        bounds[k] = first + more * np.float32(excess[offset + k])
    _add_bits(scratch, 0, part.bits0, offset, width)
    _add_bits(scratch, 1, part.bits1, offset, width)
    _add_bits(scratch, 2, part.bits2, offset, width)
    for k in range(width):
        reaches = bounds[k] >= threshold * np.float32(norm[offset + k])
        passed[k] = np.uint8(reaches) | np.uint8(excess[offset + k] == UNKNOWN)
    num_rows = np.uint64(0)
    for k in range(num):
        row_numbers[num_rows] = posting_rows[offset + k]
        num_rows += np.uint64(passed[k])
    return np.int64(num_rows)


def search(
    bags: Bags, part: Part, rules: Rules, first: int, floors: Array, lists: tuple[Array, Array]
) -> tuple[int, int]:
    """Searches ``part`` for the captions ``members[first:first + n]``; one result row each.

    ``floors`` float64 [n]: lower scores may be skipped. ``lists`` are int32 [n, top], which
    receives captions, best first and -1 for unused entries, and float64 [n, top] for their cosines.
    Returns the number of postings with a computed bound, and of bags that were read.
    """
    last = first + len(floors)
    bag = int(np.searchsorted(bags.member_start, first, side="right")) - 1
    end = int(np.searchsorted(bags.member_start, last, side="left"))
    longest = int(np.max(np.diff(bags.start[bag : end + 1]), initial=1))
    state = new_state(bags.weights.size, longest, part.long_norm2.size, rules.top)
    lists[0][:] = -1
    lists[1][:] = 0
    _search_all(bags, part, rules, state, bag, first, floors, lists)
    return int(state.counters[POSTINGS]), int(state.counters[LOOKED_UP])


@compiled
def _search_all(
    bags: Bags,
    part: Part,
    rules: Rules,
    state: State,
    bag: int,
    first: int,
    floors: Array,
    lists: tuple[Array, Array],
) -> None:
    """Searches for captions from ``members[first]`` of ``bag`` on, bag by bag.

    A bag of several captions is searched once, ignoring images; a caption whose image is in the
    result is searched separately.
    """
    begin, last = first, first + floors.size
    while begin < last:
        end = min(bags.member_start[bag + 1], last)
        common = begin - first  # the result row that captions of a bag share
        is_shared = end - begin > 1
        if is_shared:
            floor = floors[common]
            for row in range(common, end - first):
                floor = min(floor, floors[row])
            _find(bags, part, rules, state, bag, np.int64(-1), floor)
            for row in range(common, end - first):
                _copy_best(state, lists, row)
        for row in range(common, end - first):
            image = np.int64(bags.images[bags.members[first + row]])
            if not is_shared or _has_image(bags, image, lists[0], row):
                _find(bags, part, rules, state, bag, image, floors[row])
                _copy_best(state, lists, row)
        begin = end
        bag += 1


@inlined
def _has_image(bags: Bags, image: Any, numbers: Array, row: int) -> bool:
    """Returns whether a caption of an image is in a row of the results; -1 means no image."""
    if image >= 0:
        for k in range(numbers.shape[1]):
            if numbers[row, k] >= 0 and bags.images[numbers[row, k]] == image:
                return True
    return False


@inlined
def _copy_best(state: State, lists: tuple[Array, Array], row: int) -> None:
    numbers, scores = lists
    size = state.counters[BEST]
    for k in range(numbers.shape[1]):
        numbers[row, k] = state.best.numbers[k] if k < size else -1
        scores[row, k] = state.best.scores[k] if k < size else 0.0


@compiled
def _find(
    bags: Bags, part: Part, rules: Rules, state: State, bag: int, image: Any, floor: float
) -> None:
    """Finds the best captions for one query."""
    query, counters = state.query, state.counters
    words, max_count = lay_out(bags, bag, query)
    info = QueryInfo(words, max_count, bags.norm2[bag], image, floor)
    _begin(bags, part, rules, state, info)
    for slot in range(1, words + 1):
        query.bit_mass[query.bits[slot]] -= query.masses[slot]
        list_masks(query, slot + 1, words, state.scratch)
        for kind in range(2):
            _search_list(bags, part, rules, state, info, slot, kind == 1)
    for slot in range(1, words + 1):
        query.slots[query.words[slot]] = 0
    size = counters[BEST]
    for k in range(size):
        state.warm[k] = state.best.row_numbers[k]
    for k in range(counters[NEAR]):
        state.warm[size + k] = state.near[k]
    counters[WARM] = size + counters[NEAR]


@inlined
def _begin(bags: Bags, part: Part, rules: Rules, state: State, info: QueryInfo) -> None:
    """Scores the results of the last query first, because many of them are near this query too."""
    counters, scratch = state.counters, state.scratch
    counters[BEST] = counters[NEAR] = 0
    counters[ROUND] += 1
    num = counters[WARM]
    for k in range(num):
        scratch.row_numbers[k] = state.warm[k]
    counters[LOOKED_UP] += num
    num = score_bags(part, state, num, info.norm2, info.floor)
    judge(bags, part, rules, state, info, num)
    counters[NEAR] = 0  # near duplicates of this query are found again, in another round
    counters[ROUND] += 1


@inlined
def _search_list(
    bags: Bags, part: Part, rules: Rules, state: State, info: QueryInfo, slot: int, in_b: bool
) -> None:
    """Searches the postings of the query's word at ``slot``, of class A or of class B."""
    query, scratch, counters = state.query, state.scratch, state.counters
    word = query.words[slot]
    p = part.list_middle[word] if in_b else part.list_start[word]
    end = part.list_start[word + 1] if in_b else part.list_middle[word]
    mass, max_count, norm = (
        np.float64(query.masses[slot]),
        np.float64(info.max_count),
        np.sqrt(np.float64(info.norm2)),
    )
    # No bag from here on has a larger product.
    reach = np.float64(query.tail_mass[slot]) + (0.0 if in_b else max_count * MOST_EXCESS)
    # The bound is a sum of float32, the limit one product: both errors are below this.
    slack = max(0.0, 1.0 - (info.words + 16) * 2.0**-22)
    while p < end:
        is_full = counters[BEST] == rules.top
        theta = state.best.scores[rules.top - 1] if is_full else info.floor
        limit = theta * norm * slack
        lowest = np.float64(part.norm[p]) * NORM_UNIT
        if in_b:
            lowest = np.float64(part.reach[part.place[p]])
        if limit * lowest > reach:
            break
        n = min(CHUNK, end - p)
        num = list_reaching(part, p, n, scratch, mass, max_count, limit * NORM_UNIT)
        counters[POSTINGS] += n
        counters[LOOKED_UP] += num
        num = score_bags(part, state, num, info.norm2, theta)
        judge(bags, part, rules, state, info, num)
        p += n
