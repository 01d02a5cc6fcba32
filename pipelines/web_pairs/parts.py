"""Checks, as the second step, that an archive's parts fit, and follows links across them."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from vlmill.pipelines.web_pairs.links import LinkFollower, follow_log
from vlmill.pipelines.web_pairs.mine import mine_records, read_records
from vlmill.pipelines.web_pairs.sources import Archive, describe
from vlmill.pipelines.web_pairs.spool import forget_footers, spool, unsorted_rows
from vlmill.pipelines.web_pairs.stages import ARCHIVES
from vlmill.pipelines.web_pairs.units import Job, open_counts, part_units
from vlmill.runtime.console.command import print_status
from vlmill.runtime.files.written import record_files
from vlmill.runtime.units.unit import Result, Unit, read_record, record_path, run_unit, write_record


def link_parts(job: Job, unit: Unit) -> Result | None:
    """Compares the parts of an archive, then runs :func:`follow_links`.

    If a part does not begin at the end of the previous part, or is damaged, the whole archive is
    mined again. A resumed run compares the parts again, as one of them may have been repeated.
    """
    archive = job.archives[unit.number]
    units = part_units(archive, unit.number)
    if not fit_together(archive, _read_records(job, units)):
        print_status(f"{archive.path} is damaged, or contains archives; one unit mines all of it")
        mine_whole(job, archive, units)
    return run_unit(job, job.mined, unit, follow_links)


def follow_links(job: Job, unit: Unit) -> Result:
    """Writes the final targets of an archive's redirects and revisits, over all its parts."""
    archive = job.archives[unit.number]
    units = part_units(archive, unit.number)
    with (
        open_counts(job, job.mined_spool(unit.name, "rejects")) as counts,
        spool(job.mined_spool(unit.name, "redirects")) as redirects,
    ):
        logs = [job.mined_spool(part.name, "links") for part in units]
        follow_log(unsorted_rows(logs, 0), LinkFollower(redirects, counts))
        stages = {stage for record in _read_records(job, units) for stage, *_ in record["tallies"]}
        if ARCHIVES.name not in stages:  # mine_whole has counted it
            counts.passed(ARCHIVES)
    return Result(tallies=counts.tallies, about=describe(archive), metrics={"wrong_digests": 0})


def _read_records(job: Job, units: Sequence[Unit]) -> list[dict[str, Any]]:
    return [read_record(record_path(job.mined, unit)) for unit in units]


def fit_together(archive: Archive, records: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether each part begins where the previous one ends, up to the archive's end."""
    position = 0
    for part, record in zip(archive.parts, records, strict=True):
        if record["begin"] is None and position >= part.stop:
            continue  # a record of an earlier part spans it
        if record["begin"] != position:
            return False
        position = int(record["end"])
    return position == archive.size


def mine_whole(job: Job, archive: Archive, units: Sequence[Unit]) -> None:
    """Mines a whole archive as its first part, and leaves the other parts empty."""
    for unit in units:
        with record_files() as files:
            if unit is units[0]:
                result = mine_records(job, unit, partial(read_records, archive, None, job))
                result.about |= {"begin": 0, "end": archive.size}
            else:
                result = mine_records(job, unit, lambda _: ())
                result.about |= {"begin": None, "end": 0}
        write_record(job, job.mined, unit, result, files)
    forget_footers()
