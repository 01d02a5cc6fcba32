"""Rewrites tables row group by row group: one output shard per input shard.

Which rows ``concat`` keeps depends on all rows before them. So each shard first stores the keys of
its rows, 16 bytes per row. The keys are compared in order, once, and then shards are written in any
order. The other subcommands need only the rows.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from markupsafe import Markup

from vlmill.pipelines.tables.choice import Choose, Dropped, compute_keys, merge_masks
from vlmill.pipelines.tables.inputs import IDS, TableInput
from vlmill.runtime.console.report import Section, funnel_table, settings_table, write_page
from vlmill.runtime.files.atomic import atomic_path, remove_leftovers, write_json
from vlmill.runtime.files.inputs import Input
from vlmill.runtime.files.kept_values import NumberStore
from vlmill.runtime.files.manifest import write_manifest
from vlmill.runtime.files.outputs import WORK, remove_work
from vlmill.runtime.files.paths import readable
from vlmill.runtime.files.reading import read_group, read_table
from vlmill.runtime.files.shards import Shard, ShardWriter, write_shard
from vlmill.runtime.readers.trained_on import Keys
from vlmill.runtime.units.funnel import Tally
from vlmill.runtime.units.numbers import Numbers
from vlmill.runtime.units.runner import RunSteps
from vlmill.runtime.units.share import Share, end_job
from vlmill.runtime.units.step import Step, single_unit
from vlmill.runtime.units.unit import Result, Unit
from vlmill.schemas.errors import InputError
from vlmill.schemas.ids import key64
from vlmill.schemas.rejects import Reason, reject
from vlmill.schemas.tables import IMAGES, REJECTS, Table, add_missing_columns

Rewrite = Callable[[Table, pa.Table], pa.Table]
NOT_FOUND = "not_found.json"
MOST_NAMED = 3  # number of missing entries to print; the file has all
MAX_REJECTS = 1_000_000  # rows of rejects: each names a repeated row

Verdicts = npt.NDArray[np.uint8]
NO_VERDICTS: Verdicts = np.empty(0, np.uint8)
REASONS = (None, Reason.DUPLICATE, Reason.ID_CONFLICT)  # for the verdicts 0, 1 and 2


@dataclass(frozen=True, kw_only=True)
class Job:
    """Describes the work on each table.

    ``choose`` has a function per table name that returns the rows to drop; ``rewrite`` changes the
    kept rows. Without ``choose``, repeated rows are dropped and become rejects. ``absent`` is
    written as ``not_found.json``, as a basis for a reply.
    """

    name: str
    tables: Mapping[str, TableInput]
    inputs: Sequence[Input]
    output: Path
    settings: Mapping[str, Any]
    choose: Mapping[str, Choose] | None = None
    rewrite: Rewrite | None = None
    absent: Mapping[str, Sequence[str]] | None = None  # requested by each flag, and in no table

    @cached_property
    def shards(self) -> list[tuple[TableInput, int]]:
        """Returns all input shards in order: their table, and their index in it."""
        return [
            (entry, index) for entry in self.tables.values() for index in range(len(entry.paths))
        ]

    def work(self, kind: str, number: int) -> Path:
        """Returns the file of shard ``number`` that one step writes for the next."""
        return self.output / WORK / f"{kind}-{number:05d}.npy"


def shard_units(step: str, job: Job) -> list[Unit]:
    """Returns a unit for each shard."""
    return [Unit(name=f"{step}-{n:05d}", number=n) for n in range(len(job.shards))]


def mark_rows(job: Job, unit: Unit) -> Result:
    """Writes the keys of a shard's rows: of their ids, and of their contents."""
    entry, index = job.shards[unit.number]
    with pq.ParquetFile(readable(entry.paths[index])) as file:
        marks = row_marks(file, entry.paths[index], entry.table)
    _save(job.work("marks", unit.number), marks)
    return Result(numbers=Numbers(rows=marks.shape[1]))


