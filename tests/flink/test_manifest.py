"""A published data set read by the cluster: the bytes of a run on this machine."""

from pathlib import Path

import pytest
from flink_cluster import Cluster
from tests.flink.jobs import assert_same, finish, job_command, start
from tests.flink.observed import numbers_of, task_managers_of
from tests.pipelines.conftest import make_image
from tests.pipelines.manifest.layouts import coco

pytestmark = [pytest.mark.flink, pytest.mark.long]


def test_parts_are_those_of_one_machine(
    cluster: Cluster, endpoint: list[str], process: list[str], tmp_path: Path
) -> None:
    """A part's rows may depend on the parts before it; two task managers make them."""
    here, there = tmp_path / "here", tmp_path / "there"
    coco(tmp_path / "in", make_image)
    words = ("coco", "--input", str(tmp_path / "in"), "--rows-per-shard", "1")
    command = job_command("manifest", *words)
    finish(start(command, here))
    finish(start(command, there, *endpoint, *process))
    assert_same(here, there)
    assert len(task_managers_of(cluster, "Make")) == 2
    made = numbers_of(cluster)
    assert made["make", "parts"] == len(list(here.glob("rejects-*.parquet"))) > 1
