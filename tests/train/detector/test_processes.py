"""Processes and parts of a step train together as one does with all of its images."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.behaviour.test_machines import free_port
from tests.train.detector.shapes import write_shapes
from tests.train.detector.test_job import TINY, train

from vlmill.extract import cli
from vlmill.extract.detect.checkpoint import read_saved
from vlmill.runtime.console.log import read_log
from vlmill.runtime.processes import process_context

# Every process divides by its own examples, normalises by its own images and draws for itself:
# the same comes out where constants normalise, all anchors and proposals are taken, and there are
# as many of each image.
NOTHING_DRAWN = (
    *("detector.batch_norm=frozen", "detector.num_attributes=0", "solver.lr=0.002"),
    *("rpn.matching.batch=5000", "rpn.matching.positives=1.0", "roi.matching.positives=1.0"),
    *("roi.matching.batch=500", "roi.append_truth=false", "rpn.post_nms_top=4", "steps=2"),
)


def launched(shapes: Path, output: Path, *more: str, processes: int) -> None:
    """Runs the command under torchrun."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}"),
        *("--standalone", "-m", "vlmill.extract.cli", "train", "--boxes", str(shapes)),
        *("--images", str(shapes), "--output", str(output), "--recipe", "small", *more),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def of_two(rank: int, port: int, command: list[str]) -> None:
    """Runs the command as one of two processes, as a launcher starts them."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    raise SystemExit(cli.command(command))


def run_two(command: list[str]) -> None:
    """Runs the command in two processes that share a step."""
    context, port = process_context("vlmill.train.detector.run"), free_port()
    processes = [context.Process(target=of_two, args=(rank, port, command)) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "processes"),
    [
        pytest.param([], 2, marks=pytest.mark.nightly, id="whole"),
        pytest.param(["shard=true", "accumulation=2"], 2, id="divided, in parts"),
        pytest.param(["accumulation=2"], 1, id="in parts"),
    ],
)
def test_parts_and_processes_are_one_step_with_all_images(
    fields: list[str], processes: int, tmp_path: Path
) -> None:
    shapes, start = write_shapes(tmp_path / "shapes", 8), tmp_path / "start"
    assert train(shapes, start, "detector.num_attributes=0", "steps=0") == 0
    both, one = tmp_path / "both", tmp_path / "one"
    same = ["--init", str(start), *NOTHING_DRAWN, "batch_size=4", "average=0.5"]
    assert train(shapes, one, *same) == 0
    if processes == 1:
        assert train(shapes, both, *same, *fields) == 0
    else:
        tables = ["--boxes", str(shapes), "--images", str(shapes), "--output", str(both)]
        run_two(["train", *tables, "--recipe", "small", *same[:2], *TINY, *same[2:], *fields])
    logs = [read_log(output / "log.jsonl") for output in (both, one)]
    assert [[line["step"] for line in log] for log in logs] == [[1, 2], [1, 2]]
    for ours, theirs in zip(*logs, strict=True):
        names = [name for name in theirs if name.startswith(("loss", "gradient"))]
        assert {n: ours[n] for n in names} == pytest.approx({n: theirs[n] for n in names}, rel=1e-4)
    before, ours, theirs = (read_saved(output).weights for output in (start, both, one))
    moved = 0.0
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=1e-6)
        moved = max(moved, float((value - before[name]).abs().max()))
    assert moved > 1e-4  # or there was nothing to compare


@pytest.mark.long
def test_a_launcher_starts_processes_that_share_a_step(tmp_path: Path) -> None:
    shapes = write_shapes(tmp_path / "shapes", 8, held_out=2)
    for _ in range(2):  # once more: it is finished, and all processes leave
        launched(shapes, tmp_path / "out", *TINY, "steps=2", processes=2)
    log = read_log(tmp_path / "out" / "log.jsonl")
    assert [line["step"] for line in log] == [1, 2]
    weights = read_saved(tmp_path / "out").weights
    assert all(torch.isfinite(value).all() for value in weights.values())
    assert "validation/vg/map" in log[-1]