def find_repeats(job: Job, unit: Unit) -> Result:
    """Writes the verdicts on each shard's rows. Memory: some 20 MB, ids are on the disk.

    Raises InputError for more repeated rows than MAX_REJECTS.
    """
    finder, repeats = RepeatFinder(), 0
    for number, (entry, index) in enumerate(job.shards):
        verdicts = finder.judge(entry.table, _load(job.work("marks", number)))
        _save(job.work("verdicts", number), verdicts)
        repeats += int(np.count_nonzero(verdicts))
        if repeats > MAX_REJECTS:
            raise InputError(
                f"IN: more than {MAX_REJECTS} rows are repeated, the last in {entry.paths[index]}; "
                "is the same table given twice?"
            )
    return Result()


def write_table_shard(job: Job, unit: Unit) -> Result:
    """Writes the kept rows of a shard. Memory: a row group."""
    entry, index = job.shards[unit.number]
    path, tallies, rejects, rows = entry.paths[index], Counter[Tally](), [], 0
    verdicts = NO_VERDICTS if job.choose else _load(job.work("verdicts", unit.number))
    producer = {**entry.producer, **_producer(job)}
    position = (index, len(entry.paths))
    with ShardWriter(
        job.output, entry.table, *position, producer=producer, arrays=entry.arrays
    ) as writer:
        for group in _groups(path, entry.table):
            if job.choose is not None:
                dropped = job.choose[entry.table.name](entry.table, group)
            else:
                dropped = get_verdicts(verdicts, rows, group.num_rows)
                rejects += _rejects(job, entry.table, group, dropped, path)
            for reason, reason_mask in dropped.items():
                tallies[entry.table.name, reason.value] += int(reason_mask.sum())
            rows += group.num_rows
            mask = merge_masks(dropped, group.num_rows)
            staying = group.filter(pa.array(~mask)) if mask.any() else group
            writer.write(job.rewrite(entry.table, staying) if job.rewrite else staying)
    if rejects:
        write_shard(job.output / WORK, REJECTS, rejects, unit.number, len(job.shards))
    return Result(shards=[writer.shard], tallies=+tallies, numbers=Numbers(rows=rows))


WRITE = Step(name="write", units=partial(shard_units, "write"), work=write_table_shard)
REPEATS = (
    Step(name="marks", units=partial(shard_units, "marks"), work=mark_rows),
    Step(name="repeats", units=partial(single_unit, "repeats"), work=find_repeats),
)


def run_job(
    job: Job, run_steps: RunSteps, share: Share | None = None
) -> list[dict[str, Any]] | None:
    """Writes all tables, then funnel, report and manifest; returns the funnel.

    Returns None if another part of the job does so.
    """
    run_steps(job, [WRITE] if job.choose is not None else [*REPEATS, WRITE])
    with end_job(job.output, share) as is_last:
        return _finish(job) if is_last else None


def _finish(job: Job) -> list[dict[str, Any]]:
    tallies, shards = Counter[Tally](), list[Shard]()
    for result in WRITE.results(job):
        tallies.update(result.tallies)
        shards += result.shards
    funnel = []
    for name, entry in job.tables.items():
        num_rows = entry.num_rows
        dropped = {what: count for (table, what), count in tallies.items() if table == name}
        funnel.append(
            {"stage": name, "unit": "rows", "in": num_rows, "out": num_rows - sum(dropped.values())}
            | {"rejects": dict(sorted(dropped.items()))}
        )
    rejects = [read_table(path, REJECTS) for path in _reject_paths(job)]
    rows = pa.concat_tables(rejects).combine_chunks() if rejects else []
    shards.append(write_shard(job.output, REJECTS, rows, producer=_producer(job)))
    write_json(job.output / "funnel.json", funnel)
    if job.absent is not None:
        write_json(job.output / NOT_FOUND, job.absent)
    _write_report(job, funnel)
    remove_leftovers(job.output)  # files of workers that were killed during the run
    write_manifest(job.output, shards, job=job.name, settings=job.settings, inputs=list(job.inputs))
    remove_work(job.output)
    return funnel


def _reject_paths(job: Job) -> list[Path]:
    return sorted((job.output / WORK).glob(f"{REJECTS.name}-*.parquet"))


