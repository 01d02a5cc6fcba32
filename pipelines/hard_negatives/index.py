"""Builds bags and their index from word counts, with numpy and numba and without texts.

w(t) = round(idf(t)^2 * 2^16) is a word's weight, norm2 = sum tf^2 w a bag's squared length, and sum
(tf - 1) w its excess, which repeated words add. Class A has an excess of at most 8 idf^2 and is
sorted by norm, class B has the other bags, sorted by norm / largest tf. In both, a later bag needs
a larger product to reach the same cosine.
"""

import numpy as np

from vlmill.pipelines.hard_negatives.arrays import (
    CHUNK,
    EXCESS_UNIT,
    INLINE,
    MOST_EXCESS,
    NORM_UNIT,
    ROW,
    UNKNOWN,
    WORD_BITS,
    Array,
    Bags,
    Part,
    compute_bit,
)
from vlmill.pipelines.hard_negatives.compiled import compiled

MOST_COUNT = 1 << (31 - WORD_BITS)


def build_bags(start: Array, words: Array, counts: Array, images: Array, weights: Array) -> Bags:
    """Returns the bags of captions whose ascending words are ``words[start[k]:start[k + 1]]``.

    Captions with equal words share a bag. Bags are in the order of search: by their three rarest
    words, so that neighbours read the same lists; bags without a word are last.
    """
    num = start.size - 1
    keys = np.empty((num, 2), np.uint64)
    rare = np.empty((num, 3), np.int32)
    _hash_bags(start, words, counts, keys, rare)
    # In this order, captions of a bag are neighbours, sorted by number.
    order = np.lexsort((keys[:, 1], keys[:, 0], rare[:, 2], rare[:, 1], rare[:, 0])).astype(
        np.int32
    )
    differs = np.ones(num, np.bool_)
    _compare(start, words, counts, order, differs)
    firsts = np.flatnonzero(differs)
    leaders = order[firsts]
    sizes = (start[1:] - start[:-1])[leaders]
    bag_start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    bag_words, bag_counts = np.empty(bag_start[-1], np.int32), np.empty(bag_start[-1], np.int32)
    norm2 = np.empty(leaders.size, np.int64)
    _copy(start, words, counts, leaders, weights, bag_start, bag_words, bag_counts, norm2)
    return Bags(
        start=bag_start,
        words=bag_words,
        counts=bag_counts,
        norm2=norm2,
        member_start=np.append(firsts, num).astype(np.int64),
        members=order,
        images=_shared_images(images),
        weights=weights,
    )


def _shared_images(images: Array) -> Array:
    """Returns numbers of images, -1 if a caption's image has no other caption."""
    alone = np.bincount(images, minlength=1)[images] == 1
    return np.where(alone, -1, images).astype(np.int32)


@compiled
def _hash_bags(start: Array, words: Array, counts: Array, keys: Array, rare: Array) -> None:
    """Computes each bag's hash, and its three rarest words in sorting order, rarest first."""
    for k in range(start.size - 1):
        begin, end = start[k], start[k + 1]
        hash1, hash2 = np.uint64(0), np.uint64(0)
        for position in range(begin, end):
            x = np.uint64(words[position]) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(
                counts[position]
            )
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            hash1 = (hash1 ^ x) * np.uint64(0x100000001B3)
            hash2 = (hash2 + x) * np.uint64(0xD6E8FEB86659FD93)
        keys[k, 0], keys[k, 1] = hash1, hash2
        for j in range(3):
            # Rare words have high numbers. A missing word sorts last.
            rare[k, j] = -words[end - 1 - j] if end - begin > j else 1


@compiled
def _compare(start: Array, words: Array, counts: Array, order: Array, differs: Array) -> None:
    """Returns for each caption in ``order`` whether its bag differs from the previous one's."""
    for k in range(1, order.size):
        a, b = order[k - 1], order[k]
        size = start[a + 1] - start[a]
        if size == start[b + 1] - start[b]:
            same = True
            for offset in range(size):
                i, j = start[a] + offset, start[b] + offset
                same = same and words[i] == words[j] and counts[i] == counts[j]
            differs[k] = not same


@compiled
def _copy(
    start: Array,
    words: Array,
    counts: Array,
    leaders: Array,
    weights: Array,
    bag_start: Array,
    bag_words: Array,
    bag_counts: Array,
    norm2: Array,
) -> None:
    for bag in range(leaders.size):
        shift = bag_start[bag] - start[leaders[bag]]
        norm2[bag] = 0
        for position in range(start[leaders[bag]], start[leaders[bag] + 1]):
            bag_words[position + shift], bag_counts[position + shift] = (
                words[position],
                counts[position],
            )
            norm2[bag] += np.int64(counts[position]) * counts[position] * weights[words[position]]


