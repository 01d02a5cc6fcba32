"""Searches of blocks of captions, and their lists put together into shards of negatives.

Captions are searched in the order of :class:`.arrays.Bags`, and written in the order of their ids:
lists lie in between on the disk, of each block and each part of the index. An answer is among the
answers of the parts; their lists are merged by cosine and caption.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa

from vlmill.pipelines.counting.numbers import Numbers, timed
from vlmill.pipelines.hard_negatives.arrays import Array, Bags, Part, mapped, save
from vlmill.pipelines.hard_negatives.captions import read_arrow
from vlmill.pipelines.hard_negatives.index import part_of
from vlmill.pipelines.hard_negatives.kernel import search
from vlmill.pipelines.hard_negatives.state import Rules
from vlmill.pipelines.launch.metrics import count_in_beam
from vlmill.schemas.console.progress import Progress
from vlmill.schemas.files.atomic import atomic_folder, has_folder
from vlmill.schemas.files.shards import ShardWriter, shard_name
from vlmill.schemas.tables import NEGATIVES

BLOCK = 20_000  # captions whose lists are in memory together
ROWS_PER_GROUP = 10_000


class Once(beam.DoFn):
    """Calls a function in a worker, when ``after`` is all there; yields nothing."""

    def __init__(self, function: Callable[..., object], *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def process(self, _: None, after: object = None) -> None:
        self.function(*self.arguments)


class DoUnits(beam.DoFn):
    """(number, [unit]) -> nothing: calls :meth:`make` for units, when ``after`` is all there."""

    def process(self, numbered: tuple[int, Iterable[Any]], after: object = None) -> None:
        for unit in numbered[1]:
            self.make(unit)

    def make(self, unit: Any) -> None:
        """Leaves a unit's files."""
        raise NotImplementedError


class BuildPart(DoUnits):
    """Part of the index -> its files, unless they are there."""

    def __init__(self, work: Path, parts: int) -> None:
        self.work, self.parts = work, parts

    def make(self, number: int) -> None:
        folder = self.work / f"part-{number}"
        if not has_folder(folder):
            save(folder, part_of(mapped(self.work / "bags", Bags), number, self.parts))


class SearchBlock(DoUnits):
    """(part, block) -> the block's lists from this part, unless they are there.

    Scores that the parts before it have reached need not be found again.
    """

    def __init__(self, work: Path, rules: Rules, threads: int, captions: int) -> None:
        self.work, self.rules, self.threads, self.captions = work, rules, threads, captions
        self.progress: Progress | None = None

    def setup(self) -> None:
        self.bags: Bags | None = None
        self.parts: dict[int, Part] = {}

    def start_bundle(self) -> None:
        self.progress = Progress(total=self.captions, unit="caption", label="negatives")

    def finish_bundle(self) -> None:
        assert self.progress is not None
        self.progress.__exit__(None, None, None)
        self.progress = None

    def make(self, element: tuple[int, int]) -> None:
        number, block = element
        if has_folder(lists_folder(self.work, block, number)):  # before its worker was killed
            return
        if self.bags is None:
            self.bags = mapped(self.work / "bags", Bags)
        if number not in self.parts:
            self.parts = {number: mapped(self.work / f"part-{number}", Part)}
        first = block * BLOCK
        last = first + captions_of(block, self.bags.members.size)
        before = [p for p in range(number) if has_folder(lists_folder(self.work, block, p))]
        _, scores = merged(self.work, block, before, np.arange(last - first), self.rules.top)
        floors = np.ascontiguousarray(scores[:, -1])
        numbers = Numbers(captions=last - first)
        with timed(numbers):
            lists = search_range(
                self.bags, self.parts[number], self.rules, first, last, floors, self.threads
            )
        count_in_beam("search", numbers)
        with atomic_folder(lists_folder(self.work, block, number), replace=True) as folder:
            for name, array in zip(("numbers", "scores"), lists, strict=True):
                np.save(folder / f"{name}.npy", array)
        assert self.progress is not None
        self.progress.advance(last - first)


def search_range(
    bags: Bags, part: Part, rules: Rules, first: int, last: int, floors: Array, threads: int
) -> tuple[Array, Array]:
    """(captions, cosines) [n, top] of ``members[first:last]``, on so many threads."""
    num = last - first
    numbers, scores = np.empty((num, rules.top), np.int32), np.empty((num, rules.top))
    cuts = np.linspace(0, num, min(threads, num) + 1).astype(int)
    spans = [slice(a, b) for a, b in pairwise(cuts.tolist())]

    def one(span: slice) -> None:
        lists = numbers[span], scores[span]
        search(bags, part, rules, first + span.start, floors[span], lists)

    with ThreadPoolExecutor(len(spans)) as pool:
        list(pool.map(one, spans))
    return numbers, scores


