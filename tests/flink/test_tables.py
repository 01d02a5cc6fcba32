"""Tables put together by the cluster: the bytes of a run on this machine."""

from pathlib import Path

import pytest
from flink_cluster import Cluster
from tests.factories import Tables, caption
from tests.flink.jobs import assert_same, finish, job_command, start
from tests.flink.observed import task_managers_of

pytestmark = [pytest.mark.flink, pytest.mark.long]


def test_rows_that_come_twice_go_as_on_one_machine(
    cluster: Cluster, endpoint: list[str], process: list[str], tmp_path: Path
) -> None:
    """What a shard keeps depends on all before it, whichever task manager has these."""
    inputs = []
    for number in range(8):
        rows = [(f"image-{k}", caption(k % 560)) for k in range(number * 50, number * 50 + 100)]
        tables = Tables(tmp_path / f"{number}")
        tables.write_pairs(rows)
        inputs.append(tables.pairs)
    here, there = tmp_path / "here", tmp_path / "there"
    command = job_command("tables", "concat", *inputs)
    finish(start(command, here))
    finish(start(command, there, *endpoint, *process))
    assert_same(here, there)
    assert len(task_managers_of(cluster, "Write")) == 2
