"""Each pipeline of each job translates for Dataflow without a network, and its steps unpickle in a
process that has vlmill alone.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from tests.dataflow.translating import IMAGE, Translation

from vlmill.extract.run.job import Part
from vlmill.pipelines.hard_negatives.plan import Plan
from vlmill.pipelines.hard_negatives.rules import NegativeRules
from vlmill.pipelines.hard_negatives.source import Source
from vlmill.pipelines.hard_negatives.steps import list_steps
from vlmill.pipelines.manifest.published.on_runner import JUDGE, MAKE, READ
from vlmill.pipelines.regions import on_beam as regions
from vlmill.pipelines.tables.job import REPEATS, WRITE
from vlmill.pipelines.web.fetching import on_beam
from vlmill.pipelines.web.fetching.politeness import PolitenessPolicy
from vlmill.pipelines.web.fetching.work import Fetching
from vlmill.pipelines.web_pairs.steps import STEPS
from vlmill.runtime.units import run_beam
from vlmill.runtime.units.launch.options import beam_options
from vlmill.runtime.units.step import Step
from vlmill.runtime.units.stored import StoredJob

ROOT = Path(__file__).parents[2]
OUTPUT = "gs://bucket/output"
ENGINE = {"runtime.units.run_beam.RunUnits"}


def engine(steps: Sequence[Step[Any]]) -> Callable[[Translation], None]:
    """A job of the one engine: its graph names where job and steps are."""

    def build(translation: Translation) -> None:
        stored = StoredJob(path=f"{OUTPUT}/work/job.pickle", sha256="0" * 64)
        with translation(beam_options([])) as pipeline:
            run_beam.build(pipeline, stored, [step.name for step in steps])

    return build


PLAN = Plan(
    source=Source(argument="gs://bucket/pairs"),
    rules=NegativeRules(),
    output=Path(OUTPUT),
    settings={"top": 30},
    shard_captions=1000,
    parts=3,
    threads=2,
)


def regions_job(translation: Translation) -> None:
    arguments = argparse.Namespace(output=Path(OUTPUT), images="gs://bucket/images", weights=None)
    step = regions.ExtractPart(arguments, ("fingerprint",))
    with translation(beam_options([])) as pipeline:
        _ = pipeline | beam.Create([Part(index=0, total=1, images=())]) | beam.ParDo(step)


def crawl(_: Translation) -> None:
    job = Fetching(output=OUTPUT, buckets=3, policy=PolitenessPolicy(contact="me@example.org"))
    on_beam.rounds_on_beam(job, beam_options([]))([0, 2])


JOBS: dict[str, tuple[Callable[[Translation], None], Any, set[str]]] = {
    "web_pairs": (engine(STEPS), run_beam, ENGINE),
    "hard_negatives": (engine(list_steps(PLAN)), run_beam, ENGINE),
    "crawl": (crawl, on_beam, {"pipelines.web.fetching.on_beam.FetchBuckets"}),
    "manifest": (engine([READ, JUDGE, MAKE]), run_beam, ENGINE),
    "tables": (engine([*REPEATS, WRITE]), run_beam, ENGINE),
    "regions": (regions_job, regions, {"pipelines.regions.on_beam.ExtractPart"}),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """What Dataflow would get of each job: a folder for each pipeline."""
    jobs = {}
    for name, (build, module, _) in JOBS.items():
        translation = Translation(tmp_path_factory.mktemp(name))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "run_pipeline", translation)
            build(translation)
        jobs[name] = translation.jobs
    return jobs


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
        assert (folder / "pipeline.pb").stat().st_size > 0


@pytest.mark.parametrize("name", JOBS)
def test_steps_unpickle_in_a_fresh_process_and_name_no_local_path(
    name: str, unpickled: dict[str, list[dict[str, Any]]]
) -> None:
    steps = {step for pipeline in unpickled[name] for step in pipeline["names"]}
    assert steps >= {f"vlmill.{step}" for step in JOBS[name][2]}
    assert [pipeline["paths"] for pipeline in unpickled[name] if pipeline["paths"]] == []
