"""Computes perceptual hashes of 64 bits; similar images share most of the bits.

The bits are the 8 x 8 lowest frequencies of a discrete cosine transform of the image's 32 x 32 grey
pixels, each compared with their median. Scaling, recompression and small changes of brightness flip
a few of them.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

SIDE, LOW = 32, 8
NEAR = 4
"""Bits: a larger distance gives false hits on plain images."""

Hashes = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]


def _cosines() -> npt.NDArray[np.float64]:
    """Returns the ``LOW`` lowest rows of the orthogonal DCT-II of ``SIDE`` values."""
    frequency, sample = np.arange(LOW)[:, None], np.arange(SIDE)[None, :]
    rows: npt.NDArray[np.float64] = np.cos(np.pi * frequency * (2 * sample + 1) / (2 * SIDE))
    rows[0] /= np.sqrt(2)
    return rows


_COSINES = _cosines()


def perceptual_hash(image: Image.Image) -> int:
    """Returns the 64-bit hash of a decoded, upright image; the top bit belongs to its mean."""
    if image.mode not in ("L", "RGB"):
        image = image.convert("RGB")
    grey = image if image.mode == "L" else image.convert("L")
    small = grey.resize((SIDE, SIDE), Image.Resampling.BOX, reducing_gap=2.0)
    pixels = np.asarray(small, dtype=np.float64)
    low = (_COSINES @ pixels @ _COSINES.T).round(6).ravel()
    middle = np.sort(low)[low.size // 2 - 1 : low.size // 2 + 1]
    median = middle.sum() / 2  # np.median would load another module in every decoding process
    return int.from_bytes(np.packbits(low > median).tobytes(), "big")


def near_pairs(hashes: Hashes, distance: int = NEAR) -> Iterator[tuple[Numbers, Numbers]]:
    """Yields numbers of ``hashes`` within ``distance`` bits of each other; all are different.

    Two hashes that differ in at most ``distance`` bits agree in one of ``distance`` + 1 bands of
    bits: only such pairs are compared. A pair is yielded once for each band that it shares. Memory:
    a few copies of ``hashes``, and one block of comparisons.
    """
    for shift, mask in bands(distance):
        band = (hashes >> np.uint64(shift)) & np.uint64(mask)
        order = np.argsort(band, kind="stable")
        starts = np.flatnonzero(np.diff(band[order], prepend=band[order[:1]] ^ np.uint64(1)))
        for begin, end in pairwise([*starts.tolist(), len(order)]):
            yield from _pairs_within(hashes, order[begin:end], distance)


def bands(distance: int) -> list[tuple[int, int]]:
    """Splits 64 bits into ``distance`` + 1 bands: (shift, mask) of each."""
    edges = [64 * i // (distance + 1) for i in range(distance + 2)]
    return [(low, (1 << (high - low)) - 1) for low, high in pairwise(edges)]


_BLOCK = 1 << 20  # comparisons per block


def _pairs_within(
    hashes: Hashes, numbers: Numbers, distance: int
) -> Iterator[tuple[Numbers, Numbers]]:
    values = hashes[numbers]
    step = max(1, _BLOCK // max(1, len(numbers)))
    for begin in range(0, len(numbers) - 1, step):
        part = values[begin : begin + step]
        bit_distances = np.bitwise_count(part[:, None] ^ values[None, begin:])
        first, second = np.nonzero(bit_distances <= distance)
        later = second > first
        if later.any():
            yield numbers[begin + first[later]], numbers[begin + second[later]]


def group_hashes(hashes: Hashes, distance: int = NEAR) -> Hashes:
    """Returns for each of the different ``hashes`` the least hash of its group.

    A group is connected by chains of hashes within ``distance`` bits. Memory: about 40 bytes per
    hash.
    """
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    parents = np.arange(len(ordered), dtype=np.int64)
    for first, second in near_pairs(ordered, distance):
        for hash_index, other in zip(first.tolist(), second.tolist(), strict=True):
            a, b = _root(parents, hash_index), _root(parents, other)
            if a != b:
                parents[max(a, b)] = min(a, b)
    # A parent has a lower number than its child: one pass in order finds every root.
    for number in np.flatnonzero(parents != np.arange(len(parents))).tolist():
        parents[number] = parents[parents[number]]
    groups = np.empty_like(hashes)
    groups[order] = ordered[parents]
    return groups


def _root(parents: Numbers, number: int) -> int:
    while parents[number] != number:
        parents[number] = parents[parents[number]]
        number = int(parents[number])
    return number


class Neighbours:
    """Finds hashes near others. They are sorted once by each band: 16 bytes per hash and band."""

    def __init__(self, hashes: Hashes, distance: int) -> None:
        self._distance = distance
        self._bands = [_Band.from_hashes(hashes, shift, mask) for shift, mask in bands(distance)]

    def near(self, phash: int) -> bool:
        """Returns whether one of the hashes is within the distance of this one."""
        return any(band.near(np.uint64(phash), self._distance) for band in self._bands)


class _Band(NamedTuple):
    """Holds hashes in the order of one band of their bits."""

    shift: int
    mask: int
    keys: Hashes
    hashes: Hashes

    @classmethod
    def from_hashes(cls, hashes: Hashes, shift: int, mask: int) -> "_Band":
        keys = (hashes >> np.uint64(shift)) & np.uint64(mask)
        order = np.argsort(keys, kind="stable")
        return cls(shift, mask, keys[order], hashes[order])

    def near(self, phash: np.uint64, distance: int) -> bool:
        key = (phash >> np.uint64(self.shift)) & np.uint64(self.mask)
        begin, end = (int(np.searchsorted(self.keys, key, side)) for side in ("left", "right"))
        return bool((np.bitwise_count(self.hashes[begin:end] ^ phash) <= distance).any())
