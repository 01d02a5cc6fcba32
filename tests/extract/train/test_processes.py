"""Two processes train together as one does with all pictures of a step."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.extract.train.shapes import write_shapes
from tests.extract.train.test_job import TINY, train

from vlmill.extract.detect.saved import read_saved
from vlmill.schemas.console.log import read_log

# Every process divides by its own examples, normalises by its own pictures and draws for itself:
# the same comes out where constants normalise, all anchors and proposals are taken, and there are
# as many of each picture.
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


@pytest.mark.slow
def test_two_processes_are_one_with_the_pictures_of_both(tmp_path: Path) -> None:
    shapes, start = write_shapes(tmp_path / "shapes", 8, held_out=2), tmp_path / "start"
    fields = ("detector.num_attributes=0", "detector.batch_norm=trained", "steps=0")
    assert train(shapes, start, *fields) == 0
    both, one = tmp_path / "both", tmp_path / "one"
    same = ("--init", str(start), *TINY, *NOTHING_DRAWN)
    launched(shapes, both, *same, processes=2)
    assert train(shapes, one, *same[:2], *NOTHING_DRAWN) == 0
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
    launched(shapes, both, *same, processes=2)  # finished: all processes leave
