"""The search itself, compiled by numba: few postings are read, and few bags looked up.

A bag's similarity is bounded from what stands beside its postings, in memory that is read in order;
only bags whose bound reaches the 30th best so far cost a read elsewhere. Every bound errs upwards,
so that what is passed over could not have been among the best.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np

from vlmill.pipelines.hard_negatives.arrays import Array, Bags, Part

Function = TypeVar("Function", bound=Callable[..., Any])

CHUNK = 128  # postings that are bounded together
WIDTH = 16  # and this many fill the widest vector register
OWN_BITS, BITS = 20, 96  # of a signature: the most frequent words have a bit of their own
ROW = 16  # int32 of a bag's row: 64 bytes
INLINE = 13  # words that a row holds
WORD_BITS = 20  # of a packed word; its count lies above
EXCESS_UNIT, NORM_UNIT = 1024, 0.5  # of `excess` and `norm`, in units of weights
UNKNOWN = 65535  # an excess too large for its type: such a bag is always looked up
MOST_EXCESS = 8 << 16  # of a bag of class A
REJECTS = 32  # near duplicates that are tried again for the next query
CLOSE = 1e-9  # a cosine this close to the threshold is decided with integers
REFUSED, ENTERED, PRESENT = 0, 1, 2


def compiled(function: Function) -> Function:
    """Compiles at the first call, once for all runs; other threads go on meanwhile."""
    jitted: Any = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return cast(Function, jitted)


def inlined(function: Function) -> Function:
    """Compiled into its callers: a call would copy the addresses of all arrays, some 200 words."""
    jitted: Any = numba.njit(inline="always", error_model="numpy")(function)
    return cast(Function, jitted)


class Rules(NamedTuple):
    """What counts: ``top`` best with a cosine strictly below ``numerator / denominator``."""

    top: int
    numerator: int
    denominator: int


class Scratch(NamedTuple):
    """What one thread needs for a query; ``slots`` int32 [V] is all zero between queries."""

    slots: Array  # of a word of the query its place among them from 1 on, heaviest first
    words: Array
    masses: Array  # [1 + words] tf * w by slot; 0 of slot 0
    rest: Array  # [1 + words] masses of a slot and all after it
    best_scores: Array
    best_numbers: Array
    best_places: Array
    warm: Array  # places of the last query's best and near duplicates
    rejects: Array
    bit_mass: Array
    masks: Array  # [3, 32] bits of the words not yet listed, by the signature's three parts
    mask_mass: Array
    bounds: Array
    passed: Array
    kept: Array


@compiled
def bit_of(word: int) -> int:
    """The bit of a word in a signature."""
    if word < OWN_BITS:
        return word
    return OWN_BITS + ((word * 2654435761) >> 8) % (BITS - OWN_BITS)


@compiled
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


@compiled
def _product(a: int, b: int) -> tuple[Any, Any]:
    """The upper and lower 64 bits of a product of numbers below 2^63."""
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    a1, a0 = np.uint64(a) >> half, np.uint64(a) & low
    b1, b0 = np.uint64(b) >> half, np.uint64(b) & low
    lowest = a0 * b0
    middle = a1 * b0 + (lowest >> half)
    other = a0 * b1 + (middle & low)
    return a1 * b1 + (middle >> half) + (other >> half), (other << half) | (lowest & low)


@compiled
def _scratch(num_words: int, longest: int, top: int) -> Scratch:
    return Scratch(
        np.zeros(num_words, np.int32),
        np.zeros(longest + 1, np.int32),
        np.zeros(longest + 1, np.int64),
        np.zeros(longest + 2, np.int64),
        np.zeros(top, np.float64),
        np.zeros(top, np.int32),
        np.zeros(top, np.int32),
        np.zeros(top + REJECTS, np.int32),
        np.zeros(REJECTS, np.int32),
        np.zeros(BITS, np.int64),
        np.zeros((3, 32), np.uint32),
        np.zeros((3, 32), np.float32),
        np.zeros(CHUNK, np.float32),
        np.zeros(CHUNK, np.uint8),
        np.zeros(CHUNK, np.int32),
    )


@inlined
def _spread(bags: Bags, query: int, s: Scratch) -> tuple[int, int]:
    """Lays a query's words out, heaviest first; (how many, how often the most frequent comes)."""
    begin = bags.start[query]
    size = bags.start[query + 1] - begin
    most = 1
    for k in range(size):
        word, count = bags.words[begin + k], bags.counts[begin + k]
        s.words[k + 1], s.masses[k + 1] = word, count * bags.weights[word]
        most = max(most, count)
    if size > 64:
        order = np.argsort(-s.masses[1 : size + 1]) + 1
        s.words[1 : size + 1] = s.words[order]
        s.masses[1 : size + 1] = s.masses[order]
    else:
        for k in range(2, size + 1):
            word, mass, at = s.words[k], s.masses[k], k
            while at > 1 and s.masses[at - 1] < mass:
                s.words[at], s.masses[at] = s.words[at - 1], s.masses[at - 1]
                at -= 1
            s.words[at], s.masses[at] = word, mass
    s.bit_mass[:] = 0
    s.rest[size + 1] = 0
    for k in range(size, 0, -1):
        s.slots[s.words[k]] = k
        s.bit_mass[bit_of(s.words[k])] += s.masses[k]
        s.rest[k] = s.rest[k + 1] + s.masses[k]
    return size, most


