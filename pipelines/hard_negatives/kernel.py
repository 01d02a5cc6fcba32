"""Searches the index, compiled by numba, reading few postings and few bags.

The similarity of a bag is bounded by values stored with its postings, in memory that is read
sequentially. Only bags whose bound reaches the current 30th best are read. Every bound is rounded
upwards, so no skipped bag could have been among the best.
"""

from typing import Any

import numpy as np

from vlmill.pipelines.hard_negatives.arrays import (
    CHUNK,
    EXCESS_UNIT,
    MOST_EXCESS,
    NORM_UNIT,
    UNKNOWN,
    Array,
    Bags,
    Part,
)
from vlmill.pipelines.hard_negatives.compiled import compiled, inlined
from vlmill.pipelines.hard_negatives.scores import judge, score_bags
from vlmill.pipelines.hard_negatives.state import (
    BEST,
    LOOKED_UP,
    NEAR,
    POSTINGS,
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

WIDTH = 16  # postings that fill the widest vector register


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
