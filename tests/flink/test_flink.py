"""The jobs on a real Flink cluster of this machine: the rows of a local run, also through kills.

``make test-flink``, and a short form. Without Java, Maven or Maven's registry they
are skipped, and say why.
"""

import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from flink_cluster import Cluster, running
from flink_jar import Missing, job_server_jar
from tests.flink.jobs import ARCHIVES, ROOT, Inputs, content, finish, start, write_inputs

from vlmill.pipelines.launch.flink_worker import LOGS

pytestmark = pytest.mark.flink
WORKER = "sdk_worker_main"
WAIT_S = 240


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def local(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The output of each job's run on the local runner."""
    outputs: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in outputs:
            output = tmp_path_factory.mktemp("local") / "out"
            finish(start(inputs.command(name), output))
            outputs[name] = output
        return outputs[name]

    return of


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    try:
        jar = job_server_jar()
    except Missing as missing:
        pytest.skip(f"no Flink cluster can be run here: {missing}")
    with running(jar) as cluster:
        yield cluster
    assert not cluster.folder.exists()
    assert processes_of(cluster) == []


def processes_of(cluster: Cluster) -> list[str]:
    """The command lines of processes that have to do with the cluster's folder."""
    lines = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended, or is another user's
            words = [*process.cmdline(), process.environ().get(LOGS, "")]
            if any(str(cluster.folder) in word for word in words):
                lines.append(" ".join(words))
    return lines


@pytest.fixture(scope="module")
def process(cluster: Cluster) -> list[str]:
    """Flags of Python workers that the task managers start."""
    return process_environment(cluster, ROOT / "src")


@pytest.fixture(scope="module")
def flags(cluster: Cluster, process: list[str]) -> list[str]:
    """Beam's flags for a job with a job server of its own."""
    master = [f"--flink_master={cluster.address}", f"--flink_job_server_jar={cluster.jar}"]
    return ["--runner=FlinkRunner", *master, *process]


@pytest.fixture(scope="module")
def endpoint(cluster: Cluster) -> str:
    """Beam's flag for a job server that serves many pipelines."""
    return f"--job_endpoint={cluster.start_job_server()}"


def process_environment(cluster: Cluster, package: Path) -> list[str]:
    """The flags, for workers that find vlmill in the folder ``package``."""
    config = {
        "command": str(worker_command(cluster.folder, package)),
        # Float sums depend on the threads; the local runs have one, too.
        "env": {LOGS: str(cluster.logs), "OMP_NUM_THREADS": "1"},
    }
    return [
        # 0 is Beam's default: a cached environment outlives its worker, and is used again.
        *("--parallelism=2", "--environment_type=PROCESS", "--environment_cache_millis=0"),
        f"--environment_config={json.dumps(config)}",
    ]


def worker_command(folder: Path, package: Path) -> Path:
    """What ``vlmill-flink-worker`` is, for a package that is not installed."""
    command = folder / f"worker-{package.name}"
    command.write_text(
        f"#!/bin/sh\nPYTHONPATH='{package}' exec '{sys.executable}' "
        f"'{ROOT / 'pipelines/launch/flink_worker.py'}' \"$@\"\n"
    )
    command.chmod(0o755)
    return command


def task_managers_of(cluster: Cluster, step: str) -> set[str]:
    """The task managers that have written elements of a step, in the last job that has it."""
    jobs = sorted(cluster.ask("/jobs/overview")["jobs"], key=lambda job: -job["start-time"])
    for job in jobs:
        for vertex in cluster.ask(f"/jobs/{job['jid']}")["vertices"]:
            if re.search(rf"[\]\s]{step}[)}}]", vertex["name"]):
                answer = cluster.ask(f"/jobs/{job['jid']}/vertices/{vertex['id']}/taskmanagers")
                return {
                    each["taskmanager-id"]
                    for each in answer["taskmanagers"]
                    if each["metrics"]["read-records"] > 0
                }
    raise AssertionError(f"no job with a step {step}")


@pytest.mark.long
def test_web_pairs(
    inputs: Inputs, local: Callable[[str], Path], cluster: Cluster, flags: list[str], tmp_path: Path
) -> None:
    finish(start(inputs.command("web_pairs"), tmp_path / "out", *flags))
    assert_same(local("web_pairs"), tmp_path / "out")
    assert len(task_managers_of(cluster, "Mine")) == 2


def assert_same(expected: Path, output: Path) -> None:
    """The same files, rows and counts, and rows at all."""
    whole, there = content(expected), content(output)
    assert there.keys() == whole.keys()
    assert [name for name, value in whole.items() if there[name] != value] == []
    assert any(name.endswith(".parquet") for name in whole)


@pytest.mark.long
@pytest.mark.parametrize("name", ["hard_negatives", "hard_negatives in parts", "regions"])
def test_other_jobs(
    name: str,
    inputs: Inputs,
    local: Callable[[str], Path],
    cluster: Cluster,
    endpoint: str,
    process: list[str],
    tmp_path: Path,
) -> None:
    flags = ["--runner=PortableRunner", endpoint, *process]
    finish(start(inputs.command(name), tmp_path / "out", *flags))
    assert_same(local(name), tmp_path / "out")
    step = "Extract" if name == "regions" else "Write"
    assert len(task_managers_of(cluster, step)) == 2


@pytest.mark.parametrize(
    "killed", ["a task manager", pytest.param("a Python worker", marks=pytest.mark.long)]
)
def test_web_pairs_through_a_kill(
    killed: str,
    inputs: Inputs,
    local: Callable[[str], Path],
    cluster: Cluster,
    flags: list[str],
    tmp_path: Path,
) -> None:
    """Some archives are mined when it happens, some are not."""
    mined = tmp_path / "out" / "work" / "archives"
    process = start(inputs.command("web_pairs"), tmp_path / "out", *flags)
    await_some(lambda: len(list(mined.glob("*.json"))), process)
    if killed == "a task manager":
        name = next(name for name in cluster.processes if name.startswith("tm"))
        cluster.kill(name)
        cluster.start_task_manager(f"{name}-again")  # a name of a dead one is not taken
    else:
        next(iter(workers_of(cluster))).kill()
    assert len(list(mined.glob("*.json"))) < ARCHIVES
    finish(process)
    assert_same(local("web_pairs"), tmp_path / "out")
    assert failures_of(cluster) > 0
    assert len(task_managers_of(cluster, "Mine")) == 2


def await_some(count: Callable[[], int], process: "subprocess.Popen[str]") -> None:
    """Waits until a job has done the first of its work."""
    deadline = time.monotonic() + WAIT_S
    while not count():
        assert process.poll() is None and time.monotonic() < deadline, "the job does not work"
        time.sleep(0.02)


def workers_of(cluster: Cluster) -> Iterator[psutil.Process]:
    """The Python processes that the task managers have started."""
    for parent in cluster.processes.values():
        for process in psutil.Process(parent.pid).children(recursive=True):
            if WORKER in " ".join(process.cmdline()):
                yield process


def failures_of(cluster: Cluster) -> int:
    """How many failures the last job has been through."""
    jobs: list[dict[str, Any]] = cluster.ask("/jobs/overview")["jobs"]
    last = max(jobs, key=lambda job: job["start-time"])
    return len(cluster.ask(f"/jobs/{last['jid']}/exceptions")["exceptionHistory"]["entries"])


@pytest.mark.long
def test_a_worker_that_does_not_start_is_one_line(
    inputs: Inputs, cluster: Cluster, endpoint: str, tmp_path: Path
) -> None:
    config = json.dumps({"command": str(cluster.folder / "no-such-worker")})
    flags = ["--environment_type=PROCESS", f"--environment_config={config}"]
    words = [*inputs.command("web_pairs"), "--runner=PortableRunner", endpoint, *flags]
    said, _ = (process := start(words, tmp_path / "out")).communicate()
    assert process.returncode == 1 and "Traceback" not in said
    assert "failed: a task manager could not start a worker (No such file" in said
