"""Tables rewritten row group by row group: a shard of the output for each of the input."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from markupsafe import Markup

from vlmill.pipelines.tables.choice import Choose, Dropped, merge_masks
from vlmill.pipelines.tables.inputs import IDS, TableInput
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.console.report import Section, funnel_table, settings_table, write_page
from vlmill.runtime.files.atomic import write_json
from vlmill.runtime.files.inputs import Input
from vlmill.runtime.files.manifest import write_manifest
from vlmill.runtime.files.paths import readable
from vlmill.runtime.files.reading import read_group
from vlmill.runtime.files.shards import (
    Shard,
    ShardWriter,
    describe_finished,
    shard_name,
    write_shard,
)
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import reject
from vlmill.schemas.tables import REJECTS, Table, with_later

Rewrite = Callable[[Table, pa.Table], pa.Table]
NOT_FOUND = "not_found.json"
MOST_NAMED = 3  # of what was not found; the file has all
MAX_REJECTS = 1_000_000  # rows of rejects that are kept: each names a row that came twice


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is done to each table: ``choose`` by its name says which rows go, ``rewrite`` changes
    those that stay. ``rejected``: what goes becomes rows of rejects. ``absent`` is written as
    ``not_found.json``, so that who asked can be answered.
    """

    name: str
    tables: Mapping[str, TableInput]
    inputs: Sequence[Input]
    output: Path
    settings: Mapping[str, Any]
    choose: Mapping[str, Choose]
    rewrite: Rewrite | None = None
    rejected: bool = False
    absent: Mapping[str, Sequence[str]] | None = None  # asked for by each flag, and nowhere


@dataclass(kw_only=True)
class Tally:
    """What was left out of a table, by reason, and the rejects that say so."""

    progress: Progress
    counts: Counter[str] = field(default_factory=Counter)
    rejects: list[dict[str, object]] = field(default_factory=list)


def run_job(job: Job) -> list[dict[str, Any]]:
    """Writes all tables, then funnel, report and manifest; returns the funnel.

    Shards that an earlier run has finished, or Beam's workers, are read again and not written.
    """
    shards: list[Shard] = []
    rejects: list[dict[str, object]] = []
    funnel = []
    total = sum(entry.num_rows for entry in job.tables.values())
    with Progress(total=total, unit="row", label=job.name) as progress:
        for name, entry in job.tables.items():
            tally, rows = Tally(progress=progress, rejects=rejects), entry.num_rows
            for index in range(len(entry.paths)):
                shard = finished_shard(job, entry, index)
                if shard is not None:
                    count_shard(job, entry, index, tally)
                shards.append(shard or write_table_shard(job, entry, index, tally))
            dropped = tally.counts
            funnel.append(
                {"stage": name, "unit": "rows", "in": rows, "out": rows - dropped.total()}
                | {"rejects": dict(sorted(dropped.items()))}
            )
    shards.append(write_shard(job.output, REJECTS, rejects, producer=_producer(job)))
    write_json(job.output / "funnel.json", funnel)
    if job.absent is not None:
        write_json(job.output / NOT_FOUND, job.absent)
    _write_report(job, funnel)
    write_manifest(job.output, shards, job=job.name, settings=job.settings, inputs=list(job.inputs))
    return funnel


def finished_shard(job: Job, entry: TableInput, index: int) -> Shard | None:
    """The output's shard that belongs to one of the input; None if it is not there or damaged."""
    name = shard_name(entry.table, index, len(entry.paths))
    return next(iter(describe_finished([(entry.table, job.output / name)])), None)


def write_table_shard(job: Job, entry: TableInput, index: int, tally: Tally) -> Shard:
    """Writes the rows of a shard that stay."""
    producer = {**entry.producer, **_producer(job)}
    position = (index, len(entry.paths))
    with ShardWriter(
        job.output, entry.table, *position, producer=producer, arrays=entry.arrays
    ) as writer:
        for rows in _staying(job, entry, index, tally):
            writer.write(job.rewrite(entry.table, rows) if job.rewrite else rows)
    assert writer.shard is not None
    return writer.shard


def count_shard(job: Job, entry: TableInput, index: int, tally: Tally) -> None:
    """Counts what a shard leaves out; of rows that come later it may decide."""
    for _ in _staying(job, entry, index, tally):
        pass


def _staying(job: Job, entry: TableInput, index: int, tally: Tally) -> Iterator[pa.Table]:
    path = entry.paths[index]
    with pq.ParquetFile(readable(path)) as file:
        for rows in _groups(file, path, entry.table):
            yield _count(job, entry.table, rows, path, tally)


def _groups(file: pq.ParquetFile, path: Path, table: Table) -> Any:
    there = [name for name in table.schema.names if name in file.schema_arrow.names]
    for group in range(file.num_row_groups):
        rows = read_group(file, path, group, table, there)
        yield with_later(rows, table, table.schema.names).select(table.schema.names)


def _count(
    job: Job,
    table: Table,
    rows: pa.Table,
    path: Path,
    tally: Tally,
) -> pa.Table:
    """The rows that stay; counts the others, and notes them where they are rejects."""
    dropped = job.choose[table.name](table, rows)
    mask = merge_masks(dropped, rows.num_rows)
    tally.counts.update(
        {
            reason.value: n
            for reason, reason_mask in dropped.items()
            if (n := int(reason_mask.sum()))
        }
    )
    tally.progress.advance(rows.num_rows, rejects=int(mask.sum()))
    if job.rejected and mask.any():
        tally.rejects += _rejects(job, table, rows, dropped, path)
        if len(tally.rejects) > MAX_REJECTS:
            raise InputError(
                f"IN: more than {MAX_REJECTS} rows came earlier, the last in {path}; is the same "
                "table given twice?"
            )
    return rows if not mask.any() else rows.filter(pa.array(~mask))


def _rejects(
    job: Job, table: Table, rows: pa.Table, dropped: Dropped, path: Path
) -> list[dict[str, object]]:
    name = IDS.get(table.name, "image_id")
    rejects = []
    for reason, mask in dropped.items():
        for row in np.flatnonzero(mask).tolist():
            key = f"{table.name}:{rows.column(name)[row].as_py()}"
            rejects.append(reject(job.name.split()[-1], key, reason, f"in {path}"))
    return rejects


def _producer(job: Job) -> dict[str, Any]:
    return {"job": job.name, **job.settings}


def _write_report(job: Job, funnel: Sequence[Mapping[str, Any]]) -> None:
    settings = {key: value for key, value in job.settings.items() if value is not None}
    write_page(
        job.output / "report.html",
        job.name,
        [
            Section(
                title="Tables", body=funnel_table(funnel), intro="in = out + what was left out"
            ),
            *_absent_section(job.absent or {}),
            Section(title="Settings", body=settings_table(settings)),
        ],
    )


def absent_lines(absent: Mapping[str, Sequence[str]]) -> list[str]:
    """What to say of each flag's lines that are nowhere in the tables: how many, the first few."""
    return [
        f"{len(lines)} of --{flag.replace('_', '-')} nowhere in IN: {', '.join(lines[:MOST_NAMED])}"
        + (", ..." if len(lines) > MOST_NAMED else "")
        for flag, lines in absent.items()
        if lines
    ]


def _absent_section(absent: Mapping[str, Sequence[str]]) -> list[Section]:
    lines = absent_lines(absent)
    if not lines:
        return []
    body = Markup("").join(Markup("<p>{}</p>").format(line) for line in lines)
    return [Section(title="Not found", body=body, intro=f"all of them: {NOT_FOUND}")]
