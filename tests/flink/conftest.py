"""A Flink cluster for all tests of this folder, and what the jobs give on this machine alone."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flink_cluster import Cluster, running
from flink_jar import Missing, job_server_jar
from tests.flink.jobs import ROOT, Inputs, finish, start, write_inputs
from tests.flink.observed import process_environment, processes_of


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """Archives, captions and images."""
    return write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="session")
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


@pytest.fixture(scope="session")
def jar() -> Path:
    """The jar that is job server and cluster."""
    try:
        return job_server_jar()
    except Missing as missing:
        pytest.skip(f"no Flink cluster can be run here: {missing}")


@pytest.fixture(scope="session")
def cluster(jar: Path) -> Iterator[Cluster]:
    """A cluster of two task managers, which leaves nothing."""
    with running(jar) as cluster:
        yield cluster
    assert not cluster.folder.exists()
    assert processes_of(cluster) == []


@pytest.fixture(scope="session")
def process(cluster: Cluster) -> list[str]:
    """Flags of Python workers that the task managers start."""
    return process_environment(cluster, ROOT / "src")


@pytest.fixture(scope="session")
def master(cluster: Cluster) -> list[str]:
    """Beam's flags for a job with a job server of its own."""
    place = [f"--flink_master={cluster.address}", f"--flink_job_server_jar={cluster.jar}"]
    return ["--runner=FlinkRunner", *place]


@pytest.fixture(scope="session")
def endpoint(cluster: Cluster) -> list[str]:
    """Beam's flags for a job server that serves many pipelines."""
    return ["--runner=PortableRunner", f"--job_endpoint={cluster.start_job_server()}"]
