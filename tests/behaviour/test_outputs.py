"""Of two runs on one output the second is refused; who cannot write there is told at once."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.factories import NO_MODELS, Tables, write_images
from tests.nightly import stand_for

from vlmill.extract.cli import command
from vlmill.pipelines.hard_negatives.__main__ import main as hard_negatives
from vlmill.pipelines.manifest.__main__ import main as manifest
from vlmill.pipelines.nearest_images.__main__ import main as nearest_images
from vlmill.pipelines.regions.__main__ import main as regions_job
from vlmill.pipelines.tables.__main__ import main as tables
from vlmill.pipelines.web_pairs.__main__ import main as web_pairs
from vlmill.runtime.console.command import run_command
from vlmill.runtime.files.lock import LOCK
from vlmill.train.cli import main as train_vl

ROOT = Path(__file__).parents[2]
TINY = ["--arch", "tiny", "--short-side", "48", "--long-side", "64"]
MODEL = ["model.width=16", "model.num_layers=2", "model.num_heads=2", "model.intermediate_width=32"]
RUN = ["steps=2", "batch_size=4", "vocabulary_size=90"]
LATEST_S = 120


def command_of(name: str, folder: Path) -> list[str]:
    """A command over tiny inputs in ``folder``, without its ``--output``."""
    tables = Tables(folder)
    given = ["--pairs", tables.pairs, "--regions", tables.regions]
    commands = {
        "extract": ["vlmill.extract.cli", "run", str(folder / "images"), *TINY],
        "pretrain": ["vlmill.train.cli", "pretrain", "imagebert-small", *given, *MODEL, *RUN],
        "hard_negatives": ["vlmill.pipelines.hard_negatives", "--pairs", tables.pairs],
        "export": ["vlmill.extract.cli", "export", tables.regions, "--format", "npz"],
    }
    return [sys.executable, "-m", *commands[name]]


def start(command: list[str], output: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*command, "--output", str(output)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        start_new_session=True,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def extract_rois(words: list[str]) -> int:
    return run_command(command, words)


@contextlib.contextmanager
def stopped_at_work(command: list[str], output: Path) -> Iterator["subprocess.Popen[str]"]:
    """A run that has its lock and is stopped for as long as the block lasts."""
    process = start(command, output)
    try:
        deadline = time.monotonic() + LATEST_S
        while not any(p.stat().st_size for p in output.parent.rglob(f"{LOCK}*")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.001)
        os.killpg(process.pid, signal.SIGSTOP)
        yield process
        os.killpg(process.pid, signal.SIGCONT)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    finally:
        process.communicate()


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "hard_negatives": hard_negatives,
    "pretrain": train_vl,
    "extract": extract_rois,
    "export": extract_rois,
}


@pytest.mark.parametrize("name", stand_for(COMMANDS, "hard_negatives"))
def test_the_second_is_refused_and_the_first_ends(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs, output = tmp_path / "inputs", tmp_path / "outputs" / "out"
    Tables(inputs).write()
    write_images(inputs / "images", 3)
    output.parent.mkdir()
    command = command_of(name, inputs)
    with stopped_at_work(command, output) as first:
        assert COMMANDS[name]([*command[3:], "--output", str(output)]) == 2
        said = capsys.readouterr().err
        assert f"--output {output} is being written by process {first.pid} on " in said
        assert "Traceback" not in said
    assert first.returncode == 0
    assert output.exists()
    assert not list(output.parent.rglob(f"{LOCK}*"))


def test_a_dry_run_needs_no_lock(tmp_path: Path) -> None:
    inputs, output = tmp_path / "inputs", tmp_path / "outputs" / "out"
    Tables(inputs).write()
    output.parent.mkdir()
    command = command_of("hard_negatives", inputs)
    with stopped_at_work(command, output):
        dry = start([*command, "--dry-run"], output)
        told, said = dry.communicate(timeout=LATEST_S)
        assert dry.returncode == 0, said
        assert "output" in told + said
    assert not list(output.parent.rglob(f"{LOCK}*"))


def test_a_killed_runs_lock_is_free(tmp_path: Path) -> None:
    inputs, output = tmp_path / "inputs", tmp_path / "outputs" / "out"
    Tables(inputs).write()
    output.parent.mkdir()
    command = command_of("hard_negatives", inputs)
    with stopped_at_work(command, output) as first:
        os.killpg(first.pid, signal.SIGKILL)
    assert (output / LOCK).exists()
    second = start(command, output)
    _, said = second.communicate(timeout=LATEST_S)
    assert second.returncode == 0, said
    assert not (output / LOCK).exists()


WRITERS: dict[str, tuple[Callable[[list[str]], int], list[str]]] = {
    "web_pairs": (web_pairs, ["--warc", "none", *NO_MODELS]),
    "hard_negatives": (hard_negatives, ["--pairs", "none"]),
    "manifest": (
        manifest,
        ["own", "--input", "x.csv", "--text-column", "t", "--image-column", "i"],
    ),
    "manifest of a published set": (manifest, ["vg", "--input", "none"]),
    "nearest_images": (nearest_images, ["--regions", "none"]),
    "tables": (tables, ["concat", "none"]),
    "regions": (regions_job, ["--images", "none"]),
    "run": (extract_rois, ["run", "none"]),
    "import": (extract_rois, ["import", "none"]),
    "export": (extract_rois, ["export", "none", "--format", "tsv"]),
    "show": (extract_rois, ["show", "none", "--images", "none"]),
    "pretrain": (train_vl, ["pretrain", "imagebert-small", "--pairs", "none"]),
    "evaluate": (train_vl, ["evaluate", "retrieval", "--checkpoint", "none", "--pairs", "none"]),
    "convert": (train_vl, ["convert", "--family", "bert", "--checkpoint", "none"]),
}


@pytest.mark.parametrize("name", WRITERS)
def test_an_output_that_cannot_be_written_is_refused_first(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("")
    output = tmp_path / "notes.txt" / "out"
    run, words = WRITERS[name]
    assert run([*words, "--output", str(output)]) == 2
    said = f"--output {output} cannot be written, as {output.parent} is a file; give another"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", WRITERS)
def test_a_command_that_is_refused_leaves_no_folder(name: str, tmp_path: Path) -> None:
    run, words = WRITERS[name]
    assert run([*words, "--output", str(tmp_path / "a" / "out")]) == 2
    assert not list(tmp_path.iterdir())
