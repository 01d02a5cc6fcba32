"""A command ends with its status and one line, whatever has become of its standard streams."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vlmill.runtime.console.command import failure_line

ROOT = Path(__file__).parents[3]
COMMAND = """
import os, resource, sys
from vlmill.runtime.console.command import print_status, run_command
from vlmill.schemas.errors import InputError

def command(argv):
    with open(argv[0], "w", encoding="utf-8") as file:  # given the lowest free descriptor
        for _ in range(1_000):
            print_status("status \\u4e2d " * 100)
        os.write(2, b"a line of a library")
        file.write("whole")
    print("result \\u4e2d \\udcff")
    if argv[1:] == ["memory"]:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31))
        bytearray(1 << 33)
    if argv[1:] == ["mistake"]:
        raise InputError("--weights \\u4e2d: no such file")
    return 0

sys.exit(run_command(command))
"""


def run(
    tmp_path: Path, redirection: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "command.py"
    script.write_text(COMMAND, encoding="utf-8")
    line = f'"$0" "$@" {redirection}'
    command = ["sh", "-c", line, sys.executable, str(script), str(tmp_path / "file"), *arguments]
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **environment}
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)


@pytest.mark.parametrize(
    ("redirection", "status"),
    [
        (">&-", 0),
        ("2>&-", 0),
        (">&- 2>&-", 0),
        ("<&- >&- 2>&-", 0),
        ("2>/dev/full", 0),
        (">/dev/full", 1),
        (">/dev/full 2>/dev/full", 1),
    ],
)
def test_streams_may_be_closed_or_full(redirection: str, status: int, tmp_path: Path) -> None:
    done = run(tmp_path, redirection)
    assert done.returncode == status
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    assert (tmp_path / "file").read_text() == "whole"
    if status and "2>" not in redirection:
        assert done.stderr.splitlines()[-1].endswith("failed: No space left on device")


def test_a_reader_of_status_that_goes_does_not_end_the_job(tmp_path: Path) -> None:
    done = run(tmp_path, "2>&1 >/dev/null | true; cat")
    assert "Traceback" not in done.stdout + done.stderr
    assert (tmp_path / "file").read_text() == "whole"


@pytest.mark.parametrize(
    "locale",
    [
        {"PYTHONIOENCODING": "latin-1"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"LC_ALL": "C.UTF-8"},
    ],
)
def test_a_locale_without_the_characters_prints_escapes(
    locale: dict[str, str], tmp_path: Path
) -> None:
    done = run(tmp_path, "", "mistake", **locale)
    assert done.returncode == 2
    shown = "\u4e2d" if locale == {"LC_ALL": "C.UTF-8"} else "\\u4e2d"
    assert done.stdout == f"result {shown} \\udcff\n"
    assert done.stderr.splitlines()[-1].endswith(f"error: --weights {shown}: no such file")


def test_memory_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = run(tmp_path, "", "memory")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.endswith("not enough memory; the shell allows 2.1 GB (ulimit -v): raise it")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 8 bytes"),
            "not enough memory ([enforce fail] DefaultCPUAllocator: can't allocate",
        ),
        (RuntimeError("can't start new thread"), "not enough memory (can't start new thread)"),
        (
            ImportError("libx.so: failed to map segment from shared object"),
            "not enough memory (libx.so",
        ),
        (OSError(12, "Cannot allocate memory"), "not enough memory ("),
        (OSError(28, "No space left on device", "out/x"), "out/x: No space left on device"),
        (OSError("the list\nhas gone"), "the list has gone"),
        (
            RuntimeError("DataLoader worker (pid 77) is killed by signal: Killed. "),
            "a worker process of the loader was killed (signal: Killed), as the system does",
        ),
        (
            RuntimeError("DataLoader worker (pid(s) 77, 78) exited unexpectedly"),
            "a worker process of the loader was killed, as the system does",
        ),
        (
            UnicodeEncodeError("latin-1", "a\u4e2d", 1, 2, "ordinal"),
            "'\u4e2d' cannot be written in the encoding latin-1",
        ),
    ],
)
def test_failures_that_are_no_bugs_are_one_line(error: Exception, expected: str) -> None:
    line = failure_line(error)
    assert line is not None and line.startswith(expected) and "\n" not in line


def test_bugs_keep_their_traceback() -> None:
    for bug in (RuntimeError("shapes differ"), ImportError("cannot import name x"), KeyError("x")):
        assert failure_line(bug) is None
