"""Finds exact nearest vectors: FAISS's float32 distances give candidates, float64 distances decide.

n images of one split, sorted by id, D feature width, U different vectors among theirs.

FAISS computes |x|^2 - 2 xy + |y|^2 in float32. Its error is much larger than the last digit, and
differs between block sizes, so equal distances may differ and near ones may be in the wrong order.
Here FAISS returns some additional candidates, and their distances are computed again as sqrt(sum (x
- y)^2) in float64 and rounded to float32. A bound on FAISS's error shows whether another vector
could come before the last neighbour; if so, the search is repeated with more candidates. Images
with the same vector are searched once.
"""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vlmill.pipelines.nearest_images.means import Means, Numbers, Vectors
from vlmill.runtime.console.threads import faiss_threads, nearest_vectors

Distances = npt.NDArray[np.float32]
SPARE = 24  # candidates in addition to the requested ones
GROWTH = 8  # factor for more candidates if a query is not settled
QUERIES = 1_024  # vectors per search
MOST_CANDIDATES = 1 << 23  # per block of queries: 12 bytes each
ROWS_AT_ONCE = 4_096
EPSILON = float(np.finfo(np.float32).eps)  # twice the error of an operation
SMALLEST = float(np.finfo(np.float32).tiny)  # largest loss of a product below it


@dataclass(frozen=True, kw_only=True)
class Nearest:
    """Holds an image's nearest images as indices of the sorted ids, and float32 distances."""

    positions: Numbers
    distances: Distances


