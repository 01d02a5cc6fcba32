"""A unit is done once, unless a file of it is no more what was written."""

import json
import os
from pathlib import Path

import pytest
from tests.runtime.units.jobs import SQUARES, STEPS, Sums, log

from vlmill.runtime.files.atomic import atomic_folder, atomic_path, write_text
from vlmill.runtime.files.listed import hash_file
from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.files.written import record_files
from vlmill.runtime.units.run_here import run_here
from vlmill.runtime.units.unit import Result, Unit, read_record, record_path, run_unit, work_folder
from vlmill.schemas.tables import REJECTS

MODULE = "tests.runtime.units.jobs"


def run(job: Sums, workers: int = 1) -> None:
    run_here(job, STEPS, workers=workers, module=MODULE)


@pytest.fixture
def job(tmp_path: Path) -> Sums:
    return Sums(output=str(tmp_path))


def test_a_record_has_each_file_with_its_size_and_digest(job: Sums) -> None:
    run(job)
    record = json.loads(Path(job.output, "work/units/square-1.json").read_text())
    path = Path(job.output, "work/square-1.txt")
    assert record["files"] == {"work/square-1.txt": {"bytes": 1, "sha256": hash_file(path)}}
    assert [result.metrics["square"] for result in SQUARES.results(job)] == [1, 4, 9, 16, 25]
    assert Path(job.output, "sum.txt").read_text() == "55.0"


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_intact_is_not_done_again(job: Sums, workers: int) -> None:
    run(job, workers)
    before = log(job)
    run(job, workers)
    assert log(job) == before and len(before) == 5


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            "8",
            "has changed since it was written: its SHA-256 differs",
        ),  # a flipped bit: 9 is 0x39, 8 0x38
        ("", "has 0 bytes and was written with 1"),
        (None, "is missing"),
    ],
)
def test_a_damaged_file_is_written_again(
    job: Sums, content: str | None, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(job)
    path = Path(job.output, "work/square-2.txt")
    path.unlink() if content is None else path.write_text(content)
    run(job)
    assert log(job)[5:] == ["square-2"] and path.read_text() == "9"
    assert f"{path} {problem}; square-2 is done again" in capsys.readouterr().err


def test_a_damaged_record_is_no_record(job: Sums) -> None:
    run(job)
    Path(job.output, "work/units/square-0.json").write_text('{"files": ')
    run(job)
    assert log(job)[5:] == ["square-0"]


def test_a_folder_with_atomic_files_is_finished(job: Sums) -> None:
    """The files are recorded under the name that the folder has at last."""

    def work(job: Sums, unit: Unit) -> Result:
        with atomic_folder(Path(job.output, "work", "folder")) as folder:
            write_text(folder / "a", "one")
        return Result()

    unit = Unit(name="folder", number=0)
    assert run_unit(job, work_folder(job), unit, work) is not None
    assert run_unit(job, work_folder(job), unit, work) is None
    assert list(read_record(record_path(work_folder(job), unit))["files"]) == ["work/folder/a"]


def test_files_are_noted_as_they_are_finished(tmp_path: Path) -> None:
    with record_files() as files:
        write_text(tmp_path / "a", "one")
        shard = write_shard(tmp_path, REJECTS, [])
        with atomic_folder(tmp_path / "folder") as folder:
            (folder / "b").write_text("two")
        with pytest.raises(OSError, match="no"), atomic_path(tmp_path / "c") as path:
            path.write_text("three")
            raise OSError("no")
    write_text(tmp_path / "d", "four")
    names = [os.path.relpath(file.path, tmp_path) for file in files]
    assert names == ["a", shard.name, "folder/b"]
    assert [hash_file(file.path) for file in files] == [file.sha256 for file in files]
    assert (files[1].sha256, files[1].bytes) == (shard.sha256, shard.bytes)
