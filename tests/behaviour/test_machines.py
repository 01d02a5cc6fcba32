"""Two torchruns that meet on one machine train as one process does, also when one is killed: the
other one waits for it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from vlmill.runtime.console.log import read_log
from vlmill.runtime.settings.plain_fields import to_yaml
from vlmill.train.recipes import Recipe, change_recipe
from vlmill.train.run.job import pretrain

if TYPE_CHECKING:
    from tests.factories import Tables

# The second machine's process is killed as step 4 begins, and its torchrun with it: once.
TRAIN = """
import os, signal, sys
from pathlib import Path
from vlmill.train.cli import main
from vlmill.train.run import loop

killed, train_step = Path(sys.argv.pop(1)), loop.train_step

def dying(at, *args):
    if at == 4 and "dies" in os.environ and not killed.exists():
        killed.touch()
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    return train_step(at, *args)

loop.train_step = dying
sys.exit(main(sys.argv[1:]))
"""
WAIT_S = 300


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def torchrun(folder: Path, port: int, words: list[str], *, dies: bool) -> subprocess.Popen[bytes]:
    """The torchrun of the first machine, where they meet, or of the second one."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
    command += ["--nproc-per-node", "1", "--rdzv-id", "test"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    # The meeting place is the first machine's; by itself each would ask whether the address is its.
    # A machine that is gone is missed after two seconds in place of fifteen.
    conf = f"is_host={str(not dies).lower()},last_call_timeout=1,keep_alive_interval=1"
    command += ["--rdzv-conf", f"{conf},keep_alive_max_attempt=2", "--max-restarts", "1"]
    command += ["--local-addr", "127.0.0.1", "--monitor-interval", "0.2"]
    command += [str(folder / "train.py"), str(folder / "killed"), *words]
    environment = {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # docs/machines.md
    }
    return subprocess.Popen(
        command,
        env=os.environ | environment | ({"dies": "1"} if dies else {}),
        stdout=subprocess.DEVNULL,
        stderr=(folder / ("second.txt" if dies else "first.txt")).open("ab"),
    )


def killed_and_started_again(folder: Path, words: list[str]) -> tuple[int, int, int]:
    """The exit statuses of the first machine, of the second, and of the second's second start."""
    port, processes = free_port(), list[subprocess.Popen[bytes]]()
    try:
        for dies in (False, True):
            processes.append(torchrun(folder, port, words, dies=dies))
        lost = processes[1].wait(WAIT_S)
        processes.append(torchrun(folder, port, words, dies=True))
        return processes[0].wait(WAIT_S), lost, processes[2].wait(WAIT_S)
    finally:
        for process in processes:
            process.terminate()


@pytest.mark.nightly
def test_a_machine_that_is_killed_and_started_again_changes_no_loss(
    tables: Tables, recipe: Recipe, tmp_path: Path
) -> None:
    inputs = tables.write()
    still = ["model.dropout=0", "model.attention_dropout=0", "steps=6", "save_every=2"]
    recipe = change_recipe(recipe, [*still, "trackers=[]"])
    pretrain(recipe, inputs, tmp_path / "alone")
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "recipe.yaml").write_text(to_yaml(recipe))
    words = ["pretrain", "--config", str(tmp_path / "recipe.yaml"), "--pairs", tables.pairs]
    words += ["--regions", tables.regions, "--output", str(tmp_path / "together")]

    assert killed_and_started_again(tmp_path, words) == (0, -signal.SIGKILL, 0)
    alone, together = (read_log(tmp_path / name / "log.jsonl") for name in ("alone", "together"))
    assert [line["step"] for line in together] == [1, 2, 3, 4, 5, 6]
    for line, other in zip(together, alone, strict=True):
        assert line["loss"] == pytest.approx(other["loss"], rel=1e-5)
    said = (tmp_path / "first.txt").read_text() + (tmp_path / "second.txt").read_text()
    assert "after step 2 of 6" in said