@compiled
def _wide(low: int, high: int) -> Any:
    return (np.int64(high) << 32) | (np.int64(low) & 0xFFFFFFFF)


@inlined
def _dot(
    rows: Array, long_words: Array, long_counts: Array, slots: Array, masses: Array, place: int
) -> tuple[Any, Any]:
    """The product of a bag with the query, and the first slot that they share."""
    dot, first = np.int64(0), np.int64(2**31)
    count = np.int64(rows[place, 2])
    if count >= 0:
        for k in range(3, 3 + count):
            packed = rows[place, k]
            slot = np.int64(slots[packed & ((1 << WORD_BITS) - 1)])
            dot += np.int64(packed >> WORD_BITS) * masses[slot]
            first = min(first, slot if slot > 0 else np.int64(2**31))
    else:
        begin = _wide(rows[place, 3], rows[place, 4])
        for k in range(begin, begin - count):
            slot = np.int64(slots[long_words[k]])
            dot += np.int64(long_counts[k]) * masses[slot]
            first = min(first, slot if slot > 0 else np.int64(2**31))
    return dot, first


@inlined
def _norm2(rows: Array, place: int) -> Any:
    if rows[place, 2] >= 0:
        norm2 = np.int64(rows[place, 0])
    else:
        norm2 = _wide(rows[place, 5], rows[place, 6])
    return norm2


@inlined
def _enter(s: Scratch, size: int, top: int, score: float, number: int, place: int) -> int:
    """Puts a caption among the best, unless it is there or all of them are better."""
    if size == top:
        last = s.best_scores[top - 1]
        if score < last or (score == last and number >= s.best_numbers[top - 1]):
            for k in range(size):
                if s.best_numbers[k] == number:
                    return PRESENT
            return REFUSED
    for k in range(size):
        if s.best_numbers[k] == number:
            return PRESENT
    at = min(size, top - 1)
    while at > 0 and (
        s.best_scores[at - 1] < score
        or (s.best_scores[at - 1] == score and s.best_numbers[at - 1] > number)
    ):
        s.best_scores[at] = s.best_scores[at - 1]
        s.best_numbers[at] = s.best_numbers[at - 1]
        s.best_places[at] = s.best_places[at - 1]
        at -= 1
    s.best_scores[at], s.best_numbers[at], s.best_places[at] = score, number, place
    return ENTERED


@inlined
def _consider(
    bags: Bags,
    bag: int,
    rules: Rules,
    s: Scratch,
    place: int,
    dot: int,
    norm2_q: int,
    norm2_d: int,
    image: int,
    size: int,
    num_rejects: int,
) -> tuple[int, int]:
    """Judges a bag whose score may enter; (number of best, of rejects) after it."""
    score = np.float64(dot) / np.sqrt(np.float64(norm2_q) * np.float64(norm2_d))
    below = rules.numerator / rules.denominator
    valid = score < below
    if abs(score - below) < CLOSE:
        valid = is_below(dot, norm2_q, norm2_d, rules.numerator, rules.denominator)
    if not valid:
        if num_rejects < REJECTS:
            s.rejects[num_rejects] = place
            num_rejects += 1
        return size, num_rejects
    for k in range(bags.member_start[bag], bags.member_start[bag + 1]):
        number = bags.members[k]
        if bags.images[number] == image:
            continue
        outcome = _enter(s, size, rules.top, score, number, place)
        if outcome == REFUSED:  # the others come later among equals
            break
        if outcome == ENTERED and size < rules.top:
            size += 1
    return size, num_rejects


