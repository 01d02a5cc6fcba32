"""In which order a stage visits its pairs: pure functions of the seed, the epoch and the data.

The pairs of all epochs form one endless list of places. Nothing here depends on workers or on what
was asked before, so that any batch can be made by itself.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from vlmill.train.loading.arrays import Ids
from vlmill.train.loading.random import permutation, stream_starts
from vlmill.train.recipes.spec import Loading

ORDER_STAGE = 1 << 18  # apart from the stages whose pairs draw masks and negatives
WINDOW_KEY = 1 << 32  # apart from the keys of an epoch's order


@dataclass(frozen=True, kw_only=True)
class Visit:
    """A pair in an epoch, with the pairs near it that negatives are drawn from."""

    epoch: int
    row: int
    near: Ids


@dataclass(frozen=True, kw_only=True)
class PairOrder:
    """The endless list of a stage's pairs.

    ``rows`` are their rows in the table, in the order in which their pictures lie; ``lengths``, by
    which batches of like lengths are sorted, is of all rows of the table; ``size`` is of a batch.
    An epoch of up to ``loading.window`` pairs is shuffled as a whole.
    """

    rows: Ids
    lengths: Ids | None
    loading: Loading
    seed: int
    stage: int
    size: int

    def __getstate__(self) -> dict[str, object]:
        cached = ("_windows", "_blocks", "_buckets")
        return {name: value for name, value in vars(self).items() if name not in cached}

    def batch(self, index: int) -> list[Visit]:
        """The pairs of batch ``index``, counted from 0."""
        group, within = divmod(index, self.loading.bucket)
        if self.loading.bucket == 1:
            first = index * self.size
            return [self.visit(place) for place in range(first, first + self.size)]
        places = self._buckets(group)[within * self.size : (within + 1) * self.size]
        return [self.visit(place) for place in places.tolist()]

    def visit(self, place: int) -> Visit:
        """The pair at a place of the endless list, buckets left aside."""
        epoch, within = divmod(place, len(self.rows))
        window, at = divmod(within, self._window)
        near = self._windows(epoch, window)
        return Visit(epoch=epoch, row=int(near[at]), near=near)

    def epoch(self, number: int) -> Iterator[int]:
        """The rows of an epoch in their order."""
        first = number * len(self.rows)
        return (self.visit(place).row for place in range(first, first + len(self.rows)))

    @property
    def _window(self) -> int:
        """Pairs in a window: whole blocks, or the epoch."""
        if len(self.rows) <= self.loading.window:
            return max(len(self.rows), 1)
        return max(self.loading.window // self.loading.block, 1) * self.loading.block

    @cached_property
    def _windows(self) -> Callable[[int, int], Ids]:
        return lru_cache(maxsize=2)(self._make_window)

    @cached_property
    def _blocks(self) -> Callable[[int], Ids]:
        return lru_cache(maxsize=2)(self._make_blocks)

    @cached_property
    def _buckets(self) -> Callable[[int], Ids]:
        return lru_cache(maxsize=2)(self._make_bucket)

    def _permutation(self, epoch: int, key: int, count: int) -> Ids:
        (start,) = stream_starts(self.seed, self.stage + ORDER_STAGE, [epoch], [key]).tolist()
        return permutation(start, count)

    def _make_blocks(self, epoch: int) -> Ids:
        """The epoch's blocks in their order. The last one, if shorter, stays at the end: places
        must be known without the order."""
        whole = len(self.rows) // self.loading.block
        return np.append(self._permutation(epoch, 0, whole), whole)

    def _make_window(self, epoch: int, window: int) -> Ids:
        """The rows of a window in their order: a pure function, small beside the epoch."""
        count, size, block = len(self.rows), self._window, self.loading.block
        if size >= count:
            return self.rows[self._permutation(epoch, 0, count)]
        first = window * size // block
        parts = [
            self.rows[at * block : (at + 1) * block]
            for at in self._blocks(epoch)[first : first + size // block].tolist()
        ]
        rows = np.concatenate(parts)
        return rows[self._permutation(epoch, WINDOW_KEY + window, len(rows))]

    def _make_bucket(self, group: int) -> Ids:
        """Places of a group of batches, batch by batch.

        Pairs stay in their group, and thus in their epoch but for the group that two epochs share.
        """
        assert self.lengths is not None
        first, count = group * self.loading.bucket * self.size, self.loading.bucket * self.size
        places = np.arange(first, first + count)
        lengths = self.lengths[[self.visit(place).row for place in places.tolist()]]
        batches = places[np.argsort(lengths, kind="stable")].reshape(self.loading.bucket, -1)
        return batches[self._permutation(group, 2 * WINDOW_KEY, len(batches))].ravel()
