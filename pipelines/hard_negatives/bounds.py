"""Which bags may reach a score, told by what stands beside their postings, read in order."""

from typing import Any

import numpy as np

from vlmill.pipelines.hard_negatives.arrays import EXCESS_UNIT, UNKNOWN, Array, Part
from vlmill.pipelines.hard_negatives.compiled import inlined
from vlmill.pipelines.hard_negatives.state import Query, Scratch

WIDTH = 16  # postings that fill the widest vector register


@inlined
def list_masks(query: Query, first: int, last: int, scratch: Scratch) -> None:
    """Lists the distinct bits of the query's words ``first`` to ``last``, and their masses.

    Masses are rounded up.
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
    """Lists in ``scratch.row_numbers`` which of some postings may reach a score; returns how many.

    A bag's product with the query is at most ``base``, ``spread`` for each unit of its excess, and
    the masses of its bits; ``limit`` for each unit of its norm is what it must reach.
    """
    excess, norm, posting_rows = part.excess, part.norm, part.place
    bounds, passed, row_numbers = scratch.bounds, scratch.passed, scratch.row_numbers
    offset, num = np.uint64(start), np.uint64(count)
    # Whole registers: arrays of postings end with some that count nothing.
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
