"""Two runs on one output: the second is refused with who is at work, and a kill frees the lock."""

import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from vlmill.runtime.files.lock import LOCK, RANKS, lock_output
from vlmill.schemas.errors import InputError

HOLDER = """
import sys
from pathlib import Path
from vlmill.runtime.files.lock import lock_output
with lock_output(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    """A process that has the lock of ``folder`` until its input ends or it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_the_second_run_is_told_who_holds_it(tmp_path: Path) -> None:
    first = holder(tmp_path / "out")
    with pytest.raises(InputError) as info, lock_output(tmp_path / "out"):
        pass
    assert f"{tmp_path / 'out'} is being written by process {first.pid} on" in str(info.value)
    first.communicate()
    with lock_output(tmp_path / "out"):
        pass


def test_a_killed_run_frees_it(tmp_path: Path) -> None:
    first = holder(tmp_path)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert (tmp_path / LOCK).exists()
    with lock_output(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", RANKS)
def test_other_ranks_of_a_launch_share_the_first_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with lock_output(tmp_path):
        monkeypatch.setenv(name, "1")
        with lock_output(tmp_path):
            pass
        assert (tmp_path / LOCK).exists()
    monkeypatch.setenv(name, "0")
    with (
        lock_output(tmp_path),
        pytest.raises(InputError, match="is being written by"),
        lock_output(tmp_path),
    ):
        pass


def test_many_at_once_one_at_a_time(tmp_path: Path) -> None:
    inside, most, taken = [0], [0], [0]
    count = threading.Lock()

    def work() -> None:
        for _ in range(200):
            try:
                with lock_output(tmp_path):
                    with count:
                        inside[0] += 1
                        most[0] = max(most[0], inside[0])
                        taken[0] += 1
                    with count:
                        inside[0] -= 1
            except InputError:
                continue

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] == 1
    assert taken[0] > 0


@pytest.mark.parametrize("output", ["file", "file/out", "file/a/out"])
@pytest.mark.parametrize("beside", [False, True])
def test_a_file_in_the_way(tmp_path: Path, output: str, beside: bool) -> None:
    (tmp_path / "file").write_text("")
    refused = pytest.raises(InputError, match=f"--output .*{tmp_path / 'file'} is a file; give")
    replaced = beside and output == "file"
    with (
        contextlib.nullcontext() if replaced else refused,
        lock_output(tmp_path / output, alongside=beside),
    ):
        pass
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_place_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number), "the lock")

    monkeypatch.setattr(os, "open", refuse)
    said = rf"--output {tmp_path}/a/b cannot be written \({os.strerror(number)}: the lock\); give"
    with pytest.raises(InputError, match=said), lock_output(tmp_path / "a" / "b"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_place_where_nothing_can_be_made() -> None:
    with (
        pytest.raises(InputError, match="no folder can be made there; give another"),
        lock_output(Path("/proc/self/out")),
    ):
        pass


def test_folders_made_for_the_lock_go_again(tmp_path: Path) -> None:
    def refused() -> None:
        with lock_output(tmp_path / "a" / "b"):
            assert (tmp_path / "a" / "b" / LOCK).exists()
            raise InputError("--pairs: no such table")

    with pytest.raises(InputError, match="--pairs"):
        refused()
    assert not list(tmp_path.iterdir())
    (tmp_path / "mine").mkdir()
    with lock_output(tmp_path / "mine"):
        pass
    with lock_output(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b" / "regions").write_text("")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a", "b", "mine", "regions"]


def test_beside_an_output_that_is_renamed_into_its_place(tmp_path: Path) -> None:
    output = tmp_path / "out.tsv"
    with lock_output(output, alongside=True):
        assert not output.exists()
        with (
            pytest.raises(InputError, match="is being written by"),
            lock_output(output, alongside=True),
        ):
            pass
        with lock_output(tmp_path / "other.tsv", alongside=True):
            pass
    assert not list(tmp_path.iterdir())


def test_the_working_folder_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with (
        lock_output(".", alongside=True),
        pytest.raises(InputError),
        lock_output(tmp_path / "here", alongside=True),
    ):
        pass
    with pytest.raises(InputError, match=r"--output \. is"), lock_output("."), lock_output("."):
        pass


def test_a_command_that_writes_nothing_needs_no_lock() -> None:
    with lock_output(None):
        pass


def test_a_file_system_without_locks_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with (
        pytest.warns(RuntimeWarning, match="do not start a second run"),
        lock_output(tmp_path / "out"),
    ):
        pass
    assert not list(tmp_path.iterdir())