@inlined
def _masks(s: Scratch, size: int, slot: int) -> tuple[int, int, int]:
    """Lists the bits of the words after ``slot``, with their masses; how many in each part."""
    s.bit_mass[bit_of(s.words[slot])] -= s.masses[slot]
    n0, n1, n2 = 0, 0, 0
    seen0, seen1, seen2 = np.uint32(0), np.uint32(0), np.uint32(0)
    for k in range(slot + 1, size + 1):
        bit = bit_of(s.words[k])
        mask = np.uint32(1) << np.uint32(bit & 31)
        mass = np.float32(s.bit_mass[bit]) * np.float32(1.000001)
        if bit < 32:
            if not seen0 & mask:
                s.masks[0, n0], s.mask_mass[0, n0] = mask, mass
                n0 += 1
            seen0 |= mask
        elif bit < 64:
            if not seen1 & mask:
                s.masks[1, n1], s.mask_mass[1, n1] = mask, mass
                n1 += 1
            seen1 |= mask
        else:
            if not seen2 & mask:
                s.masks[2, n2], s.mask_mass[2, n2] = mask, mass
                n2 += 1
            seen2 |= mask
    return n0, n1, n2


@inlined
def _add_bits(bounds: Array, bits: Array, masks: Array, masses: Array, count: int) -> None:
    for a in range(count):
        mask, mass = masks[a], masses[a]
        for k in range(bounds.size):
            bounds[k] += mass if np.uint32(bits[k] & mask) != np.uint32(0) else np.float32(0)


@inlined
def _start(bounds: Array, excess: Array, base: float, most: int) -> None:
    start, spread = np.float32(base), np.float32(most * EXCESS_UNIT)
    for k in range(bounds.size):
        bounds[k] = start + spread * np.float32(excess[k])


@inlined
def _pass(passed: Array, bounds: Array, norm: Array, excess: Array, scale: float) -> None:
    limit = np.float32(scale)
    for k in range(bounds.size):
        reaches = bounds[k] >= limit * np.float32(norm[k])
        passed[k] = np.uint8(reaches) | np.uint8(excess[k] == UNKNOWN)


