"""A task manager or a Python worker is killed while a job works: the same rows, each once."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from flink_cluster import Cluster
from tests.flink.jobs import ARCHIVES, CAPTIONS, IMAGES, ROWS, Inputs, assert_same, finish, start
from tests.flink.observed import await_some, busiest_worker, failures_of, task_managers_of

pytestmark = pytest.mark.flink
KILLED = ("a task manager", "a Python worker")
SHORT = ("web_pairs", "a task manager")  # of make test-flink-short


@dataclass(frozen=True, kw_only=True)
class Units:
    """The files that a step leaves, one for each unit: how many tells how far a job is."""

    step: str
    files: str
    total: int


UNITS = {
    "web_pairs": Units(step="Mine", files="work/archives/*.json", total=ARCHIVES),
    "hard_negatives": Units(step="Write", files="negatives-*.parquet", total=CAPTIONS // ROWS),
    "regions": Units(step="Extract", files="regions-*.parquet", total=IMAGES),
}


@pytest.mark.parametrize(
    ("name", "killed"),
    [
        pytest.param(name, killed, marks=[] if (name, killed) == SHORT else [pytest.mark.long])
        for name in UNITS
        for killed in KILLED
    ],
)
def test_a_job_through_a_kill(
    name: str,
    killed: str,
    inputs: Inputs,
    local: Callable[[str], Path],
    cluster: Cluster,
    endpoint: list[str],
    process: list[str],
    tmp_path: Path,
) -> None:
    """Some units are done when it happens, some are not."""
    units, output = UNITS[name], tmp_path / "out"
    job = start(inputs.command(name), output, *endpoint, *process)
    await_some(lambda: len(list(output.glob(units.files))), job)
    revive = kill(cluster, killed)
    assert len(list(output.glob(units.files))) < units.total
    revive()
    finish(job)
    assert_same(local(name), output)
    assert failures_of(cluster) > 0
    assert len(task_managers_of(cluster, units.step)) == 2


def kill(cluster: Cluster, killed: str) -> Callable[[], None]:
    """Kills one; the answer puts another in the place of a task manager, which takes seconds."""
    if killed == "a Python worker":
        busiest_worker(cluster).kill()  # others may wait for a step that has ended
        return lambda: None
    name = next(name for name in cluster.processes if name.startswith("tm"))
    cluster.kill(name)
    return lambda: cluster.start_task_manager(f"{name}-again")  # a dead one's name is not taken
