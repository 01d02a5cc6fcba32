"""Writes parts of the user's examples on a runner; one worker reads FILE once for all parts."""

from functools import partial
from typing import Any

from vlmill.pipelines.manifest.own.job import (
    Judged,
    JudgedRow,
    Ledger,
    OwnJob,
    changed_error,
    collect_shards,
    judge_rows,
    open_run,
    read_candidates,
)
from vlmill.pipelines.manifest.spooled import part_unit, read_frames, spool_path, write_parts
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.atomic import remove_leftovers
from vlmill.runtime.files.shards import Shard
from vlmill.runtime.units.funnel import Drop
from vlmill.runtime.units.numbers import Numbers
from vlmill.runtime.units.step import Step, single_unit
from vlmill.runtime.units.unit import Result, Unit
from vlmill.schemas.rejects import Reason


def judge_file(job: OwnJob, unit: Unit) -> Result:
    """Writes the results of the rows of each part. Raises OSError if the file has changed."""
    judged = judge_rows(job, read_candidates(job), Ledger())
    if write_parts(job.output, judged, job.rows_per_shard, pack_row) != job.num_parts:
        raise changed_error(job)
    return Result()


def part_units(job: OwnJob) -> list[Unit]:
    """Returns a unit for each part."""
    return [part_unit(index) for index in range(job.num_parts)]


def make_part(job: OwnJob, unit: Unit) -> Result:
    """Writes a part's shards."""
    judged = map(unpack_row, read_frames(spool_path(job.output, "rows", unit.number)))
    label = f"part {unit.number}"
    with (
        open_run(job) as run,
        Progress(total=None, unit="row", label=label, visible=False) as progress,
    ):
        result = run.make_part(unit.number, judged, progress)
    result.numbers = Numbers(parts=1)
    return result


def pack_row(judged: Judged) -> Any:
    """Returns a row as plain values."""
    number, row = judged
    if isinstance(row, Drop):
        return number, row.reason.value, row.detail
    return number, row.row, [row.image_ids, row.first, row.images]


def unpack_row(values: Any) -> Judged:
    """Returns the row that was packed."""
    number, first, second = values
    if isinstance(first, str):
        return number, Drop(Reason(first), second)
    image_ids, new, images = second
    row = JudgedRow(row=first, image_ids=tuple(image_ids), first=tuple(new), images=images)
    return number, row


STEPS = (
    Step(name="read", units=partial(single_unit, "read"), work=judge_file),
    Step(name="make", units=part_units, work=make_part),
)


def collect_parts(job: OwnJob) -> list[Shard]:
    """Returns all shards, once the steps are done."""
    remove_leftovers(job.output)  # files of workers that were killed during the run
    return collect_shards(job)
