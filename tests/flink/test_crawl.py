"""A crawl on the cluster: every URL of the generated web ends as its table says."""

from pathlib import Path

import pytest
from flink_cluster import Cluster
from tests.flink.jobs import finish, job_command, start
from tests.flink.observed import numbers_of, task_managers_of
from tests.pipelines.crawl.test_site import (
    arguments,
    expected,
    is_whole,
    kept_rates,
    outcomes_of,
    write_list,
)
from worlds.host_server import serve_site

pytestmark = [pytest.mark.flink, pytest.mark.long]


def test_the_outcomes_are_those_of_the_table(
    cluster: Cluster, endpoint: list[str], process: list[str], tmp_path: Path
) -> None:
    """Two task managers fetch; the rate of each host holds at its server."""
    output = tmp_path / "crawl"
    with serve_site(tmp_path / "hits") as served:
        listed = write_list(tmp_path / "urls", served.site.urls())
        words = arguments(listed, output, "--retries", "0")
        finish(start(job_command("crawl", *words), output, *endpoint, *process))
        assert outcomes_of(output) == expected(served)
        kept_rates(served)
        is_whole(output)
    assert len(task_managers_of(cluster, "Fetch")) == 2
    numbers = numbers_of(cluster, "fetch")  # of the last round
    assert numbers["fetch", "urls"] > 0 and numbers["fetch", "milliseconds"] > 0
