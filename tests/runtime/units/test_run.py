"""Steps give the same files from every runner; a graph does not grow with the inputs."""

import base64
import bz2
from dataclasses import replace
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.portability.api import beam_runner_api_pb2
from tests.runtime.units.jobs import STEPS, Sums, log

from vlmill import __version__
from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web_pairs.steps import STEPS as WEB_PAIRS
from vlmill.pipelines.web_pairs.units import Archive, Job
from vlmill.runtime.units.launch.failures import worker_error
from vlmill.runtime.units.launch.options import beam_options
from vlmill.runtime.units.run_beam import build, run_beam
from vlmill.runtime.units.run_here import run_here
from vlmill.runtime.units.runner import select_runner
from vlmill.runtime.units.stored import StoredJob, python_version, store_job
from vlmill.schemas.errors import InputError

MODULE = "tests.runtime.units.jobs"
MOST_GRAPH_BYTES = 200_000


def files(folder: Path) -> dict[str, bytes]:
    names = [path for path in folder.rglob("*") if path.is_file() and path.name != "log.txt"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in names}


def test_every_runner_gives_the_same_files(tmp_path: Path) -> None:
    jobs = [Sums(output=str(tmp_path / name)) for name in ("one", "two", "beam")]
    for job in jobs:
        Path(job.output).mkdir()
    run_here(jobs[0], STEPS, workers=1, module=MODULE)
    run_here(jobs[1], STEPS, workers=2, module=MODULE)
    run_beam(jobs[2], STEPS, options=beam_options([]))
    assert files(tmp_path / "one") == files(tmp_path / "two") == files(tmp_path / "beam")
    assert sorted(log(jobs[2])) == [f"square-{n}" for n in range(5)]


def test_a_graph_is_small_however_many_archives_there_are(tmp_path: Path) -> None:
    archives = tuple(
        Archive(path=f"https://data.commoncrawl.org/crawl-data/{n:060d}.warc.gz", size=n)
        for n in range(90_000)
    )
    job = Job(output=str(tmp_path), archives=archives, shards=64, rules=WebPairRules())
    stored = store_job(job, WEB_PAIRS)
    pipeline = beam.Pipeline()
    build(pipeline, stored, [step.name for step in WEB_PAIRS])
    assert len(pipeline.to_runner_api().SerializeToString()) < MOST_GRAPH_BYTES
    loaded, steps = stored.load()
    assert loaded == job and [step.name for step in steps] == [step.name for step in WEB_PAIRS]


def test_a_stored_job_of_another_run_is_not_read(tmp_path: Path) -> None:
    stored = store_job(Sums(output=str(tmp_path)), STEPS)
    with pytest.raises(OSError, match="is not of this run"):
        StoredJob(path=stored.path, sha256="0" * 64).load()


def test_a_worker_of_another_python_is_named(tmp_path: Path) -> None:
    stored = store_job(Sums(output=str(tmp_path)), STEPS)
    here = f"vlmill {__version__} and Python {python_version()}"
    other = replace(stored, versions="vlmill 9.9 and Python 3.99")
    with pytest.raises(OSError, match=r"started with vlmill 9\.9 and Python 3\.99") as caught:
        other.load()
    assert here in str(caught.value) and stored.versions == here
    error = worker_error(f"java.lang.RuntimeException\nOSError: {caught.value}\n")
    assert str(error).startswith(str(caught.value))  # in one line, of a worker on a cluster too


def test_the_graph_names_functions_and_holds_no_code(tmp_path: Path) -> None:
    """Code depends on Python's version: a worker with another one could not even name it."""
    stored = store_job(Sums(output=str(tmp_path)), STEPS)
    pipeline = beam.Pipeline()
    build(pipeline, stored, [step.name for step in STEPS])
    transforms = pipeline.to_runner_api().components.transforms.values()
    pickles = [
        bz2.decompress(
            base64.b64decode(
                beam_runner_api_pb2.ParDoPayload.FromString(each.spec.payload).do_fn.payload
            )
        )
        for each in transforms
        if each.spec.urn == "beam:transform:pardo:v1"
    ]
    assert len(pickles) == 2 * len(STEPS)
    for content in pickles:
        assert b"vlmill.runtime.units.run_beam" in content
        assert b"_make_function" not in content  # with which a pickle rebuilds code


def test_a_stored_job_is_what_another_process_reads(tmp_path: Path) -> None:
    job = Sums(output=str(tmp_path))
    stored = store_job(job, STEPS)
    store_job(Sums(output=str(tmp_path), numbers=(7,)), STEPS)  # takes its place in this process
    loaded, steps = stored.load()
    assert loaded == job and loaded is not job
    assert [step.name for step in steps] == ["squares", "halves", "sum"]


def test_the_flags_choose_the_runner(tmp_path: Path) -> None:
    select = select_runner
    paths = {"--output": "here"}
    assert select([], workers=2, module=MODULE, paths=paths).func is run_here  # type: ignore[attr-defined]
    local = select(["--runner=FnApiRunner"], workers=2, module=MODULE, paths=paths)
    assert local.func is run_beam  # type: ignore[attr-defined]
    flags = ["--runner=FlinkRunner", "--environment_type=PROCESS"]
    with pytest.raises(InputError, match="--output here is a relative path"):
        select(flags, workers=2, module=MODULE, paths=paths)
