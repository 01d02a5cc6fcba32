"""Sorts a large shard with many workers, a range of its keys each.

Each worker writes sorted rows; the writer of the shard reads the ranges in turn without sorting.
"""

from collections import Counter
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


def list_spools(job: Job, kind: str, shard: int) -> list[Path]:
    """Returns the spools that have rows of one type for a shard."""
    return job.spools(kind, range(shard, shard + 1))


def shard_units(job: Job) -> list[Unit]:
    """Returns one unit for each shard of the tables; its ``slices`` number its parts."""
    sizes = Counter[int]()
    for kind in KINDS:
        for path in job.spools(kind, range(job.shards)):
            for shard, blocks in read_blocks(path).items():
                sizes[shard] += sum(block.unpacked for block in blocks)
    return [
        Unit(name=f"shard-{n:05d}", number=n, slices=range(max(1, sizes[n] // PART_BYTES)))
        for n in range(job.shards)
    ]


def order_units(job: Job) -> list[Unit]:
    """Returns the units of this step: the parts of each shard of several.

    A unit's ``slices`` begin with its part and end with the number of parts.
    """
    return [
        Unit(
            name=f"order-{shard.number:05d}-{part:05d}",
            number=shard.number,
            slices=range(part, len(shard.slices)),
        )
        for shard in shard_units(job)
        for part in shard.slices
        if len(shard.slices) > 1
    ]


def order(job: Job, unit: Unit) -> Result:
    """Writes a part of a shard's rows sorted."""
    shard, part = unit.number, unit.slices.start
    for kind in KINDS:
        paths = list_spools(job, kind, shard)
        between = cut_keys(paths, shard, unit.slices.stop)[part]
        with spool(_ordered(job, shard, part, kind)) as writer:
            writer.add_sorted(0, sorted_rows(paths, shard, between=between))
    return Result()


def ordered_rows(job: Job, kind: str, unit: Unit) -> Iterator[Row]:
    """Yields the rows of a shard in order."""
    if len(unit.slices) == 1:
        return sorted_rows(list_spools(job, kind, unit.number), unit.number)
    return unsorted_rows([_ordered(job, unit.number, part, kind) for part in unit.slices], 0)


def _ordered(job: Job, shard: int, part: int, kind: str) -> Path:
    return job.joins / f"order-{shard:05d}-{part:05d}.ordered-{kind}.spool"
