"""Defines the arrays of a search: bags of words and their index; each array is a file on disk.

A *bag* is a caption for TF-IDF: its words and their counts. Captions with the same bag are its
members and share one search. Bags are numbered in the order of the search, captions by the order of
their ids, words by falling frequency.
"""

from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from vlmill.pipelines.hard_negatives.compiled import inlined
from vlmill.runtime.files.atomic import atomic_folder

Array = npt.NDArray[Any]

CHUNK = 128  # postings whose bounds are computed together
OWN_BITS, BITS = 20, 96  # bits of a signature: the most frequent words have their own bit
ROW = 16  # int32 of a bag's row: 64 bytes
INLINE = 13  # words that a row holds
WORD_BITS = 20  # bits of a packed word; its count is in the higher bits
EXCESS_UNIT, NORM_UNIT = 1024, 0.5  # units of `excess` and `norm`
UNKNOWN = 65535  # an excess too large for its type: such a bag is always looked up
MOST_EXCESS = 8 << 16  # largest excess of a bag of class A


class Bags(NamedTuple):
    """Holds the queries: words of B bags of N captions, and the captions of each bag.

    ``start`` int64 [B + 1] splits ``words`` int32 and ``counts`` int32, ascending words of each
    bag; ``norm2`` is int64 [B]. ``member_start`` int64 [B + 1] splits ``members`` int32 [N],
    ascending captions of each bag. ``images`` int32 [N] numbers the captions' images, -1 if the
    image has only this caption. ``weights`` is int64 [V].
    """

    start: Array
    words: Array
    counts: Array
    norm2: Array
    member_start: Array
    members: Array
    images: Array
    weights: Array


class Part(NamedTuple):
    """Holds an index of D bags, sorted so that a search can end early (:mod:`.index`).

    ``rows`` int32 [D, 16], one cache line each: norm2, the only caption of the bag or -1 - bag, 0,
    and word | count << 20 of each word, 0 for unused entries. Larger bags have the number of a long
    bag, the caption, and 1: ``long_start`` int64 [L + 1] splits ``long_words`` and ``long_counts``
    int32, ``long_norm2`` is int64 [L]. ``list_start`` int64 [V + 1] and ``list_middle`` int64 [V]
    split the postings of each word, first class A, then class B. A posting has a signature of three
    ``bits`` uint32, a ``norm`` rounded down and an ``excess`` rounded up, both uint16, and an int32
    ``place``, the index of its bag in ``rows``. ``reach`` float32 [D] is a bag's norm over its
    largest count, rounded down.
    """

    rows: Array
    long_start: Array
    long_norm2: Array
    long_words: Array
    long_counts: Array
    list_start: Array
    list_middle: Array
    bits0: Array
    bits1: Array
    bits2: Array
    norm: Array
    excess: Array
    place: Array
    reach: Array


Group = TypeVar("Group", Bags, Part)


def save(folder: Path, arrays: Bags | Part) -> None:
    """Writes arrays as plain ``.npy`` files into ``folder``, which appears with all of them."""
    with atomic_folder(folder, replace=True) as temporary:
        for name, array in zip(arrays._fields, arrays, strict=True):
            np.save(temporary / f"{name}.npy", array)


def map_arrays(folder: Path, kind: type[Group]) -> Group:
    """Maps arrays that :func:`save` has written; all processes of a machine share their memory."""
    return kind(*(_map(folder / f"{name}.npy") for name in kind._fields))


def _map(path: Path) -> Array:
    array: Array = np.load(path, mmap_mode="r")
    return array.view(np.ndarray)


@inlined
def compute_bit(word: int) -> int:
    """Returns the bit of a word in a signature."""
    if word < OWN_BITS:
        return word
    return OWN_BITS + ((word * 2654435761) >> 8) % (BITS - OWN_BITS)
