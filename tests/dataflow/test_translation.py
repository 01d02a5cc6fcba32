"""Each pipeline of each job translates for Dataflow without a network, and its steps unpickle in a
process that has vlmill alone.
"""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.dataflow.translating import IMAGE, Translation

from vlmill.pipelines.crawl.pairs import PAIRS_STEP
from vlmill.pipelines.crawl.rows import FIND_STEP
from vlmill.pipelines.hard_negatives.job import list_steps
from vlmill.pipelines.hard_negatives.plan import Plan
from vlmill.pipelines.hard_negatives.rules import NegativeRules
from vlmill.pipelines.hard_negatives.source import Source
from vlmill.pipelines.manifest.own import command as own
from vlmill.pipelines.manifest.published.on_runner import JUDGE, MAKE, READ
from vlmill.pipelines.regions.job import EXTRACT
from vlmill.pipelines.tables.job import REPEATS, WRITE
from vlmill.pipelines.web.fetching.rounds import TABLES, make_round
from vlmill.pipelines.web_pairs.fetch import ASSUME, AVAILABLE, FILL
from vlmill.pipelines.web_pairs.steps import STEPS
from vlmill.runtime.units import run_beam
from vlmill.runtime.units.launch.options import beam_options
from vlmill.runtime.units.step import Step
from vlmill.runtime.units.stored import StoredJob

# The engine on Beam is tried in pipelines/web_pairs/test_job.py, on a cluster in tests/flink.
pytestmark = pytest.mark.nightly
ROOT = Path(__file__).parents[2]
OUTPUT = "gs://bucket/output"
ENGINE = {"runtime.units.run_beam.RunUnits"}
MOST_GRAPH_BYTES = 200_000


PLAN = Plan(
    source=Source(argument="gs://bucket/pairs"),
    rules=NegativeRules(),
    output=Path(OUTPUT),
    settings={"top": 30},
    shard_captions=1000,
    parts=40,  # each is a step, so this is the longest of all lists
    threads=2,
)


JOBS: dict[str, Sequence[Step[Any]]] = {
    "web_pairs": STEPS,
    "hard_negatives": list_steps(PLAN),
    "crawl": [make_round([0, 2], 0), TABLES, FIND_STEP, PAIRS_STEP],
    "web_pairs missing": [AVAILABLE, ASSUME, FILL],
    "manifest": [READ, JUDGE, MAKE],
    "manifest own": own.STEPS,
    "tables": [*REPEATS, WRITE],
    "regions": [EXTRACT],
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """What Dataflow would get of each job: a folder for each pipeline."""
    jobs = {}
    for name, steps in JOBS.items():
        translation = Translation(tmp_path_factory.mktemp(name.replace(" ", "-")))
        stored = StoredJob(path=f"{OUTPUT}/work/job.pickle", sha256="0" * 64)
        with translation(beam_options([])) as pipeline:
            run_beam.build(pipeline, stored, [step.name for step in steps])
        jobs[name] = translation.jobs
    return jobs


def test_stored_steps_unpickle_in_a_fresh_process(tmp_path: Path) -> None:
    for name, steps in JOBS.items():
        (tmp_path / name).write_bytes(pickle.dumps(steps))
    program = "import pickle, sys; [pickle.load(open(p, 'rb')) for p in sys.argv[1:]]"
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, sorted(tmp_path.iterdir()))],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def unpickled(folders: dict[str, list[Path]]) -> dict[str, list[dict[str, Any]]]:
    """What a fresh process finds in each pipeline."""
    files = [str(folder / "pipeline.pb") for jobs in folders.values() for folder in jobs]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("unpickle.py")), *files],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = iter(done.stdout.splitlines())
    return {name: [json.loads(next(lines)) for _ in jobs] for name, jobs in folders.items()}


@pytest.mark.parametrize("name", JOBS)
def test_the_job_graph_names_image_and_pipeline(name: str, folders: dict[str, list[Path]]) -> None:
    assert folders[name]
    for folder in folders[name]:
        graph = json.loads((folder / "job.json").read_text(encoding="utf-8"))
        (pool,) = graph["environment"]["workerPools"]
        assert graph["type"] == "JOB_TYPE_BATCH"
        assert [each["containerImage"] for each in pool["sdkHarnessContainerImages"]] == [IMAGE]
        assert pool["autoscalingSettings"]["maxNumWorkers"] == 20
        # It names the job's file and its steps, so no number of inputs makes it larger.
        assert 0 < (folder / "pipeline.pb").stat().st_size < MOST_GRAPH_BYTES


def test_workers_without_public_addresses(tmp_path: Path) -> None:
    """The flags reach Dataflow as Beam has them."""
    flags = ["--no_use_public_ips", "--subnetwork=regions/europe-west4/subnetworks/private"]
    translation = Translation(tmp_path, [f"--sdk_container_image={IMAGE}", *flags])
    stored = StoredJob(path=f"{OUTPUT}/work/job.pickle", sha256="0" * 64)
    options = beam_options(["--runner=DataflowRunner", *flags])
    assert options.get_all_options()["use_public_ips"] is False
    with translation(options) as pipeline:
        run_beam.build(pipeline, stored, ["mine"])
    graph = json.loads((translation.jobs[0] / "job.json").read_text(encoding="utf-8"))
    (pool,) = graph["environment"]["workerPools"]
    assert pool["ipConfiguration"] == "WORKER_IP_PRIVATE"
    assert pool["subnetwork"] == flags[1].partition("=")[2]


@pytest.mark.parametrize("name", JOBS)
def test_steps_unpickle_in_a_fresh_process_and_name_no_local_path(
    name: str, unpickled: dict[str, list[dict[str, Any]]]
) -> None:
    steps = {step for pipeline in unpickled[name] for step in pipeline["names"]}
    assert steps >= {f"vlmill.{step}" for step in ENGINE}
    assert [pipeline["paths"] for pipeline in unpickled[name] if pipeline["paths"]] == []
