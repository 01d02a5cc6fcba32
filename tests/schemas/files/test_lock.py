"""Two runs on one output: the second is refused with who is at work, and a kill frees the lock."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from vlmill.schemas.errors import InputError
from vlmill.schemas.files.lock import LOCK, locked

HOLDER = """
import sys
from pathlib import Path
from vlmill.schemas.files.lock import locked
with locked(Path(sys.argv[1])):
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
    with pytest.raises(InputError) as info, locked(tmp_path / "out"):
        pass
    assert f"{tmp_path / 'out'} is being written by process {first.pid} on" in str(info.value)
    first.communicate()
    with locked(tmp_path / "out"):
        pass


def test_a_killed_run_frees_it(tmp_path: Path) -> None:
    first = holder(tmp_path)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert (tmp_path / LOCK).exists()
    with locked(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_other_ranks_of_a_launch_share_the_first_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with locked(tmp_path):
        monkeypatch.setenv("RANK", "1")
        with locked(tmp_path):
            pass
        assert (tmp_path / LOCK).exists()
    monkeypatch.setenv("RANK", "0")
    with locked(tmp_path), pytest.raises(InputError, match="is being written by"), locked(tmp_path):
        pass


def test_many_at_once_one_at_a_time(tmp_path: Path) -> None:
    inside, most, taken = [0], [0], [0]
    count = threading.Lock()

    def work() -> None:
        for _ in range(200):
            try:
                with locked(tmp_path):
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


def test_outputs_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file; give a folder"), locked(tmp_path / "file"):
        pass
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    (tmp_path / "closed").mkdir(mode=0o500)
    with (
        pytest.raises(InputError, match="cannot be written"),
        locked(tmp_path / "closed" / "out"),
    ):
        pass
