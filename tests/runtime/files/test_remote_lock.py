"""The lock of an output in a store: one run at a time, and a killed one's is taken over."""

import json
import subprocess
import sys

import pytest
from tests.object_stores import environment, names_below

from vlmill.runtime.files.atomic import write_text
from vlmill.runtime.files.lock import LOCK, lock_output
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.remote_lock import _held, require_held
from vlmill.schemas.errors import InputError, StoreFailed


def test_a_second_run_is_refused_and_told_who_is_at_work(bucket: str) -> None:
    output = f"{bucket}/run"
    with lock_output(output):
        holder = json.loads((to_path(output) / LOCK).read_text())
        assert {"pid", "host", "since", "renewed", "command"} <= holder.keys()
        with (
            pytest.raises(InputError, match=rf"--output {output} is being written by process \d+"),
            lock_output(output),
        ):
            pass
        with lock_output(f"{bucket}/other"):
            pass
    assert names_below(bucket) == []
    with lock_output(output):
        pass


def test_the_lock_beside_an_output_has_its_name(bucket: str) -> None:
    with lock_output(f"{bucket}/a/whole", alongside=True, flag="--to"):
        assert names_below(bucket) == [f"a/{LOCK}-whole"]
    with pytest.raises(InputError, match="is a bucket; give a folder in it"):
        lock_output(bucket, alongside=True).__enter__()


def test_the_lock_of_a_killed_run_is_taken_over(
    bucket: str, s3: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    output = f"{bucket}/run"
    code = (
        "import os, sys; from vlmill.runtime.files.lock import lock_output\n"
        "with lock_output(sys.argv[1]): os._exit(9)"
    )
    command = [sys.executable, "-c", code, output]
    assert subprocess.run(command, env=environment(s3), check=False).returncode == 9
    with pytest.raises(InputError, match="its lock was renewed"), lock_output(output):
        pass
    with lock_output(output, seconds=0):
        assert "took over the lock of process" in capfd.readouterr().err
    assert names_below(bucket) == []


def test_who_has_lost_the_lock_writes_no_more(
    bucket: str, capfd: pytest.CaptureFixture[str]
) -> None:
    output = f"{bucket}/run"
    with lock_output(output, seconds=1e6):
        first = _held.pop(output)  # as in another process
        with lock_output(output, seconds=0):
            _held[output], second = first, _held[output]
            first._renew()
            with pytest.raises(StoreFailed, match="has taken over this output; this run writes no"):
                write_text(to_path(output) / "x", "x")
            require_held(f"{bucket}/running/x")
            _held[output] = second
            write_text(to_path(output) / "y", "y")
        _held[output] = first
    assert names_below(bucket) == ["run/y"]
    assert "has taken over" in capfd.readouterr().err


def test_a_process_that_was_stopped_for_long_asks_before_it_writes(bucket: str) -> None:
    output = f"{bucket}/run"
    with lock_output(output, seconds=1e6):
        lock, version = _held[output], _held[output].version
        lock.renewed -= 6e5
        write_text(to_path(output) / "x", "x")
        assert lock.version != version


def test_a_lock_is_renewed(bucket: str) -> None:
    output = f"{bucket}/run"
    with lock_output(output, seconds=1e6):
        before = (to_path(output) / LOCK).read_text()
        _held[output]._renew()
        after = (to_path(output) / LOCK).read_text()
    assert before != after
    assert json.loads(before)["id"] == json.loads(after)["id"]
