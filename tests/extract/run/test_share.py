"""Several processes make one output: each its share of the shards, the last the manifest."""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.factories import write_images

from vlmill.extract.cli import command
from vlmill.runtime.files.lock import lock_output
from vlmill.runtime.files.manifest import read_manifest, verify_folder
from vlmill.runtime.units.share import Share, parse_share
from vlmill.schemas.errors import InputError

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "examples" / "slurm" / "extract.sbatch"
TINY = ["--arch", "tiny", "--short-side", "48", "--long-side", "64", "--images-per-shard", "2"]
PARTS = 3
# As extract-rois, which kill -9 meets between the two files of shard 4.
KILLED = """
import os, signal
from vlmill.extract.run import job
write = job.write_shard
def killed(folder, table, rows, index, *more, **named):
    if index == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return write(folder, table, rows, index, *more, **named)
job.write_shard = killed
"""
MAIN = "import sys\nfrom vlmill.extract.cli import main\nsys.exit(main())\n"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 11 images: six shards."""
    folder = tmp_path_factory.mktemp("images")
    write_images(folder, 11)
    return folder


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(images: Path, tmp_path: Path) -> Start:
    """Starts a task of the array job on ``tmp_path / "out"``."""

    def task(number: int, code: str = MAIN) -> "subprocess.Popen[str]":
        folder = tmp_path / f"bin-{number}"
        folder.mkdir(exist_ok=True)
        program = folder / "extract-rois"
        program.write_text(f"#!{sys.executable}\n{code}")
        program.chmod(0o755)
        slurm = {"SLURM_ARRAY_TASK_ID": str(number), "SLURM_ARRAY_TASK_COUNT": str(PARTS)}
        paths = {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}
        return subprocess.Popen(
            ["bash", SCRIPT, str(images), "--output", str(tmp_path / "out"), *TINY],
            env={**os.environ, **slurm, **paths, "SLURM_CPUS_PER_TASK": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return task


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


@pytest.mark.nightly  # the engine's are in runtime/units
def test_parts_of_an_array_job_with_one_killed(start: Start, images: Path, tmp_path: Path) -> None:
    """What comes out is what one process makes, bit for bit."""
    tasks = [start(1), start(2, KILLED + MAIN), start(3)]
    said = [task.communicate()[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0, -signal.SIGKILL, 0], said
    out = tmp_path / "out"
    assert not (out / "_manifest.json").exists()
    assert "are missing" in said[0] + said[2]
    whole = tmp_path / "whole"
    one = subprocess.run(
        [sys.executable, "-c", MAIN, "run", images, "--output", whole, *TINY],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert one.returncode == 0, one.stderr
    again = start(2)
    said = [again.communicate()[0]]
    assert again.returncode == 0 and "11 images, 11 rows of regions" in said[0]
    assert verify_folder(out) == []
    assert read_manifest(out)["shards"] == read_manifest(whole)["shards"]
    assert files(out) == files(whole)  # no lock, and no leftover either


def run(images: Path | str, output: Path, *flags: str) -> int:
    return command(["run", str(images), "--output", str(output), *TINY, *flags])


def test_a_run_of_the_whole_finishes_what_a_part_began(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(images, out, "--part", "9/9") == 0  # there are six shards: it has none
    assert run(images, out, "--part", "1/2") == 0
    assert len(list(out.glob("regions-*"))) == 3
    with pytest.raises(InputError, match="2-of-2"), lock_output(out, part="2-of-2"):
        run(images, out, "--part", "2/2")
    with pytest.raises(InputError, match="is being written by"), lock_output(out, part="2-of-2"):
        run(images, out)
    assert run(images, out) == 0 and verify_folder(out) == []
    assert run(images, out, "--part", "2/2") == 0
    assert "nothing to do" in capsys.readouterr().err


def test_a_damaged_shard_is_named(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(images, out, "--part", "1/2") == 0
    next(out.glob("regions-00002-*")).write_bytes(b"no Parquet")
    with pytest.raises(OSError, match=r"regions-00002-of-00006\.parquet is damaged; run its"):
        run(images, out, "--part", "2/2")
    assert run(images, out, "--part", "1/2") == 0 and verify_folder(out) == []


def test_mistakes(images: Path, tmp_path: Path, shared_images: Path) -> None:
    with pytest.raises(InputError, match="give --ids name"):
        run(shared_images, tmp_path / "out", "--part", "1/2")
    with pytest.raises(InputError, match="--fresh would delete"):
        run(images, tmp_path / "out", "--part", "1/2", "--fresh")
    assert not (tmp_path / "out").exists()
    for text in ("0/2", "3/2", "1", "a/b", "1/0", "-1/2", "1/9999999"):
        with pytest.raises(argparse.ArgumentTypeError, match="give i/n"):
            parse_share(text)


def test_shares_are_every_shard_once() -> None:
    shares = [Share(number=number, count=3).select_shards(8) for number in (1, 2, 3)]
    assert list(map(list, shares)) == [[0, 3, 6], [1, 4, 7], [2, 5]]
