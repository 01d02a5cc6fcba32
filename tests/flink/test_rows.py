"""The jobs on a real Flink cluster of this machine: the rows and the counts of a local run.

``make test-flink``, and a short form. Without Java, Maven or Maven's registry all tests of this
folder are skipped, and say why.
"""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from flink_cluster import Cluster
from tests.flink.jobs import Inputs, assert_same, finish, start
from tests.flink.observed import numbers_of, task_managers_of

from vlmill.pipelines.web_pairs.steps import LINK, STEPS

pytestmark = [pytest.mark.flink, pytest.mark.long]
IDLE = ("merge ", "gather", "order")
LAST = {"regions": "Extract", "hard_negatives": "Write", "hard_negatives in parts": "Write"}


def test_web_pairs(
    inputs: Inputs,
    local: Callable[[str], Path],
    cluster: Cluster,
    master: list[str],
    process: list[str],
    tmp_path: Path,
) -> None:
    output = tmp_path / "out"
    finish(start(inputs.command("web_pairs"), output, *master, *process))
    assert_same(local("web_pairs"), output)
    assert len(task_managers_of(cluster, "Mine")) == 2
    shows_what_the_funnel_says(cluster, output)


def shows_what_the_funnel_says(cluster: Cluster, output: Path) -> None:
    """Checks the numbers that Flink's own pages show: the local run wrote the same funnel."""
    numbers = numbers_of(cluster)
    for step in STEPS:
        if step is LINK or step.name.startswith(IDLE):
            continue  # the archives here are few, and none is large enough to have parts
        assert numbers[step.name, "milliseconds"] > 0, step.name
    assert numbers["mine", "bytes"] > 0 and numbers["shards", "bytes"] > 0
    funnel = {stage["stage"]: stage for stage in json.loads((output / "funnel.json").read_text())}
    assert numbers["mine", "pages"] == funnel["pages"]["in"]
    pairs = sum(count for (_, name), count in numbers.items() if name == "pairs")
    assert pairs == funnel["near_duplicates"]["out"]
    rejects = Counter[str]()
    for stage in funnel.values():
        rejects.update(stage["rejects"])
    shown = Counter[str]()
    for (_, name), count in numbers.items():
        if name.startswith("rejects_"):
            shown[name.removeprefix("rejects_")] += count
    assert shown == +rejects


@pytest.mark.parametrize("name", LAST)
def test_other_jobs(
    name: str,
    inputs: Inputs,
    local: Callable[[str], Path],
    cluster: Cluster,
    endpoint: list[str],
    process: list[str],
    tmp_path: Path,
) -> None:
    finish(start(inputs.command(name), tmp_path / "out", *endpoint, *process))
    assert_same(local(name), tmp_path / "out")
    assert len(task_managers_of(cluster, LAST[name])) == 2
