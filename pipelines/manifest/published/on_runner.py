"""Writes parts of a published data set on a runner, with the same bytes as on one machine.

One worker reads the entries once, and records which images each entry is the first to name. If rows
depend on images (``--require-images``, lists of images), all images are judged before any row is
written.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from vlmill.pipelines.manifest import spooled
from vlmill.pipelines.manifest.entries import Entry, ListedImage
from vlmill.pipelines.manifest.part import Part
from vlmill.pipelines.manifest.published.parts import (
    FirstImages,
    Job,
    Run,
    Tally,
    open_run,
    refuse_stale,
)
from vlmill.runtime.files.atomic import remove_leftovers
from vlmill.runtime.files.shards import Shard
from vlmill.runtime.units.funnel import Drop
from vlmill.runtime.units.numbers import Numbers
from vlmill.runtime.units.step import Step, single_unit
from vlmill.runtime.units.unit import Result, Unit, read_result, work_folder
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import TABLES

OpenJob = Callable[[argparse.Namespace], Job]


@dataclass(frozen=True)
class PublishedRun:
    """Describes a data set for workers: a module's ``open_job`` opens its files on each worker."""

    open_job: OpenJob
    args: argparse.Namespace
    placeholders: frozenset[str]

    @property
    def output(self) -> Path:
        """Returns ``--output``."""
        output: Path = self.args.output
        return output

    @cached_property
    def job(self) -> Job:
        """Returns the data set, opened once per process."""
        return replace(self.open_job(self.args), placeholders=self.placeholders)

    def __reduce__(self) -> tuple[Any, ...]:
        return PublishedRun, (self.open_job, self.args, self.placeholders)


def read_entries(run: PublishedRun, unit: Unit) -> Result:
    """Writes each part's entries to disk. Memory: an entry, and some 20 MB for images' names."""
    job, first = run.job, FirstImages()
    parts = spooled.write_parts(
        job.output,
        ((entry, first.select(entry)) for entry in job.reading.entries()),
        job.rows_per_shard,
        pack_entry,
    )
    return Result(metrics={"parts": parts})


def part_units(step: str, run: PublishedRun) -> list[Unit]:
    """Returns a unit for each part."""
    parts = read_result(work_folder(run), Unit(name="read", number=0)).metrics["parts"]
    return [replace(spooled.part_unit(index), name=f"{step}-{index:05d}") for index in range(parts)]


def judge_images(run: PublishedRun, unit: Unit) -> Result:
    """Writes why images that no earlier part names drop the rows that name them."""
    verdicts: list[tuple[int, str, str | None]] = []

    def note(key: int, drop: Drop) -> None:
        verdicts.append((key, drop.reason.value, drop.detail))

    with open_run(fresh_job(run), note) as judge:
        for _, firsts in read_entry_chunks(judge, unit.number):
            judge.read_images([image for images in firsts for image in images])
    spooled.write_frames(spooled.spool_path(run.output, "verdicts", unit.number), verdicts)
    return Result()


def make_part(run: PublishedRun, unit: Unit) -> Result:
    """Writes a part's shards."""
    job = fresh_job(run)
    with open_run(job) as maker:
        if job.judges_images:
            for index in range(unit.number):
                for key, reason, detail in spooled.read_frames(
                    spooled.spool_path(run.output, "verdicts", index)
                ):
                    maker.keep_verdict(key, Drop(Reason(reason), detail))
        with Part(job.output, job.tables, (unit.number, None), job.producer) as part:
            for entries, firsts in read_entry_chunks(maker, unit.number):
                maker.take(entries, firsts, part)
    tally = maker.tally
    metrics = {
        "groups": dict(tally.groups),
        "notes": dict(tally.notes),
        "entries": tally.num_entries,
        "required": tally.num_required,
        "matches": [[*match, count] for match, count in job.overlaps.match_counts.items()],
    }
    return Result(shards=part.shards, metrics=metrics, numbers=Numbers(parts=1))


def fresh_job(run: PublishedRun) -> Job:
    """Returns the data set with zero counts, because a process may make several parts."""
    overlaps = replace(run.job.overlaps, match_counts=Counter(), _counted=set())
    return replace(run.job, overlaps=overlaps)


def read_entry_chunks(
    run: Run, index: int
) -> Iterator[tuple[list[Entry], list[list[ListedImage]]]]:
    """Yields the entries of a part with the images that each is the first to name.

    An image that an earlier entry has named is counted there, if it is on a list.
    """
    for chunk in spooled.read_chunks(run.job.output, index, run.job.chunk_size):
        entries, firsts = [], []
        for values in chunk:
            entry, flags = unpack_entry(values)
            entries.append(entry)
            firsts.append([image for image, f in zip(entry.images, flags, strict=True) if f])
            for image, is_first in zip(entry.images, flags, strict=True):
                if not is_first and not image.alone:
                    run.job.overlaps.skip(image)
        yield entries, firsts


def pack_entry(entry_and_first: tuple[Entry, Sequence[ListedImage]]) -> Any:
    """Returns an entry as plain values."""
    entry, first = entry_and_first
    rows: Any
    if isinstance(entry.rows, Drop):
        rows = [entry.rows.reason.value, entry.rows.detail]
    else:
        rows = [[table.name, row] for table, row in entry.rows]
    new = {id(image) for image in first}
    images = [(*i.pack(), i.content, i.alone, id(i) in new) for i in entry.images]
    return entry.key, entry.group, isinstance(entry.rows, Drop), rows, images, entry.notes


def unpack_entry(values: Any) -> tuple[Entry, list[bool]]:
    """Returns the packed entry, and whether it is the first to name each of its images."""
    key, group, is_drop, rows, packed, notes = values
    images, flags = [], []
    for *fields, content, alone, is_first in packed:
        fields[1], fields[3] = tuple(fields[1]), tuple(fields[3])  # paths, aliases
        image = ListedImage.unpack(tuple(fields))
        image.content, image.alone = content, alone
        images.append(image)
        flags.append(is_first)
    entry = Entry(
        key=key,
        group=group,
        rows=Drop(Reason(rows[0]), rows[1])
        if is_drop
        else tuple((TABLES[name], row) for name, row in rows),
        images=tuple(images),
        notes=tuple(notes),
    )
    return entry, flags


READ = Step(name="read", units=partial(single_unit, "read"), work=read_entries)
JUDGE = Step(name="judge", units=partial(part_units, "judge"), work=judge_images)
MAKE = Step(name="make", units=partial(part_units, "part"), work=make_part)


def list_steps(job: Job) -> list[Step[PublishedRun]]:
    """Returns the steps that make the parts of a job."""
    return [READ, *([JUDGE] if job.judges_images else []), MAKE]


def collect_parts(run: PublishedRun, job: Job) -> tuple[list[Shard], Tally]:
    """Returns all shards and the counts, after the steps have finished."""
    shards, tally, parts = list[Shard](), Tally(), 0
    for result in MAKE.results(run):
        shards += result.shards
        metrics = result.metrics
        tally.groups.update(metrics["groups"])
        tally.notes.update(metrics["notes"])
        tally.num_entries += metrics["entries"]
        tally.num_required += metrics["required"]
        for name, kind, count in metrics["matches"]:
            job.overlaps.match_counts[name, kind] += count
        parts += 1
    refuse_stale(job, parts)
    remove_leftovers(job.output)  # files of workers that were killed during the run
    return shards, tally