@inlined
def _filter(
    part: Part, p: int, n: int, s: Scratch, sizes: tuple[int, int, int], base: float, most: int,
    scale: float,
) -> int:  # fmt: skip
    """Lists in ``kept`` which of n postings may reach the score that ``scale`` stands for."""
    wide = (n + WIDTH - 1) // WIDTH * WIDTH  # arrays of postings end with CHUNK that count nothing
    bounds, excess = s.bounds[:wide], part.excess[p : p + wide]
    _start(bounds, excess, base, most)
    _add_bits(bounds, part.bits0[p : p + wide], s.masks[0], s.mask_mass[0], sizes[0])
    _add_bits(bounds, part.bits1[p : p + wide], s.masks[1], s.mask_mass[1], sizes[1])
    _add_bits(bounds, part.bits2[p : p + wide], s.masks[2], s.mask_mass[2], sizes[2])
    _pass(s.passed, bounds, part.norm[p : p + wide], excess, scale)
    words = s.passed.view(np.uint64)
    num_kept = 0
    for group in range(wide // 8):
        if words[group]:
            for k in range(group * 8, min(group * 8 + 8, n)):
                if s.passed[k]:
                    s.kept[num_kept] = part.place[p + k]
                    num_kept += 1
    return num_kept


@compiled
def _search_one(
    bags: Bags, part: Part, rules: Rules, s: Scratch, query: int, image: int, floor: float,
    num_warm: int,
) -> tuple[int, int]:  # fmt: skip
    """Finds the best of one query; (how many, how many places to begin the next one with)."""
    words, most = _spread(bags, query, s)
    norm2_q = bags.norm2[query]
    norm_q = np.sqrt(np.float64(norm2_q))
    size, num_rejects = 0, 0
    rows, long_words, long_counts = part.rows, part.long_words, part.long_counts
    slots, masses, kept, best_scores = s.slots, s.masses, s.kept, s.best_scores
    for k in range(num_warm):
        place = s.warm[k]
        dot, _ = _dot(rows, long_words, long_counts, slots, masses, place)
        norm2_d = _norm2(rows, place)
        score = np.float64(dot) / np.sqrt(np.float64(norm2_q) * np.float64(norm2_d))
        theta = best_scores[rules.top - 1] if size == rules.top else floor
        if dot > 0 and score >= theta:
            size, num_rejects = _consider(
                bags, rows[place, 1], rules, s, place, dot, norm2_q, norm2_d, image, size,
                num_rejects,
            )  # fmt: skip
    num_rejects = 0
    # The bound is a sum of float32, the limit one product: both err by less than this.
    slack = max(0.0, 1.0 - (words + 16) * 2.0**-22)
    for slot in range(1, words + 1):
        word = s.words[slot]
        sizes = _masks(s, words, slot)
        base = np.float64(s.masses[slot])
        for kind in range(2):
            p = part.list_start[word] if kind == 0 else part.list_middle[word]
            end = part.list_middle[word] if kind == 0 else part.list_start[word + 1]
            reach = np.float64(s.rest[slot]) + (most * MOST_EXCESS if kind == 0 else 0)
            while p < end:
                theta = s.best_scores[rules.top - 1] if size == rules.top else floor
                limit = theta * norm_q * slack
                lowest = np.float64(part.norm[p]) * NORM_UNIT
                if kind == 1:
                    lowest = np.float64(part.reach[part.place[p]])
                if limit * lowest > reach:
                    break
                n = min(CHUNK, end - p)
                num_kept = _filter(part, p, n, s, sizes, base, most, limit * NORM_UNIT)
                touched = 0
                for k in range(num_kept):  # all of their cache lines are on their way at once
                    touched += rows[kept[k], 0] & 1
                if touched > CHUNK:
                    break  # never: so that the reads above are not left out
                for k in range(num_kept):
                    place = kept[k]
                    dot, first = _dot(rows, long_words, long_counts, slots, masses, place)
                    if first != slot:  # it was met, and judged, in an earlier list
                        continue
                    norm2_d = _norm2(rows, place)
                    score = np.float64(dot) / np.sqrt(np.float64(norm2_q) * np.float64(norm2_d))
                    theta = best_scores[rules.top - 1] if size == rules.top else floor
                    if score >= theta:
                        size, num_rejects = _consider(
                            bags, rows[place, 1], rules, s, place, dot, norm2_q, norm2_d, image,
                            size, num_rejects,
                        )  # fmt: skip
                p += n
    for slot in range(1, words + 1):
        s.slots[s.words[slot]] = 0
    s.warm[:size] = s.best_places[:size]
    s.warm[size : size + num_rejects] = s.rejects[:num_rejects]
    return size, size + num_rejects


@compiled
def search(
    bags: Bags,
    part: Part,
    rules: Rules,
    first: int,
    last: int,
    floors: Array,
    numbers: Array,
    scores: Array,
) -> None:
    """Searches ``part`` for the captions ``members[first:last]``; one result row for each.

    ``floors`` float64 [n]: scores below need not be found. ``numbers`` int32 [n, top] receives
    captions, best first and -1 where there are no more, ``scores`` float64 [n, top] their cosines.
    A bag of several captions is searched once without regard to pictures; a caption whose picture
    is among the answer's is searched by itself.
    """
    longest = 1
    bag: Any = np.searchsorted(bags.member_start, first, side="right") - 1
    at = bag
    while at + 1 < bags.start.size and bags.member_start[at] < last:
        longest = max(longest, bags.start[at + 1] - bags.start[at])
        at += 1
    s = _scratch(bags.weights.size, longest, rules.top)
    numbers[:] = -1
    scores[:] = 0
    common = np.zeros(rules.top, np.int32)
    common_scores = np.zeros(rules.top, np.float64)
    num_warm, r = 0, first
    while r < last:
        end = min(bags.member_start[bag + 1], last)
        num_common = -1
        if end - r > 1:
            floor = floors[r - first : end - first].min()
            num_common, num_warm = _search_one(bags, part, rules, s, bag, -1, floor, num_warm)
            common[:num_common] = s.best_numbers[:num_common]
            common_scores[:num_common] = s.best_scores[:num_common]
        for member in range(r, end):
            image = bags.images[bags.members[member]]
            alone = num_common < 0
            for k in range(num_common):
                alone = alone or bags.images[common[k]] == image
            row = member - first
            if alone:
                size, num_warm = _search_one(
                    bags, part, rules, s, bag, image, floors[row], num_warm
                )
                numbers[row, :size] = s.best_numbers[:size]
                scores[row, :size] = s.best_scores[:size]
            else:
                numbers[row, :num_common] = common[:num_common]
                scores[row, :num_common] = common_scores[:num_common]
        r = end
        bag += 1
