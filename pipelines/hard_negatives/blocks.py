"""Searches of blocks of captions, and their lists put together into shards of negatives.

Captions are searched in the order of :class:`.arrays.Bags`, and written in the order of their ids:
lists lie in between on the disk, of each block and each part of the index. An answer is among the
answers of the parts; their lists are merged by cosine and caption.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from vlmill.pipelines.counting.numbers import Numbers, timed
from vlmill.pipelines.hard_negatives.arrays import Array, Bags, Part, mapped, save
from vlmill.pipelines.hard_negatives.captions import Staged, read_arrow
from vlmill.pipelines.hard_negatives.index import build_index
from vlmill.pipelines.hard_negatives.kernel import search
from vlmill.pipelines.hard_negatives.plan import Plan, Range
from vlmill.pipelines.hard_negatives.state import Rules
from vlmill.runtime.files.atomic import atomic_folder, has_folder
from vlmill.runtime.files.shards import ShardWriter
from vlmill.schemas.plain_json import parse_json
from vlmill.schemas.tables import NEGATIVES

BLOCK = 20_000  # captions whose lists are in memory together
ROWS_PER_GROUP = 10_000


def build_part(plan: Plan, number: int) -> Numbers:
    """Leaves a part of the index, unless it is there."""
    folder = plan.part(number)
    if not has_folder(folder):
        save(folder, build_index(mapped(plan.bags, Bags), number, plan.parts))
    return Numbers()


def search_block(plan: Plan, unit: tuple[int, int]) -> Numbers:
    """(part, block): leaves the block's lists from this part, unless they are there.

    Scores that the parts before it have reached need not be found again.
    """
    number, block = unit
    if has_folder(lists_folder(plan.work, block, number)):  # before its worker was killed
        return Numbers()
    bags, part, rules = mapped(plan.bags, Bags), mapped(plan.part(number), Part), plan.rules
    first = block * BLOCK
    last = first + count_captions(block, bags.members.size)
    before = [p for p in range(number) if has_folder(lists_folder(plan.work, block, p))]
    _, scores = merged(plan.work, block, before, np.arange(last - first), rules.top)
    floors = np.ascontiguousarray(scores[:, -1])
    limits = Rules(rules.top, rules.below.numerator, rules.below.denominator)
    numbers = Numbers(captions=last - first)
    with timed(numbers):
        lists = search_range(bags, part, limits, first, last, floors, plan.threads)
    with atomic_folder(lists_folder(plan.work, block, number), replace=True) as folder:
        for name, array in zip(("numbers", "scores"), lists, strict=True):
            np.save(folder / f"{name}.npy", array)
    return numbers


def search_range(
    bags: Bags, part: Part, rules: Rules, first: int, last: int, floors: Array, threads: int
) -> tuple[Array, Array]:
    """(captions, cosines) [n, top] of ``members[first:last]``, on so many threads."""
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
        rows = np.arange(count_captions(block, captions))
        yield merged(work, block, range(parts), rows, top)


def write_negatives(plan: Plan, staged: Staged, unit: Range) -> Numbers:
    """(shard, first, last caption): leaves the shard, unless it is there."""
    shard, first, last = unit
    if plan.shard(shard, staged).exists():
        return Numbers()
    numbers = Numbers(rows=last - first)
    total = len(plan.ranges(staged))
    writer = ShardWriter(
        plan.output, NEGATIVES, shard, total, producer=plan.producer, compression="zstd"
    )
    with timed(numbers), writer:
        members = mapped(plan.bags, Bags).members
        positions = np.empty(members.size, np.int32)  # of each caption, in the order of search
        positions[members] = np.arange(members.size, dtype=np.int32)
        ids = read_arrow(plan.captions / "ids.arrow").column("id").combine_chunks()
        for begin in range(first, last, ROWS_PER_GROUP):
            end = min(begin + ROWS_PER_GROUP, last)
            writer.write(_table(plan, ids, range(begin, end), positions[begin:end]))
    assert writer.shard is not None
    numbers["bytes"] = writer.shard.bytes
    return numbers


def _table(plan: Plan, ids: pa.Array, captions: range, positions: Array) -> pa.Table:
    """Rows of ``negatives`` of some captions, whose lists lie at ``positions``."""
    top = plan.rules.top
    numbers, scores = np.empty((positions.size, top), np.int32), np.empty((positions.size, top))
    for block in np.unique(positions // BLOCK):
        rows = np.flatnonzero(positions // BLOCK == block)
        numbers[rows], scores[rows] = merged(
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
    counts: dict[str, int] = parse_json(text)
    return counts
