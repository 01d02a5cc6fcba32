"""Units are done by processes that are free; errors come as they were, and nothing is left."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from vlmill.runtime.files.atomic import atomic_path
from vlmill.runtime.units import flags
from vlmill.runtime.units.flags import local_workers
from vlmill.runtime.units.pool import Workers, open_workers
from vlmill.schemas.errors import InputError

MODULE = "vlmill.runtime.units.pool"
VARIABLE = "VLMILL_TEST_OF_WORKERS"


def twice(shared: int, unit: int) -> tuple[int, int]:
    return os.getpid(), shared * unit


def fail(shared: type[Exception], unit: int) -> int:
    if unit == 2:
        raise shared(errno.ENOSPC, "No space left on device")
    return unit


class Local(Exception):
    """One that cannot be pickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("told")


def fail_strangely(shared: None, unit: int) -> NoReturn:
    raise Local(1, 2)


def variable(name: str, unit: int) -> str | None:
    return os.environ.get(name)


def die(shared: None, unit: int) -> int:
    if unit == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return unit


def write_slowly(folder: Path, unit: int) -> None:
    if unit == 1:
        while not list(folder.glob(".tmp-*")):  # until the other one is in the middle of its file
            pass
        raise OSError("stopped")
    with atomic_path(folder / "slow") as path:
        path.write_text("half")
        signal.pause()


@pytest.fixture
def pool() -> Iterator[Workers[int]]:
    with open_workers(2, 10, MODULE) as workers:
        yield workers


def test_processes_do_units_and_stay_for_the_next_step(pool: Workers[int]) -> None:
    answers = [list(pool.map_units(twice, range(20))) for _ in range(2)]
    assert [sorted(value for _, value in step) for step in answers] == [list(range(0, 200, 10))] * 2
    processes = [{process for process, _ in step} for step in answers]
    assert os.getpid() not in processes[0] | processes[1]
    assert len(processes[0] | processes[1]) <= 2


def test_processes_have_the_environment_of_who_starts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    # Not that of the first start in this process, when their server was made.
    for value in ("before", "after"):
        monkeypatch.setenv("AWS_ENDPOINT_URL", value)
        with open_workers(2, "AWS_ENDPOINT_URL", MODULE) as pool:
            assert set(pool.map_units(variable, [1, 2])) == {value}


def test_one_unit_or_one_worker_needs_no_process(pool: Workers[int]) -> None:
    assert list(pool.map_units(twice, [3])) == [(os.getpid(), 30)]
    assert list(pool.map_units(twice, [])) == []
    with open_workers(1, 2, MODULE) as one:
        assert list(one.map_units(twice, [1, 2])) == [(os.getpid(), 2), (os.getpid(), 4)]


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("kind", [OSError, InputError, ZeroDivisionError])
def test_errors_come_as_they_were(kind: type[Exception], number: int) -> None:
    with (
        pytest.raises(kind, match="No space left") as caught,
        open_workers(number, kind, MODULE) as workers,
    ):
        list(workers.map_units(fail, range(5)))
    if kind is OSError:
        assert caught.value.errno == errno.ENOSPC  # type: ignore[attr-defined]
    if kind is ZeroDivisionError and number == 2:  # a bug's place is told
        assert "in fail" in "".join(caught.value.__notes__)


def test_an_error_that_cannot_be_sent_is_told() -> None:
    with pytest.raises(RuntimeError, match="Local: told"), open_workers(2, None, MODULE) as workers:
        list(workers.map_units(fail_strangely, range(2)))


def test_a_unit_at_which_every_process_is_killed_ends_the_work() -> None:
    with (
        pytest.raises(ChildProcessError, match=r"status -9; memory\?\) at 2, 3 times; the same"),
        open_workers(2, None, MODULE) as workers,
    ):
        list(workers.map_units(die, range(4)))


def die_once(folder: Path, unit: int) -> int:
    if not (folder / str(unit)).exists():
        (folder / str(unit)).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return unit


def test_a_killed_process_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_workers(2, tmp_path, MODULE) as workers:
        assert sorted(workers.map_units(die_once, range(4))) == [0, 1, 2, 3]
    assert capsys.readouterr().err.count("memory?) at ") == 4


def test_what_others_have_half_written_goes_with_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="stopped"), open_workers(2, tmp_path, MODULE) as workers:
        list(workers.map_units(write_slowly, range(2)))
    assert list(tmp_path.iterdir()) == []


def test_processes_end_with_a_parent_that_is_killed() -> None:
    code = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from tests.runtime.units.test_pool import twice
from vlmill.runtime.units.pool import open_workers
with open_workers(2, 1, {MODULE!r}) as pool:
    print(*{{process for process, _ in pool.map_units(twice, range(50))}}, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    processes = [int(word) for word in killed.stdout.split()]
    assert processes
    until = time.monotonic() + 60
    while any(Path(f"/proc/{process}").exists() for process in processes):
        assert time.monotonic() < until, "they outlive their parent"


def test_the_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flags, "all_cores", lambda: 5)
    assert local_workers(None, []) == 5 and local_workers(3, []) == 3
    assert local_workers(None, ["--runner=FlinkRunner"]) == 5
    with pytest.raises(InputError, match="--workers 2 is for a job without Beam, and --runner"):
        local_workers(2, ["--runner=FlinkRunner"])
    with pytest.raises(InputError, match=r"b\.warc\.gz: expected a flag before it; put quotes"):
        local_workers(2, ["b.warc.gz", "c.warc.gz"])
