"""Defines a unit of work. It writes files and, last, a record of them; without a valid record it is
repeated.

The record has the size and the SHA-256 of each file at the moment it was finished. A run that
continues compares them, so that a damaged file, or a file of another run, is replaced and not
passed on.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from vlmill.runtime.console.command import print_status
from vlmill.runtime.files.atomic import TEMPORARY_PREFIX, write_json
from vlmill.runtime.files.listed import ListedFile, file_problem
from vlmill.runtime.files.outputs import WORK
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.shards import Shard
from vlmill.runtime.files.written import WrittenFile, record_files
from vlmill.runtime.units.funnel import Tally
from vlmill.runtime.units.numbers import Numbers
from vlmill.schemas.plain_json import read_json


class Job(Protocol):
    """Defines the part of a job that the engine needs: the folder below which its units write."""

    @property
    def output(self) -> str | Path:
        """Returns ``--output``."""


AnyJob = TypeVar("AnyJob", bound=Job)


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Describes one unit of a step: a ``number`` (of an archive, a shard, a block), ``slices`` of
    its keys.

    ``name`` is that of its record, which differs from those of all other units in one folder.
    """

    name: str
    number: int
    slices: range = range(0)


@dataclass(kw_only=True)
class Result:
    """Holds the result of a unit in addition to its files.

    ``tallies`` count inputs, outputs and drops; ``shards`` are the unit's files of the job's
    tables; ``metrics`` are plain values for the end of the job; ``about`` is the unit's own part of
    the record. ``numbers`` are shown while the job runs, and not recorded.
    """

    tallies: Counter[Tally] = field(default_factory=Counter)
    shards: list[Shard] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    numbers: Numbers = field(default_factory=Numbers)


def work_folder(job: Job) -> Path:
    """Returns the folder of a job's records, unless a step names another."""
    return to_path(job.output) / WORK / "units"


def record_path(folder: Path, unit: Unit) -> Path:
    """Returns the path of a unit's record in a folder of records."""
    return folder / f"{unit.name}.json"


def run_unit(
    job: AnyJob, folder: Path, unit: Unit, work: Callable[[AnyJob, Unit], Result | None]
) -> Result | None:
    """Does a unit and records it; returns None if that has been done and its files are intact."""
    if is_finished(job, folder, unit):
        return None
    with record_files() as files:
        result = work(job, unit)
    if result is not None:
        write_record(job, folder, unit, result, files)
    return result


def write_record(
    job: Job, folder: Path, unit: Unit, result: Result, files: Iterable[WrittenFile]
) -> None:
    """Records a unit after all of its files are written, except temporary files of this machine."""
    entries = {
        name: {"bytes": file.bytes, "sha256": file.sha256}
        for file in files
        if (name := _relative(job, file.path)) is not None
    }
    for shard in result.shards:
        entries[shard.name] = {"bytes": shard.bytes, "sha256": shard.sha256}
    record = {
        **result.about,
        "files": entries,
        "tallies": sorted([*tally, count] for tally, count in result.tallies.items()),
        "shards": [asdict(shard) for shard in result.shards],
        "metrics": result.metrics,
    }
    write_json(record_path(folder, unit), record)


def read_record(path: Path) -> dict[str, Any]:
    """Returns the record of a unit that is done. Raises FileNotFoundError before."""
    record: dict[str, Any] = read_json(path)
    return record


def read_result(folder: Path, unit: Unit) -> Result:
    """Returns the result that a unit's record holds. Raises FileNotFoundError before it is done."""
    record = read_record(record_path(folder, unit))
    return Result(
        tallies=Counter({(stage, what): count for stage, what, count in record["tallies"]}),
        shards=[Shard(**shard) for shard in record["shards"]],
        metrics=record["metrics"],
    )


def is_finished(job: Job, folder: Path, unit: Unit) -> bool:
    """Returns whether a unit has its record, and every file of it is unchanged.

    Prints the differences; the unit is then done again.
    """
    try:
        files: Mapping[str, Any] = read_record(record_path(folder, unit))["files"]
    except FileNotFoundError:
        return False
    except (ValueError, KeyError, TypeError):
        print_status(f"{record_path(folder, unit)} is damaged; {unit.name} is done again")
        return False
    for name, entry in files.items():
        file = ListedFile(name=name, bytes=entry["bytes"], sha256=entry["sha256"])
        if problem := file_problem(to_path(job.output) / name, file):
            print_status(f"{problem}; {unit.name} is done again")
            return False
    return True


def _relative(job: Job, path: Path) -> str | None:
    """Returns the name of a file below the job's output, or None.

    Also None for a file in a folder with a temporary name, which is listed again after its rename.
    """
    root, name = f"{to_path(job.output)}/", str(path)
    is_below = name.startswith(root) and f"/{TEMPORARY_PREFIX}" not in name
    return name.removeprefix(root) if is_below else None
