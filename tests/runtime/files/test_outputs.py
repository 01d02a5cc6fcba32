"""Output folders, atomic files, and the shell around commands."""

import errno
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmill.runtime.console.command import Parser, run_command
from vlmill.runtime.files.atomic import (
    atomic_folder,
    atomic_path,
    remove_leftovers,
    write_json,
    write_text,
)
from vlmill.runtime.files.manifest import write_manifest
from vlmill.runtime.files.outputs import PLAN, State, prepare_output
from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import PAIRS


def test_states_of_an_output_folder(tmp_path: Path) -> None:
    out, settings = tmp_path / "a" / "b", {"top": 30}
    assert prepare_output(out, job="j", settings=settings) is State.NEW
    assert prepare_output(out, job="j", settings=settings) is State.PARTIAL
    write_manifest(out, [write_shard(out, PAIRS, [])], job="j", settings=settings)
    assert prepare_output(out, job="j", settings=settings) is State.FINISHED
    for name in ("vqa_val_result.json", "vcr_val.csv", "nlvr2_dev.csv", "RTE.tsv"):
        (out / name).write_text("")
    assert prepare_output(out, job="j", settings=settings, fresh=True) is State.NEW
    assert [p.name for p in out.iterdir()] == [PLAN]


@pytest.mark.parametrize(
    ("content", "problem"), [(None, "is missing"), (b"", "has 0 bytes, and _manifest.json lists")]
)
def test_a_finished_folder_without_one_of_its_shards_is_refused(
    content: bytes | None, problem: str, tmp_path: Path
) -> None:
    prepare_output(tmp_path, job="j", settings={})
    shard = write_shard(tmp_path, PAIRS, [])
    write_manifest(tmp_path, [shard], job="j", settings={})
    path = tmp_path / shard.name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(InputError, match=f"{shard.name} {problem}.*--fresh"):
        prepare_output(tmp_path, job="j", settings={})
    assert prepare_output(tmp_path, job="j", settings={}, fresh=True) is State.NEW


def test_another_runs_folder_is_refused(tmp_path: Path) -> None:
    prepare_output(tmp_path / "out", job="j", settings={"top": 30, "below": 0.5})
    write_shard(tmp_path / "out", PAIRS, [])
    with pytest.raises(InputError, match=r"top was 30 and is 10.*--fresh"):
        prepare_output(tmp_path / "out", job="j", settings={"top": 10, "below": 0.5})
    with pytest.raises(InputError, match="holds the output of j"):
        prepare_output(tmp_path / "out", job="k", settings={})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    for fresh in (False, True):
        with pytest.raises(InputError, match=r"thesis\.tex and was not made by this job"):
            prepare_output(tmp_path / "mine", job="j", settings={}, fresh=fresh)
    with pytest.raises(InputError, match="is a file"):
        prepare_output(tmp_path / "mine" / "thesis.tex", job="j", settings={})


def test_a_plan_alone_gives_way_to_a_corrected_command(tmp_path: Path) -> None:
    """What was refused before it had made anything is in nobody's way."""
    out = tmp_path / "out"
    prepare_output(out, job="j", settings={"top": 30})
    assert prepare_output(out, job="j", settings={"top": 10}) is State.NEW
    assert json.loads((out / PLAN).read_text())["settings"] == {"top": 10}
    with pytest.raises(InputError, match="top was 10 and is 5"):  # another process has begun
        prepare_output(out, job="j", settings={"top": 5}, shared=True)


@pytest.mark.parametrize("kind", ["atomic_path", "atomic_folder"])
def test_leftovers_of_a_killed_writer_are_removed(kind: str, tmp_path: Path) -> None:
    script = (
        f"import os, sys; from vlmill.runtime.files.atomic import {kind}\n"
        f"with {kind}(sys.argv[1]) as path:\n"
        "    (path / 'a' if path.is_dir() else path).write_text('half')\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path / "x.json")])
    assert killed.returncode == -9
    assert len(list(tmp_path.iterdir())) == 1
    assert not (tmp_path / "x.json").exists()
    assert len(remove_leftovers(tmp_path)) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_old_file_survives_a_failed_rewrite(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "old")
    with pytest.raises(RuntimeError), atomic_path(tmp_path / "a.txt") as path:
        path.write_text("new")
        raise RuntimeError
    assert (tmp_path / "a.txt").read_text() == "old"


def test_nan_is_no_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "a.json", {"loss": float("nan")})


@given(st.text(st.characters(exclude_categories=[])))
def test_any_text_can_be_written(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "text.txt"
    write_text(path, text)
    clean = not any("\ud800" <= c <= "\udfff" for c in text)
    assert (path.read_bytes().decode("utf-8") == text) == clean


def _raising(error: BaseException) -> int:
    def command(argv: Sequence[str]) -> int:
        raise error

    return run_command(command, [])


def test_exit_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(lambda argv: len(argv), ["x"]) == 1
    assert _raising(InputError("--pairs nowhere: no such folder; give one")) == 2
    assert _raising(OSError(errno.ENOSPC, "No space left on device", "out/x")) == 1
    assert _raising(KeyboardInterrupt()) == 130
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "error: --pairs nowhere: no such folder; give one"
    assert "No space left on device" in lines[1]
    with pytest.raises(ZeroDivisionError):  # a bug keeps its traceback
        _raising(ZeroDivisionError())


PRINTING = """
import sys
from vlmill.runtime.console.command import run_command
def command(argv):
    print("line " * int(argv[0]))
    if argv[1:]:
        raise BrokenPipeError("a worker has gone")
    return 0
sys.exit(run_command(command))
"""


@pytest.mark.parametrize("count", ["1", "100000"])
def test_a_reader_that_goes_is_no_failure(count: str) -> None:
    started = subprocess.Popen(
        [sys.executable, "-c", PRINTING, count], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert started.stdout is not None
    started.stdout.close()
    started.stdout = None
    _, said = started.communicate()
    assert (started.returncode, said) == (141, b"")


def test_a_pipe_that_breaks_elsewhere_is_one() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRINTING, "1", "raise"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (1, "failed: a worker has gone\n")


def test_wrong_arguments_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser(prog="job")
    parser.add_argument("--top", type=int)
    with pytest.raises(SystemExit) as stop:
        parser.parse_args(["--top", "many"])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "--top" in error and "many" in error


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    out = tmp_path / "a" / "out"
    with pytest.raises(RuntimeError), atomic_folder(out) as folder:
        (folder / "x").write_text("half")
        raise RuntimeError
    assert list((tmp_path / "a").iterdir()) == []
    for text in ("old", "new"):
        with atomic_folder(out, replace=True) as folder:
            (folder / "x").write_text(text)
    assert (out / "x").read_text() == "new"
    with pytest.raises(OSError, match="not empty"), atomic_folder(out) as folder:
        (folder / "y").write_text("other")
    assert [p.name for p in out.iterdir()] == ["x"]
    assert [p.name for p in out.parent.iterdir()] == ["out"]
