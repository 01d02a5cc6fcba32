"""Runs of a proof side by side: no two train the same, and one's fault is its own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from proof.side_by_side import outcomes, startable

pytestmark = pytest.mark.nightly

NEEDS = {"a": {"bert"}, "b": {"bert", "noisy"}, "c": {"other"}, "d": set[str]()}
SLEEPERS = """
import sys, time
from pathlib import Path
from proof.side_by_side import outcomes

def sleep(folder):
    Path(folder, "here").touch()
    time.sleep(600)

if __name__ == "__main__":
    list(outcomes(sleep, sys.argv[1:], 2))
"""


@pytest.mark.parametrize(
    ("running", "room", "chosen"),
    [
        ([], 4, ["a", "c", "d"]),  # b waits for what a trains
        ([], 2, ["a", "c"]),
        (["b"], 3, ["c", "d"]),
        (["c"], 3, ["a", "d"]),
        (["a"], 0, []),
    ],
)
def test_what_two_runs_need_is_made_once(running: list[str], room: int, chosen: list[str]) -> None:
    left = [job for job in NEEDS if job not in running]
    assert startable(left, running, room, NEEDS.__getitem__) == chosen


@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_that_fails_gives_its_error_and_the_others_go_on(processes: int) -> None:
    heard: list[int] = []
    results = dict(outcomes(int, ["1", "x", "3"], processes, look=heard.append))
    assert results["1"] == 1 and results["3"] == 3
    assert isinstance(results["x"], ValueError) and "'x'" in str(results["x"])
    assert heard[-1] < 3 and heard == sorted(heard, reverse=True)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_runs_end_with_who_started_them(how: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "sleepers.py"
    script.write_text(SLEEPERS)
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    paths = os.pathsep.join(path for path in sys.path if path)
    parent = subprocess.Popen(
        [sys.executable, str(script), *map(str, folders)],
        env={**os.environ, "PYTHONPATH": paths},
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    while not all((folder / "here").exists() for folder in folders):
        assert parent.poll() is None
        time.sleep(0.05)
    parent.send_signal(how)
    parent.communicate(timeout=60)  # the end of what they all write to: none holds it any more