class NearestIndex:
    """Holds the distinct vectors of a split's images, mapped from a file.

    ``rows`` are the images' rows in ``means``, in the order of their ids. The file, 4 U D bytes,
    has the vectors minus their mean: differences stay the same, and FAISS's error is smaller.
    """

    def __init__(
        self, means: Means, rows: Numbers, path: Path, *, threads: int, gpu: int | None = None
    ) -> None:
        self._means, self._rows = means, rows
        self._unique_of, members = group_rows(means, rows)
        self._order = np.argsort(self._unique_of, kind="stable")
        self._starts = np.concatenate([[0], np.cumsum(members)])
        # A group has its first image's vector.
        self._first = self._order[self._starts[:-1]]
        self._vectors = centre_vectors(means, rows[self._first], path)
        self._threads, self._gpu = threads, gpu

    def __len__(self) -> int:
        return len(self._rows)

    def search(self, start: int, stop: int, top: int) -> Iterator[Nearest]:
        """Yields the ``top`` nearest of each image from ``start`` on, without the image itself.

        They are sorted by distance, rounded to float32, then by index; fewer if the split is small.
        """
        with ThreadPoolExecutor(self._threads) as threads:
            for begin in range(start, stop, QUERIES):
                positions = np.arange(begin, min(begin + QUERIES, stop))
                queries, which = np.unique(self._unique_of[positions], return_inverse=True)
                lists = self._lists(queries, top + 1, threads)
                for position, query in zip(positions.tolist(), which.tolist(), strict=True):
                    is_other = lists[query].positions != position
                    yield Nearest(
                        positions=lists[query].positions[is_other][:top],
                        distances=lists[query].distances[is_other][:top],
                    )

    def _lists(self, queries: Numbers, count: int, threads: ThreadPoolExecutor) -> list[Nearest]:
        """Returns the ``count`` first images per vector, including images with the vector."""
        lists: dict[int, Nearest] = {}
        waiting, width = queries.tolist(), count + SPARE
        while waiting:
            width = min(width, len(self._vectors))
            block_size = max(1, MOST_CANDIDATES // width)
            unsettled = []
            for begin in range(0, len(waiting), block_size):
                block = np.array(waiting[begin : begin + block_size])
                with faiss_threads(self._threads):
                    vectors = self._vectors[block]
                    scores, near = nearest_vectors(vectors, self._vectors, width, self._gpu)
                ranked = threads.map(partial(self._ranked, count), block, near, scores)
                for query, nearest in zip(block.tolist(), ranked, strict=True):
                    if nearest is None:
                        unsettled.append(query)
                    else:
                        lists[query] = nearest
            waiting, width = unsettled, width * GROWTH
        return [lists[query] for query in queries.tolist()]

    def _ranked(
        self, count: int, query: int, candidates: Numbers, squares: Distances
    ) -> Nearest | None:
        """Returns the first images of the candidates, or None if other images may be nearer."""
        distances = self._distances(query, candidates)
        order = np.argsort(distances, kind="stable")
        candidates, distances = candidates[order], distances[order]
        sizes = np.minimum(self._starts[candidates + 1] - self._starts[candidates], count)
        ends = np.cumsum(sizes)
        last = int(np.searchsorted(ends, count))  # index of the candidate that completes the list
        complete = len(candidates) == len(self._vectors)
        if not complete and not self._settled(query, distances, last, float(squares[-1])):
            return None
        # Includes all candidates at the last one's distance: their indices decide.
        near = distances <= distances[min(last, len(distances) - 1)]
        starts = self._starts[candidates[near]]
        positions = np.concatenate(
            [self._order[s : s + n] for s, n in zip(starts, sizes[near], strict=True)]
        )
        repeated = np.repeat(distances[near], sizes[near])
        first = np.lexsort((positions, repeated))[:count]
        return Nearest(positions=positions[first], distances=repeated[first])

    def _distances(self, query: int, candidates: Numbers) -> Distances:
        """Returns Euclidean distances of vectors, computed in float64 and rounded to float32."""
        vectors = self._means.rows(self._rows[self._first[candidates]])
        origin = self._means.rows(self._rows[self._first[[query]]])
        difference = np.subtract(vectors, origin, dtype=np.float64)
        squares = np.einsum("cd,cd->c", difference, difference)
        distances: Distances = np.sqrt(squares).astype(np.float32)
        return distances

    def _settled(self, query: int, distances: Distances, last: int, farthest: float) -> bool:
        """Returns whether only the candidates can be as near as the ``last`` of them.

        FAISS gave the other vectors a squared distance of at least ``farthest``. A vector as near
        as t = distances[last] is at most |x| + t long, x being the query, and the three sums of D
        products err by at most D u (|x| + |y|)^2 together, u = 2^-24 (Higham, Accuracy and
        Stability of Numerical Algorithms, sec. 3.1); EPSILON is 2 u.
        """
        if last >= len(distances):
            return False
        vector = self._vectors[query].astype(np.float64)
        length, dim = float(np.sqrt(vector @ vector)), len(vector)
        # Distances that round to the same float32 are equal.
        reach = float(np.nextafter(distances[last], np.float32(np.inf)))
        error = (dim + 16) * (EPSILON * (2 * length + reach) ** 2 + 4 * SMALLEST)
        return farthest > reach**2 + error


def group_rows(means: Means, rows: Numbers) -> tuple[Numbers, Numbers]:
    """Returns numbers for the vectors of ``rows`` [n], the same for equal ones, and the number of
    rows of each [U].

    They are numbered by first appearance. Vectors are equal if their SHA-256 is.
    """
    numbers: dict[bytes, int] = {}
    group_numbers = np.empty(len(rows), dtype=np.int64)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        for position, vector in enumerate(means.rows(rows[start : start + ROWS_AT_ONCE]), start):
            key = hashlib.sha256(vector).digest()
            group_numbers[position] = numbers.setdefault(key, len(numbers))
    return group_numbers, np.bincount(group_numbers, minlength=len(numbers))


def centre_vectors(means: Means, rows: Numbers, path: Path) -> Vectors:
    """Writes the vectors of ``rows`` minus their mean to ``path``, float32 [U, D]; maps them."""
    blocks = [rows[start : start + ROWS_AT_ONCE] for start in range(0, len(rows), ROWS_AT_ONCE)]
    centre = sum(means.rows(block).sum(axis=0, dtype=np.float64) for block in blocks) / len(rows)
    vectors = np.lib.format.open_memmap(
        path, mode="w+", dtype=np.float32, shape=(len(rows), means.dim)
    )
    for number, block in enumerate(blocks):
        start = number * ROWS_AT_ONCE
        vectors[start : start + len(block)] = means.rows(block) - centre
    mapped: Vectors = vectors
    return mapped
