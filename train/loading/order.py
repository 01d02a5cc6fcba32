"""Selects the pairs of a stage, and orders them by a pure function of the seed, the epoch and
the data.

Pairs are selected by source and split, or a share of them by a hash.

The pairs of all epochs form one endless list of positions. Nothing here depends on workers or on
earlier requests, so that any batch can be made separately.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache

import numpy as np

from vlmill.train.loading.arrays import Ids, Keys
from vlmill.train.loading.mixture import Counts, Mixture, make_mixture
from vlmill.train.loading.random import permutation, scramble, stream_starts
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.settings.parts import Loading
from vlmill.train.settings.spec import TrainingStage

ORDER_STAGE = 1 << 18  # separate from the stages of pairs' masks and negatives
WINDOW_KEY = 1 << 32  # separate from the keys of an epoch's order
TURN_STAGES = 1 << 12  # offset between the stages of the orders of alternating lists

SHARE_STAGE = 1 << 19  # separate from the stages of pairs' orders, masks and negatives
ALL = 1 << 64  # the number of hashes

Visited = tuple[Ids, Counts]  # rows, and the index of each visit among its pair's visits


def stage_rows(
    table: SampleTable, stage: TrainingStage, splits: Collection[str | None] | None
) -> Ids:
    """Returns the rows of ``table`` that a stage visits, in the order of their images, int64 [N].

    Whether a pair belongs to a stage's share depends on its id only (without texts: on the image's
    id), not on the seed, the stage or the other rows of the table, and a smaller share is a part of
    every larger one.
    """
    rows = table.select_rows(stage.sources, stage.feeding.kind, splits)
    keys = table.image_keys if stage.feeding.kind == "pictures" else table.pair_keys
    return rows[select_share(keys, rows, stage.share, stage.max_pairs)]


def text_rows(
    table: SampleTable, stage: TrainingStage, splits: Collection[str | None] | None
) -> Ids:
    """Returns the rows of the texts that accompany the pairs of a stage: int64 [N], ascending."""
    return table.select_rows(stage.sources, "text", splits)


def select_share(keys: Keys, rows: Ids, share: float, max_count: int | None) -> Ids:
    """Returns the positions in ``rows`` whose hashes of ``keys`` are below ``share`` of all hashes,
    limited to the ``max_count`` smallest hashes: int64 [N], ascending.
    """
    positions = np.arange(len(rows))
    if share == 1 and (max_count is None or max_count >= len(rows)):
        return positions
    hashes = scramble(stream_starts(0, SHARE_STAGE, 0, keys[rows]))
    if share < 1:
        positions = np.flatnonzero(hashes < np.uint64(int(share * ALL)))
    if max_count is not None and max_count < len(positions):
        positions = np.sort(positions[np.argpartition(hashes[positions], max_count)[:max_count]])
    return positions


@dataclass(frozen=True, kw_only=True)
class Visit:
    """Holds a pair in an epoch, and the pairs near it, from which negatives are sampled."""

    epoch: int
    row: int
    near: Ids
    repeat: int = 0  # index among the pair's visits in its epoch, where sources are mixed


@dataclass(frozen=True, kw_only=True)
class PairOrder:
    """Represents the endless list of a stage's pairs.

    ``rows`` are the pairs' rows in the table, in the order in which their images are stored.
    ``lengths`` covers all rows of the table; it sorts batches of similar lengths. ``size`` is the
    size of a batch, and ``parts`` batches make a step. A step has the same pairs in any number of
    parts. An epoch of up to ``loading.window`` pairs is shuffled as a whole. A ``mixture`` of
    ``rows`` defines which of them each epoch visits, and how often; without one each is visited
    once.
    """

    rows: Ids
    lengths: Ids | None
    loading: Loading
    seed: int
    stage: int
    size: int
    parts: int = 1
    mixture: Mixture | None = None

    def __getstate__(self) -> dict[str, object]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def batch(self, index: int) -> list[Visit]:
        """Returns the pairs of batch ``index``, counted from 0."""
        first = index * self.size
        if self.loading.bucket == 1:
            return [self.visit(position) for position in range(first, first + self.size)]
        group, within = divmod(first, self._bucket)
        positions = self._buckets(group)[within : within + self.size]
        return [self.visit(position) for position in positions.tolist()]

    def visit(self, position: int) -> Visit:
        """Returns the pair at a position of the endless list, without buckets."""
        epoch, within = divmod(position, self.count)
        window, index = divmod(within, self._window)
        near, repeats = self._windows(epoch, window)
        return Visit(epoch=epoch, row=int(near[index]), near=near, repeat=int(repeats[index]))

    def spares(self, index: int, slot: int, parts: int) -> Iterator[Visit]:
        """Yields the pairs that may replace pair ``slot`` of batch ``index``, best first. The batch
        is one of ``parts`` of a step.

        Pairs that come next in the list and are not in the step are dealt to all slots, so that no
        two slots take the same pair, and no slot depends on which others are vacant. The result
        depends on the list only, not on the number of parts. An epoch shorter than two steps may
        have too few such pairs: then any of them follow, and finally pairs of the step itself.
        """
        first = index - index % parts
        offset, step = (index - first) * self.size + slot, parts * self.size
        # Two epochs' lengths contain every pair, regardless of where they begin.
        later_batches = range(first + parts, first + parts - (-2 * self.count // self.size))

        def later_visits() -> Iterator[Visit]:
            met = {
                visit.row
                for batch_index in range(first, first + parts)
                for visit in self.batch(batch_index)
            }
            return _of_new_rows(
                (visit for batch_index in later_batches for visit in self.batch(batch_index)), met
            )

        yield from itertools.islice(later_visits(), offset, None, step)
        few = list(later_visits())
        turn = offset % max(len(few), 1)
        yield from (*few[turn:], *few[:turn])
        yield from (visit for later_index in later_batches for visit in self.batch(later_index))

    def epoch(self, number: int) -> Iterator[int]:
        """Returns the rows of an epoch in their order."""
        first = number * self.count
        return (self.visit(position).row for position in range(first, first + self.count))

    @cached_property
    def count(self) -> int:
        """Returns the visits of an epoch."""
        return len(self.rows) if self.mixture is None else self.mixture.epoch_visits

    @cached_property
    def _bucket(self) -> int:
        """Returns the number of pairs in a bucket, a multiple of the step."""
        return self.loading.bucket * self.parts * self.size

    @cached_property
    def _window(self) -> int:
        """Returns the number of pairs in a window: whole blocks, or the epoch."""
        if self.count <= self.loading.window:
            return max(self.count, 1)
        return max(self.loading.window // self.loading.block, 1) * self.loading.block

    @cached_property
    def _visited(self) -> Callable[[int], Visited]:
        return lru_cache(maxsize=2)(self._make_visited)

    @cached_property
    def _windows(self) -> Callable[[int, int], Visited]:
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
        """Returns the epoch's blocks in their order. A shorter last block stays at the end:
        positions must be known without the order.
        """
        num_full_blocks = self.count // self.loading.block
        return np.append(self._permutation(epoch, 0, num_full_blocks), num_full_blocks)

    def _make_visited(self, epoch: int) -> Visited:
        """Returns the visits of an epoch, in the order of ``rows``."""
        if self.mixture is None:
            return self.rows, np.zeros(len(self.rows), dtype=np.uint16)
        return self.mixture.epoch(self.seed, self.stage, epoch)

    def _make_window(self, epoch: int, window: int) -> Visited:
        """Returns the visits of a window in order: a pure function, much smaller than the epoch."""
        count, size, block = self.count, self._window, self.loading.block
        rows, repeats = self._visited(epoch)
        if size >= count:
            order = self._permutation(epoch, 0, count)
            return rows[order], repeats[order]
        first = window * size // block
        blocks = self._blocks(epoch)[first : first + size // block]
        positions = (blocks[:, None] * block + np.arange(block)).ravel()
        positions = positions[positions < count]  # the last block may be shorter
        order = positions[self._permutation(epoch, WINDOW_KEY + window, len(positions))]
        return rows[order], repeats[order]

    def _make_bucket(self, group: int) -> Ids:
        """Returns the positions of a group of steps, step by step.

        Pairs stay in their group, and thus in their epoch, except in the group that two epochs
        share.
        """
        assert self.lengths is not None
        positions = np.arange(group * self._bucket, (group + 1) * self._bucket)
        lengths = self.lengths[[self.visit(position).row for position in positions.tolist()]]
        batches = positions[np.argsort(lengths, kind="stable")].reshape(self.loading.bucket, -1)
        return batches[self._permutation(group, 2 * WINDOW_KEY, len(batches))].ravel()


@dataclass(frozen=True, kw_only=True)
class AlternatingOrder:
    """Alternates between several endless lists: the pairs of a step are all from one list.

    Every batch is one of ``parts`` of a step. A list that is shorter than another repeats more
    often.
    """

    orders: tuple[PairOrder, ...]
    parts: int

    @property
    def rows(self) -> Ids:
        """Returns the rows of all lists."""
        return np.concatenate([order.rows for order in self.orders])

    def batch(self, index: int) -> list[Visit]:
        """Returns the pairs of batch ``index``, counted from 0."""
        order, order_index = self._find_order(index)
        return order.batch(order_index)

    def spares(self, index: int, slot: int, parts: int) -> Iterator[Visit]:
        """Returns the pairs of the same list that may replace one, as `PairOrder.spares` does."""
        order, order_index = self._find_order(index)
        return order.spares(order_index, slot, parts)

    def _find_order(self, index: int) -> tuple[PairOrder, int]:
        """Returns the list that a batch belongs to, and the batch's number in that list."""
        step, part = divmod(index, self.parts)
        turn, which = divmod(step, len(self.orders))
        return self.orders[which], turn * self.parts + part


