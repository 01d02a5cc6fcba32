"""A worker process of the loader that is killed ends the command with one line, and at once."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

from vlmill.runtime.processes import process_context
from vlmill.train.loading.loader import _ahead, _prepare_worker

ROOT = Path(__file__).parents[3]
SCRIPT = """
import sys
from tests.train.loading.test_killed_worker import read_batches
from vlmill.runtime.console.command import run_command
if __name__ == "__main__":
    sys.exit(run_command(read_batches, []))
"""


class Killed(Dataset[int]):
    """Its second item costs the worker's life, as the system's killer of large processes does."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        if index:
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def read_batches(_: Any) -> int:
    """Reads as :func:`vlmill.train.loading.loader.batch_loader` does, in a thread ahead."""
    loader = DataLoader(
        Killed(),
        batch_size=None,
        num_workers=1,
        multiprocessing_context=process_context("vlmill.train.loading.loader"),
        worker_init_fn=_prepare_worker,
    )
    return sum(_ahead(iter(loader)))  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_worker_that_is_killed_is_one_line(tmp_path: Path) -> None:
    script = tmp_path / "command.py"
    script.write_text(SCRIPT, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=env, timeout=120
    )
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("failed: a worker process of the loader was killed")
    assert "continues from the last checkpoint" in line
