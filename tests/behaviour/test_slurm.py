"""The Slurm script puts a run that has stopped back into the queue, and no other one."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "slurm" / "pretrain.sbatch"
# As Slurm's: srun runs the command, here as one process, and scontrol names all nodes.
SRUN = 'shift; SLURM_PROCID=0 SLURM_LOCALID=0 exec "$@"'
SCONTROL = 'echo "$@" >> "$CALLS"; case $1 in show) seq -f node-%g 7 30000;; esac'
TRAIN_VL = """
echo "$RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR $MASTER_PORT" >> "$CALLS"
printf '%s\\n' "$@" >> "$CALLS"
exit "$STATUS"
"""


@pytest.mark.parametrize("status", [0, 1, 2, 75])
def test_a_run_that_has_stopped_is_queued_again(status: int, tmp_path: Path) -> None:
    for name, body in (("srun", SRUN), ("scontrol", SCONTROL), ("train-vl", TRAIN_VL)):
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_JOB_NODELIST": "node-[7-30000]", "SLURM_JOB_ID": "41234", "SLURM_NTASKS": "16"}
    told = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "STATUS": str(status)}
    ended = subprocess.run(
        ["bash", SCRIPT, "vilbert", "--output", "a run"],
        env=os.environ | slurm | told | {"CALLS": str(tmp_path / "calls")},
        check=False,
    )
    assert ended.returncode == status
    command = ["pretrain", "vilbert", "--output", "a run", "--stopped-status", "75"]
    calls = ["show hostnames node-[7-30000]", "0 0 16 node-7 21234", *command]
    queued = ["requeue 41234"] if status == 75 else []
    assert (tmp_path / "calls").read_text().splitlines() == calls + queued