def _of_new_rows(visits: Iterable[Visit], met: set[int]) -> Iterator[Visit]:
    """Yields the first visit of each row that was not ``met`` before."""
    for visit in visits:
        if visit.row not in met:
            met.add(visit.row)
            yield visit


def order_pairs(
    table: SampleTable,
    groups: Sequence[Ids],
    stage: TrainingStage,
    *,
    number: int,
    seed: int,
    size: int,
    parts: int,
) -> PairOrder | AlternatingOrder:
    """Returns the order in which a stage visits its rows, in batches of ``size``.

    Steps alternate between the ``groups`` of rows. ``number`` is the stage's.
    """
    lengths = None
    if stage.loading.bucket > 1:
        regions = np.minimum(table.num_regions, stage.feeding.max_regions)
        lengths = regions.astype(np.int64) * (1 << 20) + table.num_tokens
    orders = [
        PairOrder(
            rows=rows,
            mixture=make_mixture(table, rows, stage.mixture),
            lengths=lengths,
            loading=stage.loading,
            seed=seed,
            stage=number + turn * TURN_STAGES,
            size=size,
            parts=parts,
        )
        for turn, rows in enumerate(groups)
    ]
    return orders[0] if len(orders) == 1 else AlternatingOrder(orders=tuple(orders), parts=parts)
