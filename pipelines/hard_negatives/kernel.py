"""The search itself, compiled by numba: few postings are read, and few bags looked up.

A bag's similarity is bounded from what stands beside its postings, in memory that is read in order;
only bags whose bound reaches the 30th best so far cost a read elsewhere. Every bound errs upwards,
so that what is passed over could not have been among the best.
"""

from typing import NamedTuple

import numpy as np

from vlmill.pipelines.hard_negatives.arrays import (
    BITS,
    CHUNK,
    MOST_EXCESS,
    NORM_UNIT,
    Array,
    Bags,
    Part,
)
from vlmill.pipelines.hard_negatives.bounds import bit_of, list_masks, list_reaching
from vlmill.pipelines.hard_negatives.compiled import compiled, compiled_bare
from vlmill.pipelines.hard_negatives.scores import Best, Rules, consider, is_below, score_bags

REJECTS = 32  # near duplicates that are tried again for the next query
CLOSE = 1e-9  # a cosine this close to the threshold is decided with integers


class Query(NamedTuple):
    """A query's words from 1 on, heaviest first; ``slots`` is all zero between queries."""

    slots: Array  # int32 [V] of a word its place among the query's
    words: Array  # int32 [1 + words], as the next three
    bits: Array  # int32
    masses: Array  # int64: tf * w; 0 of slot 0
    rest: Array  # int64 [2 + words] masses of a slot and all after it
    bit_mass: Array  # int64 [96]: masses of the words not yet searched, by their bit


class Scratch(NamedTuple):
    """Where one thread keeps what it finds in a chunk of postings, and between queries."""

    masks: Array
    mask_mass: Array
    bounds: Array
    passed: Array
    places: Array
    dots: Array
    norms: Array
    scores: Array
    warm: Array  # places of the last query's best and near duplicates
    rejects: Array
    work: Array  # postings bounded, and bags looked up, by all queries


def _query(num_words: int, longest: int) -> Query:
    return Query(
        np.zeros(num_words, np.int32),
        np.zeros(longest + 1, np.int32),
        np.zeros(longest + 1, np.int32),
        np.zeros(longest + 1, np.int64),
        np.zeros(longest + 2, np.int64),
        np.zeros(BITS, np.int64),
    )


def _scratch(top: int) -> Scratch:
    size = max(CHUNK, top + REJECTS)
    return Scratch(
        np.zeros((3, 32), np.uint32),
        np.zeros((3, 32), np.float32),
        np.zeros(CHUNK, np.float32),
        np.zeros(CHUNK, np.uint8),
        np.zeros(size, np.int32),
        np.zeros(size, np.int64),
        np.zeros(size, np.int64),
        np.zeros(size, np.float64),
        np.zeros(size, np.int32),
        np.zeros(REJECTS, np.int32),
        np.zeros(2, np.int64),
    )


def _best(top: int) -> Best:
    return Best(np.zeros(top, np.float64), np.zeros(top, np.int32), np.zeros(top, np.int32))


@compiled
def _spread(
    start: Array, all_words: Array, counts: Array, weights: Array, query: int, out: Query
) -> tuple[int, int]:
    """Lays a query's words out, heaviest first; (how many, how often the most frequent comes)."""
    slots, words, bits, masses, rest, bit_mass = out
    begin = start[query]
    size = start[query + 1] - begin
    most = 1
    for k in range(size):
        word, count = all_words[begin + k], counts[begin + k]
        words[k + 1], masses[k + 1] = word, count * weights[word]
        most = max(most, count)
    if size > 64:
        order = np.argsort(-masses[1 : size + 1]) + 1
        words[1 : size + 1], masses[1 : size + 1] = words[order], masses[order]
    else:
        for k in range(2, size + 1):
            word, mass, at = words[k], masses[k], k
            while at > 1 and masses[at - 1] < mass:
                words[at], masses[at] = words[at - 1], masses[at - 1]
                at -= 1
            words[at], masses[at] = word, mass
    for k in range(BITS):
        bit_mass[k] = 0
    rest[size + 1] = 0
    for k in range(size, 0, -1):
        slots[words[k]], bits[k] = k, bit_of(words[k])
        bit_mass[bits[k]] += masses[k]
        rest[k] = rest[k + 1] + masses[k]
    return size, most


