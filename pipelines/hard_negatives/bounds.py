"""Which bags may reach a score, told by what stands beside their postings, read in order.

Functions take arrays one by one and cut no slices: each slice, and each array taken out of a tuple
in a loop, would cost two locked additions to a count of references.
"""

from typing import Any

import numpy as np

from vlmill.pipelines.hard_negatives.arrays import BITS, EXCESS_UNIT, OWN_BITS, UNKNOWN, Array
from vlmill.pipelines.hard_negatives.compiled import compiled_bare

WIDTH = 16  # postings that fill the widest vector register


@compiled_bare
def bit_of(word: int) -> int:
    """The bit of a word in a signature."""
    if word < OWN_BITS:
        return word
    return OWN_BITS + ((word * 2654435761) >> 8) % (BITS - OWN_BITS)


@compiled_bare
def list_masks(
    bits: Array, bit_mass: Array, first: int, last: int, masks: Array, masses: Array
) -> tuple[Any, Any, Any]:
    """Lists the distinct bits of the query's words ``first`` to ``last``, and their masses.

    ``masks`` uint32 and ``masses`` float32 [3, 32] are by the signature's three parts; returns how
    many there are in each. Masses are rounded up.
    """
    sizes0, sizes1, sizes2 = 0, 0, 0
    seen0, seen1, seen2 = np.uint32(0), np.uint32(0), np.uint32(0)
    for k in range(first, last + 1):
        bit = bits[k]
        mask = np.uint32(1) << np.uint32(bit & 31)
        mass = np.float32(bit_mass[bit]) * np.float32(1.000001)
        if bit < 32:
            if not seen0 & mask:
                masks[0, sizes0], masses[0, sizes0] = mask, mass
                sizes0 += 1
            seen0 |= mask
        elif bit < 64:
            if not seen1 & mask:
                masks[1, sizes1], masses[1, sizes1] = mask, mass
                sizes1 += 1
            seen1 |= mask
        else:
            if not seen2 & mask:
                masks[2, sizes2], masses[2, sizes2] = mask, mass
                sizes2 += 1
            seen2 |= mask
    return sizes0, sizes1, sizes2


@compiled_bare
def _add_bits(
    bounds: Array, bits: Array, at: Any, width: Any, masks: Array, masses: Array, part: int,
    count: int,
) -> None:  # fmt: skip
    for a in range(count):
        mask, mass = masks[part, a], masses[part, a]
        for k in range(width):
            has = np.uint32(bits[at + k] & mask) != np.uint32(0)
            bounds[k] += mass if has else np.float32(0)


@compiled_bare
def list_reaching(
    bits0: Array,
    bits1: Array,
    bits2: Array,
    norm: Array,
    excess: Array,
    place: Array,
    start: int,
    count: int,
    masks: Array,
    masses: Array,
    sizes: tuple[Any, Any, Any],
    base: float,
    spread: float,
    limit: float,
    bounds: Array,
    passed: Array,
    places: Array,
) -> Any:
    """Lists in ``places`` which of some postings may reach a score; returns how many.

    A bag's product with the query is at most ``base``, ``spread`` for each unit of its excess, and
    the masses of its bits; ``limit`` for each unit of its norm is what it must reach.
    """
    at, num = np.uint64(start), np.uint64(count)
    # Whole registers: arrays of postings end with some that count nothing.
    width = (num + np.uint64(WIDTH - 1)) // np.uint64(WIDTH) * np.uint64(WIDTH)
    first, more, least = np.float32(base), np.float32(spread * EXCESS_UNIT), np.float32(limit)
    for k in range(width):
        bounds[k] = first + more * np.float32(excess[at + k])
    _add_bits(bounds, bits0, at, width, masks, masses, 0, sizes[0])
    _add_bits(bounds, bits1, at, width, masks, masses, 1, sizes[1])
    _add_bits(bounds, bits2, at, width, masks, masses, 2, sizes[2])
    for k in range(width):
        reaches = bounds[k] >= least * np.float32(norm[at + k])
        passed[k] = np.uint8(reaches) | np.uint8(excess[at + k] == UNKNOWN)
    num_places = np.uint64(0)
    for k in range(num):
        places[num_places] = place[at + k]
        num_places += np.uint64(passed[k])
    return np.int64(num_places)