def build_index(bags: Bags, number: int = 0, parts: int = 1) -> Part:
    """Builds the index of every ``parts``-th bag from ``number`` on, if it has a word."""
    chosen = np.arange(number, bags.start.size - 1, parts)
    chosen = chosen[bags.start[chosen + 1] > bags.start[chosen]]
    excess, largest = np.empty(chosen.size, np.float64), np.empty(chosen.size, np.int32)
    _measure(bags, chosen, excess, largest)
    norms = np.sqrt(bags.norm2[chosen].astype(np.float64))
    in_b = excess > MOST_EXCESS
    reach = norms / np.where(in_b, largest, 1)
    order = np.lexsort((bags.members[bags.member_start[chosen]], reach, in_b))
    chosen, in_b, norms = chosen[order], in_b[order], norms[order]
    sizes = bags.start[chosen + 1] - bags.start[chosen]
    frequency = np.zeros(bags.weights.size, np.int64)
    frequency_a = np.zeros(bags.weights.size, np.int64)
    long_sizes = np.zeros(chosen.size, np.int64)
    _measure_lists(bags, chosen, in_b, frequency, frequency_a, long_sizes)
    long_start = np.append(0, np.cumsum(long_sizes[long_sizes > 0]))
    starts = np.concatenate([[0], np.cumsum(frequency)]).astype(np.int64)
    postings = int(starts[-1]) + CHUNK
    part = Part(
        rows=np.zeros((chosen.size, ROW), np.int32),
        long_start=long_start,
        long_norm2=bags.norm2[chosen[long_sizes > 0]],
        long_words=np.zeros(long_start[-1], np.int32),
        long_counts=np.zeros(long_start[-1], np.int32),
        list_start=starts,
        list_middle=starts[:-1] + frequency_a,
        bits0=np.zeros(postings, np.uint32),
        bits1=np.zeros(postings, np.uint32),
        bits2=np.zeros(postings, np.uint32),
        norm=np.zeros(postings, np.uint16),
        excess=np.zeros(postings, np.uint16),
        place=np.zeros(postings, np.int32),
        reach=(reach[order] * (1 - 1e-6)).astype(np.float32),
    )
    norm16 = np.minimum(np.floor(norms / NORM_UNIT * (1 - 1e-12)), 65535).astype(np.uint16)
    excess16 = np.minimum(np.ceil(excess[order] / EXCESS_UNIT), UNKNOWN).astype(np.uint16)
    assert sizes.sum() == starts[-1]
    _fill(bags, chosen, norm16, excess16, part, starts[:-1].copy())
    return part


@compiled
def _measure(bags: Bags, chosen: Array, excess: Array, largest: Array) -> None:
    for k in range(chosen.size):
        total, max_count = 0.0, 1
        for position in range(bags.start[chosen[k]], bags.start[chosen[k] + 1]):
            total += np.float64(bags.counts[position] - 1) * bags.weights[bags.words[position]]
            max_count = max(max_count, bags.counts[position])
        excess[k], largest[k] = total, max_count


@compiled
def _fits(bags: Bags, bag: int) -> bool:
    """Returns whether a bag's words fit into its row."""
    begin, end = bags.start[bag], bags.start[bag + 1]
    if end - begin > INLINE or bags.norm2[bag] >= 2**31:
        return False
    fits = True
    for position in range(begin, end):
        fits = fits and bags.words[position] < 2**WORD_BITS and bags.counts[position] < MOST_COUNT
    return fits


@compiled
def _measure_lists(
    bags: Bags, chosen: Array, in_b: Array, frequency: Array, frequency_a: Array, long_sizes: Array
) -> None:
    """Counts the postings of each word, and the words of bags that do not fit into a row."""
    for k in range(chosen.size):
        begin, end = bags.start[chosen[k]], bags.start[chosen[k] + 1]
        if not _fits(bags, chosen[k]):
            long_sizes[k] = end - begin
        for position in range(begin, end):
            frequency[bags.words[position]] += 1
            if not in_b[k]:
                frequency_a[bags.words[position]] += 1


@compiled
def _fill(
    bags: Bags, chosen: Array, norm16: Array, excess16: Array, part: Part, cursor: Array
) -> None:
    """Writes rows and postings."""
    num_long = 0
    for k in range(chosen.size):
        bag = chosen[k]
        begin, end = bags.start[bag], bags.start[bag + 1]
        first, last = bags.member_start[bag], bags.member_start[bag + 1]
        part.rows[k, 1] = bags.members[first] if last - first == 1 else -1 - bag
        if _fits(bags, bag):
            part.rows[k, 0] = bags.norm2[bag]
            for position in range(begin, end):
                part.rows[k, 3 + position - begin] = bags.words[position] | (
                    bags.counts[position] << WORD_BITS
                )
        else:
            part.rows[k, 0], part.rows[k, 2] = num_long, 1
            shift = part.long_start[num_long] - begin
            for position in range(begin, end):
                part.long_words[shift + position] = bags.words[position]
                part.long_counts[shift + position] = bags.counts[position]
            num_long += 1
        bits0, bits1, bits2 = np.uint32(0), np.uint32(0), np.uint32(0)
        for position in range(begin, end):
            bit = compute_bit(bags.words[position])
            mask = np.uint32(1) << np.uint32(bit & 31)
            bits0 |= mask if bit < 32 else np.uint32(0)
            bits1 |= mask if 32 <= bit < 64 else np.uint32(0)
            bits2 |= mask if bit >= 64 else np.uint32(0)
        for position in range(begin, end):
            p = cursor[bags.words[position]]
            cursor[bags.words[position]] += 1
            part.bits0[p], part.bits1[p], part.bits2[p] = bits0, bits1, bits2
            part.norm[p], part.excess[p], part.place[p] = norm16[k], excess16[k], k
