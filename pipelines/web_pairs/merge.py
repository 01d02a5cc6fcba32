"""Merges spools, so that a unit of a join opens few of them however many archives there are.

A unit over a range of keys reads its slices of all spools. With 90,000 archives and 256 ranges that
would be 23 million files to open. Instead 64 spools at a time are merged into one, and 64 of these
again; then a range reads 22.
"""

from collections.abc import Sequence

from vlmill.pipelines.web_pairs import units
from vlmill.pipelines.web_pairs.spool import read_slices, spool
from vlmill.runtime.units.unit import Result, Unit


def merge(kinds: Sequence[str], level: int, job: units.Job, unit: Unit) -> Result:
    """Merges a group of spools of each kind, for one range of slices. Memory: a slice of each."""
    part, unpacked = unit.slices.start, dict[str, int]()
    for kind in kinds:
        counts = units.count_merged(job.count_spools(kind))
        if len(counts) < level or unit.number >= counts[level - 1]:
            continue  # another kind has more spools
        group = range(unit.number * units.FAN_IN, (unit.number + 1) * units.FAN_IN)
        if level == 1:
            paths = job.written_spools(kind, group.start, group.stop)
        else:
            below = range(counts[level - 2])[group.start : group.stop]
            paths = [job.merged_spool(kind, level - 1, number, 0) for number in below]
        with spool(job.merged_spool(kind, level, unit.number, part)) as writer:
            slices = units.cut_slices(job.count_slices(kind), level)[part]
            for slice_, rows in read_slices(paths, slices):
                writer.add_sorted(slice_, rows)
        unpacked[kind] = writer.unpacked
    return Result(metrics=unpacked)


def gather_units(job: units.Job) -> list[Unit]:
    """Returns a unit for each range of keys, if there are several."""
    return units.range_units("gather", job) if job.num_ranges > units.GATHERED else []


def gather(job: units.Job, unit: Unit) -> Result:
    """Merges the undecoded pairs of a range of archives; an archive then reads one spool."""
    paths = job.join_spools("settle", "undecoded")
    with spool(job.joins / f"{unit.name}.undecoded.spool") as writer:
        for slice_, rows in read_slices(paths, unit.slices):
            writer.add_sorted(slice_, rows)
    return Result()