def _save(path: Path, values: Any) -> None:
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.save(file, values, allow_pickle=False)


def _load(path: Path) -> Any:
    with path.open("rb") as file:
        return np.load(file, allow_pickle=False)


def _groups(path: Path, table: Table) -> Iterator[pa.Table]:
    with pq.ParquetFile(readable(path)) as file:
        there = [name for name in table.schema.names if name in file.schema_arrow.names]
        for group in range(file.num_row_groups):
            rows = read_group(file, path, group, table, there)
            yield add_missing_columns(rows, table, table.schema.names).select(table.schema.names)


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
            Section("Tables", funnel_table(funnel), "in = out + omitted"),
            *_absent_section(job.absent or {}),
            Section("Settings", settings_table(settings)),
        ],
    )


def absent_lines(absent: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns a message per flag about its lines that no table has: number and first ones."""
    return [
        f"{len(lines)} of --{flag.replace('_', '-')} not found in IN: "
        f"{', '.join(lines[:MOST_NAMED])}" + (", ..." if len(lines) > MOST_NAMED else "")
        for flag, lines in absent.items()
        if lines
    ]


def _absent_section(absent: Mapping[str, Sequence[str]]) -> list[Section]:
    lines = absent_lines(absent)
    if not lines:
        return []
    body = Markup("").join(Markup("<p>{}</p>").format(line) for line in lines)
    return [Section("Not found", body, f"all of them: {NOT_FOUND}")]


def row_marks(file: pq.ParquetFile, path: Path, table: Table) -> Keys:
    """Returns the keys of a file's rows, uint64 [2, rows]: of ids, and of contents.

    An image's content is its bytes, from any source. In a table without ids the content is also the
    id.
    """
    groups = [_group_marks(file, path, group, table) for group in range(file.num_row_groups)]
    return np.concatenate([np.empty((2, 0), np.uint64), *groups], axis=1)


def _group_marks(file: pq.ParquetFile, path: Path, group: int, table: Table) -> Keys:
    names = table.schema.names
    if table is IMAGES:
        digests = read_group(file, path, group, table, ["sha256"]).column("sha256")
        names = ["bytes", "uri"] if digests.null_count else ["sha256"]
    key = IDS.get(table.name)
    there = {*names, *([key] if key else [])} & set(file.schema_arrow.names)
    columns = [name for name in table.schema.names if name in there]
    rows = add_missing_columns(read_group(file, path, group, table, columns), table, names)
    texts = [_texts(rows.column(name)) for name in names]
    contents = [key64("\0".join(values)) for values in zip(*texts, strict=True)]
    marks = np.array(contents, np.uint64).reshape(-1)
    return np.stack([marks if key is None else compute_keys(rows.column(key)), marks])


def _texts(column: pa.ChunkedArray) -> list[str]:
    if pa.types.is_large_binary(column.type):
        return [str(zlib.crc32(v.as_buffer())) if v.is_valid else "" for v in column]
    return [repr(value) for value in column.to_pylist()]


class RepeatFinder:
    """Compares rows with earlier ones. Memory: some 20 MB per table, keys are on the disk."""

    def __init__(self) -> None:
        self._stores: dict[str, NumberStore] = {}

    def judge(self, table: Table, marks: Keys) -> Verdicts:
        """Returns 0 for the first row of each id, 1 for its repeats, and 2 for other contents."""
        store = self._stores.setdefault(table.name, NumberStore())
        verdicts = np.zeros(marks.shape[1], np.uint8)
        for row, (key, mark) in enumerate(zip(*marks.tolist(), strict=True)):
            earlier = store.claim(key, mark)
            if earlier is not None:
                verdicts[row] = 1 if earlier == mark else 2
        return verdicts


def get_verdicts(verdicts: Verdicts, start: int, rows: int) -> Dropped:
    """Returns the rows to drop from ``start`` on, by reason."""
    part = verdicts[start : start + rows]
    return {reason: part == number for number, reason in enumerate(REASONS) if reason is not None}