@compiled_bare
def _judge(
    bags: Bags,
    rows: Array,
    rules: Rules,
    scratch: Scratch,
    best: Best,
    count: int,
    norm2_q: int,
    image: int,
    size: int,
    num_rejects: int,
) -> tuple[int, int]:
    """Judges ``count`` bags that have been scored; (number of best, of rejects) after them."""
    places, dots, norms, scores, rejects = (
        scratch.places, scratch.dots, scratch.norms, scratch.scores, scratch.rejects
    )  # fmt: skip
    member_start, members, images = bags.member_start, bags.members, bags.images
    best_scores = best.scores
    below = rules.numerator / rules.denominator
    for k in range(count):
        place, score = places[k], scores[k]
        if size == rules.top and score < best_scores[rules.top - 1]:
            continue
        valid = score < below
        if abs(score - below) < CLOSE:
            valid = is_below(dots[k], norm2_q, norms[k], rules.numerator, rules.denominator)
        if valid:
            who = rows[place, 1]
            size = consider(
                member_start, members, images, best, size, rules, score, who, place, image
            )
        elif num_rejects < REJECTS:
            known = False
            for j in range(num_rejects):
                known = known or rejects[j] == place
            if not known:
                rejects[num_rejects] = place
                num_rejects += 1
    return size, num_rejects


@compiled_bare
def _search_one(
    bags: Bags,
    part: Part,
    rules: Rules,
    laid: Query,
    scratch: Scratch,
    best: Best,
    words: int,
    most: int,
    norm2_q: int,
    image: int,
    floor: float,
    num_warm: int,
) -> tuple[int, int]:
    """Finds the best of one query; (how many, how many places to begin the next one with)."""
    (rows, long_start, long_norm2, long_words, long_counts, list_start, list_middle, bits0, bits1,
     bits2, norm, excess, all_places, reach_b) = part  # fmt: skip
    masks, mask_mass, bounds, passed, places, dots, norms, scores, warm, rejects, work = scratch
    slots, query_words, query_bits, masses, rest, bit_mass = laid
    best_scores, _, best_places = best
    norm_q = np.sqrt(np.float64(norm2_q))
    top = rules.top
    for k in range(num_warm):
        places[k] = warm[k]
    work[1] += num_warm
    num = score_bags(
        rows, long_start, long_norm2, long_words, long_counts, slots, masses, norm2_q, floor,
        places, num_warm, dots, norms, scores,
    )  # fmt: skip
    size, num_rejects = _judge(bags, rows, rules, scratch, best, num, norm2_q, image, 0, 0)
    num_rejects = 0
    # The bound is a sum of float32, the limit one product: both err by less than this.
    slack = max(0.0, 1.0 - (words + 16) * 2.0**-22)
    for slot in range(1, words + 1):
        word, mass = query_words[slot], masses[slot]
        bit_mass[query_bits[slot]] -= mass
        sizes = list_masks(query_bits, bit_mass, slot + 1, words, masks, mask_mass)
        for kind in range(2):
            p = list_start[word] if kind == 0 else list_middle[word]
            end = list_middle[word] if kind == 0 else list_start[word + 1]
            reach = np.float64(rest[slot]) + (most * MOST_EXCESS if kind == 0 else 0)
            while p < end:
                theta = best_scores[top - 1] if size == top else floor
                limit = theta * norm_q * slack
                lowest = np.float64(norm[p]) * NORM_UNIT
                if kind == 1:
                    lowest = np.float64(reach_b[all_places[p]])
                if limit * lowest > reach:
                    break
                n = min(CHUNK, end - p)
                num = list_reaching(
                    bits0, bits1, bits2, norm, excess, all_places, p, n, masks, mask_mass, sizes,
                    np.float64(mass), np.float64(most), limit * NORM_UNIT, bounds, passed, places,
                )  # fmt: skip
                work[0] += n
                work[1] += num
                num = score_bags(
                    rows, long_start, long_norm2, long_words, long_counts, slots, masses, norm2_q,
                    theta, places, num, dots, norms, scores,
                )  # fmt: skip
                if num > 0:
                    size, num_rejects = _judge(
                        bags, rows, rules, scratch, best, num, norm2_q, image, size, num_rejects
                    )
                p += n
    for slot in range(1, words + 1):
        slots[query_words[slot]] = 0
    for k in range(size):
        warm[k] = best_places[k]
    for k in range(num_rejects):
        warm[size + k] = rejects[k]
    return size, size + num_rejects