def lists_folder(work: Path, block: int, part: int) -> Path:
    """Where the lists of a block from a part of the index lie."""
    return work / f"lists-{block:05d}-{part}"


def merged(
    work: Path, block: int, parts: Sequence[int], rows: Array, top: int
) -> tuple[Array, Array]:
    """The best of these parts for some rows of a block; -1 and 0 where there are no more."""
    numbers, scores = np.full((rows.size, top), -1, np.int32), np.zeros((rows.size, top))
    for part in parts:
        folder = lists_folder(work, block, part)
        more = [np.load(folder / f"{n}.npy", mmap_mode="r")[rows] for n in ("numbers", "scores")]
        if part == parts[0]:
            numbers, scores = more
            continue
        numbers = np.concatenate([numbers, more[0]], axis=1)
        scores = np.concatenate([scores, more[1]], axis=1)
        order = np.lexsort((numbers, -scores), axis=1)[:, :top]
        numbers = np.take_along_axis(numbers, order, axis=1)
        scores = np.take_along_axis(scores, order, axis=1)
    return numbers, scores


def all_lists(work: Path, captions: int, parts: int, top: int) -> Iterator[tuple[Array, Array]]:
    """Yields the lists of each block, as :func:`merged` gives them."""
    for block in range(-(-captions // BLOCK)):
        rows = np.arange(captions_of(block, captions))
        yield merged(work, block, range(parts), rows, top)


class WriteNegatives(DoUnits):
    """(shard, first, last caption) -> the shard, unless it is there."""

    def __init__(
        self, work: Path, output: Path, total: int, parts: int, top: int, producer: dict[str, Any]
    ) -> None:
        self.work, self.output, self.total = work, output, total
        self.parts, self.top, self.producer = parts, top, producer

    def setup(self) -> None:
        self.opened: tuple[Array, pa.Array] | None = None

    def _open(self) -> tuple[Array, pa.Array]:
        """The place of each caption in the order of search, and its id."""
        if self.opened is None:
            members = mapped(self.work / "bags", Bags).members
            places = np.empty(members.size, np.int32)
            places[members] = np.arange(members.size, dtype=np.int32)
            ids = read_arrow(self.work / "captions" / "ids.arrow").column("id").combine_chunks()
            self.opened = places, ids
        return self.opened

    def make(self, element: tuple[int, int, int]) -> None:
        shard, first, last = element
        if (self.output / shard_name(NEGATIVES, shard, self.total)).exists():
            return
        numbers = Numbers(rows=last - first)
        writer = ShardWriter(
            self.output, NEGATIVES, shard, self.total, producer=self.producer, compression="zstd"
        )
        with timed(numbers), writer:
            for begin in range(first, last, ROWS_PER_GROUP):
                end = min(begin + ROWS_PER_GROUP, last)
                writer.write(self._table(begin, end))
        assert writer.shard is not None
        numbers["bytes"] = writer.shard.bytes
        count_in_beam("negatives", numbers)

    def _table(self, first: int, last: int) -> pa.Table:
        all_places, ids = self._open()
        places = all_places[first:last]
        numbers = np.empty((places.size, self.top), np.int32)
        scores = np.empty((places.size, self.top))
        for block in np.unique(places // BLOCK):
            rows = np.flatnonzero(places // BLOCK == block)
            numbers[rows], scores[rows] = merged(
                self.work, int(block), range(self.parts), places[rows] % BLOCK, self.top
            )
        real = numbers >= 0
        offsets = pa.array(np.concatenate([[0], np.cumsum(real.sum(axis=1))]), pa.int32())
        negatives = ids.take(pa.array(numbers[real]))
        cosines = pa.array(scores[real].astype(np.float32))
        return pa.table(
            {
                "pair_id": ids[first:last],
                "negative_pair_ids": pa.ListArray.from_arrays(offsets, negatives),
                "similarities": pa.ListArray.from_arrays(offsets, cosines),
            }
        )


def captions_of(block: int, captions: int) -> int:
    """How many of all captions a block has: the last one has the rest."""
    return min(BLOCK, captions - block * BLOCK)


def missing_blocks(work: Path, captions: int, part: int) -> list[tuple[int, int]]:
    """(part, block) of the blocks whose lists from a part are not there."""
    blocks = range(-(-captions // BLOCK))
    return [(part, b) for b in blocks if not has_folder(lists_folder(work, b, part))]


def read_staged(work: Path) -> dict[str, int] | None:
    """What an earlier run has staged in ``work``, None if it has not."""
    if not has_folder(work / "captions"):
        return None
    text = (work / "captions" / "staged.json").read_text(encoding="utf-8")
    counts: dict[str, int] = json.loads(text)
    return counts
