"""Defines a searching thread's state: the query's words, a chunk's bags, the best results so far.

All of it is in arrays that are created once per thread. Named tuples of them are passed between
functions; values that change from bag to bag are in ``counters``.
"""

from typing import NamedTuple

import numpy as np

from vlmill.pipelines.hard_negatives.arrays import BITS, CHUNK, Array, Bags, compute_bit
from vlmill.pipelines.hard_negatives.compiled import inlined

REJECTS = 32  # near duplicates that the next query tries first
# Indices in `counters`: captions in the best, near duplicates, bags that begin the next
# query; postings bounded and bags looked up by all queries; and the query's round.
BEST, NEAR, WARM, POSTINGS, LOOKED_UP, ROUND = range(6)


class Rules(NamedTuple):
    """Selects the ``top`` best with a cosine strictly below ``numerator / denominator``."""

    top: int
    numerator: int
    denominator: int


class Query(NamedTuple):
    """Holds a query's words from 1 on, heaviest first; ``slots`` is all zero between queries."""

    slots: Array  # int32 [V] index of a word among the query's words
    words: Array  # int32 [1 + words], like the next three
    bits: Array  # int32
    masses: Array  # int64: tf * w; slot 0 has 0
    tail_mass: Array  # int64 [2 + words] mass of a slot and all later ones
    bit_mass: Array  # int64 [96]: masses of the words not yet searched, by their bit


class QueryInfo(NamedTuple):
    """Holds a query's values other than its words."""

    words: int  # number of words
    max_count: int  # count of the most frequent word
    norm2: int
    image: int  # -1 if its image has no other caption
    floor: float  # cosines below it may be skipped


class Scratch(NamedTuple):
    """Holds values of the bags of one chunk of postings."""

    masks: Array  # uint32 [3, 32] bits of the remaining words, by the three parts of a signature
    mask_mass: Array  # float32 [3, 32] their masses
    mask_sizes: Array  # int64 [3] their number
    bounds: Array  # float32, per posting
    passed: Array  # uint8
    row_numbers: Array  # int32, per bag that is looked up, like the next three
    dots: Array  # int64
    norms: Array  # int64
    scores: Array  # float64


class Best(NamedTuple):
    """Holds the best so far, best first: cosines float64, captions and bag indices int32."""

    scores: Array
    numbers: Array
    row_numbers: Array


class State(NamedTuple):
    """Holds all arrays that a thread writes to."""

    query: Query
    scratch: Scratch
    best: Best
    near: Array  # int32 [REJECTS] indices of bags above the threshold
    warm: Array  # int32 indices of the last query's best and near duplicates
    rounds: Array  # int64 for each long bag: the round of its last score
    counters: Array  # int64 [6]


def new_state(num_words: int, longest: int, num_long: int, top: int) -> State:
    """Returns arrays for queries of up to ``longest`` words, of ``num_words`` different ones."""
    size = max(CHUNK, top + REJECTS)
    query = Query(
        slots=np.zeros(num_words, np.int32),
        words=np.zeros(longest + 1, np.int32),
        bits=np.zeros(longest + 1, np.int32),
        masses=np.zeros(longest + 1, np.int64),
        tail_mass=np.zeros(longest + 2, np.int64),
        bit_mass=np.zeros(BITS, np.int64),
    )
    scratch = Scratch(
        masks=np.zeros((3, 32), np.uint32),
        mask_mass=np.zeros((3, 32), np.float32),
        mask_sizes=np.zeros(3, np.int64),
        bounds=np.zeros(CHUNK, np.float32),
        passed=np.zeros(CHUNK, np.uint8),
        row_numbers=np.zeros(size, np.int32),
        dots=np.zeros(size, np.int64),
        norms=np.zeros(size, np.int64),
        scores=np.zeros(size, np.float64),
    )
    return State(
        query=query,
        scratch=scratch,
        best=Best(np.zeros(top, np.float64), np.zeros(top, np.int32), np.zeros(top, np.int32)),
        near=np.zeros(REJECTS, np.int32),
        warm=np.zeros(size, np.int32),
        rounds=np.zeros(num_long, np.int64),
        counters=np.zeros(6, np.int64),
    )


@inlined
def lay_out(bags: Bags, bag: int, query: Query) -> tuple[int, int]:
    """Writes a bag's words to ``query``, heaviest first; returns their number and largest count."""
    words, masses, tail_mass = query.words, query.masses, query.tail_mass
    begin = bags.start[bag]
    size, max_count = bags.start[bag + 1] - begin, 1
    for k in range(size):
        word, count = bags.words[begin + k], bags.counts[begin + k]
        words[k + 1], masses[k + 1] = word, count * bags.weights[word]
        max_count = max(max_count, count)
    _sort(words, masses, size)
    for k in range(BITS):
        query.bit_mass[k] = 0
    tail_mass[size + 1] = 0
    for k in range(size, 0, -1):
        bit = compute_bit(words[k])
        query.slots[words[k]], query.bits[k] = k, bit
        query.bit_mass[bit] += masses[k]
        tail_mass[k] = tail_mass[k + 1] + masses[k]
    return size, max_count


@inlined
def _sort(words: Array, masses: Array, size: int) -> None:
    """Sorts the words 1 to ``size`` by falling mass (Shell's method: some have thousands)."""
    gap = 1
    while 3 * gap < size:
        gap = 3 * gap + 1
    while gap > 0:
        for k in range(gap + 1, size + 1):
            word, mass, position = words[k], masses[k], k
            while position > gap and masses[position - gap] < mass:
                words[position], masses[position] = words[position - gap], masses[position - gap]
                position -= gap
            words[position], masses[position] = word, mass
        gap //= 3