def search(
    bags: Bags,
    part: Part,
    rules: Rules,
    first: int,
    last: int,
    floors: Array,
    numbers: Array,
    scores: Array,
) -> tuple[int, int]:
    """Searches ``part`` for the captions ``members[first:last]``; one result row for each.

    ``floors`` float64 [n]: scores below need not be found. ``numbers`` int32 [n, top] receives
    captions, best first and -1 where there are no more, ``scores`` float64 [n, top] their cosines.
    A bag of several captions is searched once without regard to pictures; a caption whose picture
    is among the answer's is searched by itself. Returns how many postings were bounded, and how
    many bags looked up.
    """
    bag = int(np.searchsorted(bags.member_start, first, side="right")) - 1
    end = int(np.searchsorted(bags.member_start, last, side="left"))
    longest = int(np.max(np.diff(bags.start[bag : end + 1]), initial=1))
    laid, scratch = _query(bags.weights.size, longest), _scratch(rules.top)
    best = _best(rules.top)
    numbers[:] = -1
    scores[:] = 0
    _search_all(
        bags, part, rules, laid, scratch, best, bag, first, last, floors, numbers, scores
    )  # fmt: skip
    return int(scratch.work[0]), int(scratch.work[1])


@compiled
def _find(
    bags: Bags,
    part: Part,
    rules: Rules,
    laid: Query,
    scratch: Scratch,
    best: Best,
    bag: int,
    image: int,
    floor: float,
    num_warm: int,
) -> tuple[int, int]:
    """Lays a bag's words out, and finds its best."""
    words, most = _spread(bags.start, bags.words, bags.counts, bags.weights, bag, laid)
    return _search_one(
        bags, part, rules, laid, scratch, best, words, most, bags.norm2[bag], image, floor, num_warm
    )


@compiled
def _search_all(
    bags: Bags,
    part: Part,
    rules: Rules,
    laid: Query,
    scratch: Scratch,
    best: Best,
    bag: int,
    first: int,
    last: int,
    floors: Array,
    numbers: Array,
    scores: Array,
) -> None:
    common = np.zeros(rules.top, np.int32)
    common_scores = np.zeros(rules.top, np.float64)
    num_warm, r = 0, first
    while r < last:
        end = min(bags.member_start[bag + 1], last)
        num_common = -1
        if end - r > 1:
            floor = floors[r - first : end - first].min()
            num_common, num_warm = _find(
                bags, part, rules, laid, scratch, best, bag, -1, floor, num_warm
            )
            common[:num_common] = best.numbers[:num_common]
            common_scores[:num_common] = best.scores[:num_common]
        for member in range(r, end):
            image = int(bags.images[bags.members[member]])
            alone = num_common < 0
            if image >= 0:
                for k in range(num_common):
                    alone = alone or bags.images[common[k]] == image
            row = member - first
            if alone:
                size, num_warm = _find(
                    bags, part, rules, laid, scratch, best, bag, image, floors[row], num_warm
                )
                numbers[row, :size] = best.numbers[:size]
                scores[row, :size] = best.scores[:size]
            else:
                numbers[row, :num_common] = common[:num_common]
                scores[row, :num_common] = common_scores[:num_common]
        r = end
        bag += 1
