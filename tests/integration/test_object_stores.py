"""Jobs from a store to a store give the rows that they give on a disk, also when they are killed.

A job is killed once so many objects lie in its output: in ``make test`` those of ``ONCE``, in
``make test-nightly`` all, which write in a store in three ways; the long tests try every number up
to 20.
"""

import importlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.integration.test_kills import command_of, content, inputs, start
from tests.object_stores import download_folder, names_below, upload_folder

from vlmill.runtime.files.lock import LOCK
from vlmill.runtime.files.manifest import verify_folder
from vlmill.runtime.files.mirror import LISTING
from vlmill.runtime.files.outputs import WORK

pytestmark = pytest.mark.slow
__all__ = ["inputs"]  # the fixture of that module
# How many objects a job has left when it is killed: its lock and its plan come first.
KILLED_AT = {
    "web_pairs": 14,
    "hard_negatives": 8,
    "nearest_images": 4,
    "manifest": 3,
    "regions": 5,
    "extract": 5,
    "pretrain": 9,
}
ONCE = ("extract",)
POLL_S = 0.05
# Where a command's function lies, if not in the `main` of its folder's `__main__`.
FUNCTIONS = {
    "vlmill.extract.cli": ("vlmill.extract.cli", "command"),
    "vlmill.train.cli": ("vlmill.train.cli", "main"),
}


@pytest.fixture(scope="module")
def on_disk(
    inputs: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Path]:
    """The output of each job's run on a disk."""
    folders: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp(name) / "whole"
            assert run(command_of(name, inputs), folders[name]) == 0
        return folders[name]

    return of


def run(command: list[str], output: object, *flags: str) -> int:
    """Runs a job's command in this process; gives its exit status."""
    module, function = FUNCTIONS.get(command[2], (f"{command[2]}.__main__", "main"))
    run_it = getattr(importlib.import_module(module), function)
    status: int = run_it([*command[3:], "--output", str(output), *flags])
    return status


def kill_at(objects: int, command: list[str], output: str) -> None:
    """Kills a job once so many objects lie in its output, unless it has ended before."""
    process = start(command, output)  # type: ignore[arg-type]
    while process.poll() is None and len(names_below(output)) < objects:
        time.sleep(POLL_S)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def rows(folder: Path) -> dict[str, Any]:
    """What a run has left; of tables the rows, as their files name the place of their inputs."""
    return {
        name: pq.read_table(folder / name).to_pylist() if name.endswith(".parquet") else value
        for name, value in content(folder).items()
        # What archives left is named by their paths; the listing is of a store alone.
        if name != LISTING and not name.startswith(f"{WORK}/")
    }


def moments() -> list[Any]:
    more = [(name, number) for name in KILLED_AT for number in range(1, 21)]
    long = (
        pytest.param(*one, marks=pytest.mark.long) for one in more if one[1] != KILLED_AT[one[0]]
    )
    chosen = (
        pytest.param(name, number, marks=() if name in ONCE else pytest.mark.nightly)
        for name, number in KILLED_AT.items()
    )
    return [*chosen, *long]


@pytest.mark.parametrize(("name", "objects"), moments())
def test_a_killed_job_in_a_store_ends_with_the_rows_of_one_on_a_disk(
    name: str,
    objects: int,
    inputs: Path,
    on_disk: Callable[[str], Path],
    bucket: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    whole = on_disk(name)
    upload_folder(inputs, f"{bucket}/in")
    command = [part.replace(str(inputs), f"{bucket}/in") for part in command_of(name, inputs)]
    output = f"{bucket}/out"
    kill_at(objects, command, output)
    is_locked = LOCK in names_below(output)
    capfd.readouterr()
    status = run(command, output, "--lock-seconds", "0")
    said = capfd.readouterr().err
    assert status == 0, said
    assert ("took over the lock of process" in said) == is_locked
    assert rows(download_folder(output, tmp_path / "out")) == rows(whole)
    assert verify_folder(output) == []
    assert not os.listdir(Path(os.environ["VLMILL_CACHE"], "uploads"))
    assert not Path("s3:").exists(), "a URL was taken for a local path"
