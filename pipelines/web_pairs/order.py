"""Sorts a large shard with many workers, a range of its keys each.

Each worker writes sorted rows; the writer of the shard reads the ranges in turn without sorting.
"""

from collections.abc import Iterator
from pathlib import Path

from vlmill.pipelines.web_pairs.spool import (
    Row,
    cut_keys,
    read_blocks,
    sorted_rows,
    spool,
    unsorted_rows,
)
from vlmill.pipelines.web_pairs.units import Job
from vlmill.runtime.units.unit import Result, Unit

KINDS = ("pairs", "images", "rejects")
PART_BYTES = 16 << 20  # of a shard's rows, which one worker sorts in memory


def list_spools(job: Job, kind: str) -> list[Path]:
    """Returns the spools that hold one type of rows by shards."""
    if kind != "rejects":
        return job.spools(kind)
    # The rejects of the shards' own step are added as the shard is written.
    joins = [path for path in job.spools(kind) if not path.name.startswith("shard-")]
    return [*job.spools("mined-rejects"), *joins]


def count_parts(job: Job, shard: int) -> int:
    """Returns the number of key ranges for a shard's rows, by their bytes."""
    size = sum(
        block.unpacked
        for kind in KINDS
        for path in list_spools(job, kind)
        for block in read_blocks(path).get(shard, ())
    )
    return max(1, size // PART_BYTES)


def order_units(job: Job) -> list[Unit]:
    """Returns the units of this step: the parts of each shard."""
    return [
        Unit(name=f"order-{shard:05d}-{part:05d}", number=shard, slices=range(part, part + 1))
        for shard in range(job.shards)
        for part in range(count_parts(job, shard))
    ]


def order(job: Job, unit: Unit) -> Result:
    """Writes a part of a shard's rows sorted; does nothing for a shard of one part."""
    shard, part = unit.number, unit.slices.start
    parts = count_parts(job, shard)
    if parts > 1:
        for kind in KINDS:
            paths = list_spools(job, kind)
            between = cut_keys(paths, shard, parts)[part]
            with spool(_ordered(job, shard, part, kind)) as writer:
                for key, value in sorted_rows(paths, shard, between=between):
                    writer.add(0, key, value)
    return Result()


def ordered_rows(job: Job, kind: str, shard: int) -> Iterator[Row]:
    """Yields the rows of a shard in order."""
    parts = count_parts(job, shard)
    if parts == 1:
        return sorted_rows(list_spools(job, kind), shard)
    # Each spool was written sorted, so its runs are in order.
    return unsorted_rows([_ordered(job, shard, part, kind) for part in range(parts)], 0)


def _ordered(job: Job, shard: int, part: int, kind: str) -> Path:
    return job.joins / f"order-{shard:05d}-{part:05d}.ordered-{kind}.spool"
