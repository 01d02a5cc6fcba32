"""Two processes train together: each its share of the pictures, one set of weights."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.extract.train.shapes import write_shapes
from tests.extract.train.test_job import TINY

from vlmill.extract.detect.saved import read_saved
from vlmill.schemas.console.log import read_log


def launched(shapes: Path, output: Path, *fields: str, processes: int) -> None:
    """Runs the command under torchrun."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}"),
        *("--standalone", "-m", "vlmill.extract.cli", "train", "--boxes", str(shapes)),
        *("--images", str(shapes), "--output", str(output), "--recipe", "small", *TINY, *fields),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.long
def test_two_processes_share_the_pictures_of_a_step(tmp_path: Path) -> None:
    shapes = write_shapes(tmp_path / "shapes", 8, held_out=2)
    launched(shapes, tmp_path / "out", "steps=2", processes=2)
    log = read_log(tmp_path / "out" / "log.jsonl")
    assert [line["step"] for line in log] == [1, 2]
    weights = read_saved(tmp_path / "out").weights
    assert all(torch.isfinite(value).all() for value in weights.values())
    assert "validation/vg/map" in log[-1]
