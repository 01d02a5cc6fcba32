"""Searches blocks of captions, and merges their lists into shards of negatives.

Captions are searched in the order of :class:`.arrays.Bags`, and written in the order of their ids.
In between, lists are on disk, for each block and each part of the index. Every result is in the
list of a part; the parts' lists are merged by cosine and caption.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from vlmill.pipelines.hard_negatives.arrays import Array, Bags, Part, map_arrays, save
from vlmill.pipelines.hard_negatives.captions import read_arrow
from vlmill.pipelines.hard_negatives.index import build_index
from vlmill.pipelines.hard_negatives.kernel import search
from vlmill.pipelines.hard_negatives.plan import Plan
from vlmill.pipelines.hard_negatives.state import Rules
from vlmill.runtime.files.atomic import atomic_folder
from vlmill.runtime.files.shards import ShardWriter
from vlmill.runtime.units.numbers import Numbers
from vlmill.runtime.units.unit import Result, Unit
from vlmill.schemas.tables import NEGATIVES

BLOCK = 20_000  # captions whose lists are in memory together
ROWS_PER_GROUP = 10_000


def build_part(plan: Plan, unit: Unit) -> Result:
    """Writes a part of the index."""
    index = build_index(map_arrays(plan.bags, Bags), unit.number, plan.parts)
    save(plan.part(unit.number), index)
    return Result()


def block_units(part: int, plan: Plan) -> list[Unit]:
    """Returns a unit for each block of captions that is searched in a part of the index."""
    blocks = range(-(-plan.staged.captions // BLOCK))
    return [Unit(name=f"lists-{block:05d}-{part}", number=block) for block in blocks]


def search_block(number: int, plan: Plan, unit: Unit) -> Result:
    """Writes a block's lists from part ``number`` of the index.

    Scores that are too low for the best lists of the earlier parts are skipped.
    """
    block, rules = unit.number, plan.rules
    bags, part = map_arrays(plan.bags, Bags), map_arrays(plan.part(number), Part)
    first = block * BLOCK
    last = first + count_captions(block, bags.members.size)
    _, scores = merge_best(plan.work, block, range(number), np.arange(last - first), rules.top)
    floors = np.ascontiguousarray(scores[:, -1])
    limits = Rules(rules.top, rules.below.numerator, rules.below.denominator)
    lists = search_range(bags, part, limits, first, last, floors, plan.threads)
    with atomic_folder(lists_folder(plan.work, block, number), replace=True) as folder:
        for name, array in zip(("numbers", "scores"), lists, strict=True):
            np.save(folder / f"{name}.npy", array)
    return Result(numbers=Numbers(captions=last - first))


def search_range(
    bags: Bags, part: Part, rules: Rules, first: int, last: int, floors: Array, threads: int
) -> tuple[Array, Array]:
    """Returns (captions, cosines) [n, top] of ``members[first:last]``, using ``threads``."""
    num = last - first
    numbers, scores = np.empty((num, rules.top), np.int32), np.empty((num, rules.top))
    cuts = np.linspace(0, num, min(threads, num) + 1).astype(int)
    spans = [slice(a, b) for a, b in pairwise(cuts.tolist())]

    def search_span(span: slice) -> None:
        lists = numbers[span], scores[span]
        search(bags, part, rules, first + span.start, floors[span], lists)

    with ThreadPoolExecutor(len(spans)) as pool:
        list(pool.map(search_span, spans))
    return numbers, scores


def lists_folder(work: Path, block: int, part: int) -> Path:
    """Returns the folder of the lists of a block from a part of the index."""
    return work / f"lists-{block:05d}-{part}"


def merge_best(
    work: Path, block: int, parts: Sequence[int], rows: Array, top: int
) -> tuple[Array, Array]:
    """Returns the best results of these parts for rows of a block; unused entries are -1 and 0."""
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
    """Yields the lists of each block, as :func:`merge_best` returns them."""
    for block in range(-(-captions // BLOCK)):
        rows = np.arange(count_captions(block, captions))
        yield merge_best(work, block, range(parts), rows, top)


def shard_units(plan: Plan) -> list[Unit]:
    """Returns a unit for each shard: ``slices`` are its captions."""
    starts = range(0, plan.staged.captions, plan.shard_captions)
    ends = [*starts[1:], plan.staged.captions]
    return [
        Unit(name=f"negatives-{number:05d}", number=number, slices=range(start, end))
        for number, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def write_negatives(plan: Plan, unit: Unit) -> Result:
    """Writes a shard of negatives."""
    writer = ShardWriter(
        plan.output,
        NEGATIVES,
        unit.number,
        plan.num_shards,
        producer=plan.producer,
        compression="zstd",
    )
    with writer:
        members = map_arrays(plan.bags, Bags).members
        positions = np.empty(members.size, np.int32)  # of each caption, in search order
        positions[members] = np.arange(members.size, dtype=np.int32)
        ids = read_arrow(plan.captions / "ids.arrow").column("id").combine_chunks()
        for begin in range(unit.slices.start, unit.slices.stop, ROWS_PER_GROUP):
            end = min(begin + ROWS_PER_GROUP, unit.slices.stop)
            writer.write(_table(plan, ids, range(begin, end), positions[begin:end]))
    return Result(shards=[writer.shard], numbers=Numbers(rows=len(unit.slices)))


def _table(plan: Plan, ids: pa.Array, captions: range, positions: Array) -> pa.Table:
    """Returns rows of ``negatives`` for captions whose lists are at ``positions``."""
    top = plan.rules.top
    numbers, scores = np.empty((positions.size, top), np.int32), np.empty((positions.size, top))
    for block in np.unique(positions // BLOCK):
        rows = np.flatnonzero(positions // BLOCK == block)
        numbers[rows], scores[rows] = merge_best(
            plan.work, int(block), range(plan.parts), positions[rows] % BLOCK, top
        )
    real = numbers >= 0
    offsets = pa.array(np.concatenate([[0], np.cumsum(real.sum(axis=1))]), pa.int32())
    negatives = ids.take(pa.array(numbers[real]))
    cosines = pa.array(scores[real].astype(np.float32))
    return pa.table(
        {
            "pair_id": ids[captions.start : captions.stop],
            "negative_pair_ids": pa.ListArray.from_arrays(offsets, negatives),
            "similarities": pa.ListArray.from_arrays(offsets, cosines),
        }
    )


def count_captions(block: int, captions: int) -> int:
    """Returns the number of captions of a block; the last block has the remaining ones."""
    return min(BLOCK, captions - block * BLOCK)
