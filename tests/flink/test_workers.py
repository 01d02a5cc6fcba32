"""A worker that cannot work ends the job in one line that says what to do."""

import json
from pathlib import Path

import pytest
from flink_cluster import Cluster
from tests.flink.jobs import ROOT, Inputs, start
from tests.flink.observed import jobs_of, process_environment

from vlmill import __version__

pytestmark = [pytest.mark.flink, pytest.mark.long]
REMEDY = f"install vlmill {__version__} with its dependencies on every host of a task manager"


def package(folder: Path, *, version: str = __version__, without: str = "") -> Path:
    """A folder with this vlmill as another version, or without the package at a path in it."""
    ours, theirs = ROOT / "src" / "vlmill", folder / "vlmill"
    for name in ("", *Path(without).parts[:-1]):
        ours, theirs = ours / name, theirs / name
        theirs.mkdir(parents=True, exist_ok=True)
        for entry in ours.iterdir():
            if entry.relative_to(ROOT / "src" / "vlmill") not in Path(without, "_").parents:
                (theirs / entry.name).symlink_to(entry.resolve())
    initial = folder / "vlmill" / "__init__.py"
    initial.unlink()
    initial.write_text(f'__version__ = "{version}"\n')
    return folder


def failure_of(inputs: Inputs, output: Path, *flags: str) -> str:
    """The line in which a job that fails says why; Beam says after it that its server ends."""
    process = start(inputs.command("web_pairs"), output, *flags)
    said, _ = process.communicate()
    assert process.returncode == 1 and "Traceback" not in said, said[-3000:]
    (line,) = (line for line in said.splitlines() if line.startswith("failed: "))
    return line


def test_one_that_lacks_a_module(
    inputs: Inputs, cluster: Cluster, master: list[str], tmp_path: Path
) -> None:
    process = process_environment(
        cluster, package(tmp_path / "lacking", without="pipelines/web/archives")
    )
    said = failure_of(inputs, tmp_path / "out", *master, *process)
    assert (
        said.startswith("failed: on ") and "cannot import vlmill.pipelines.web_pairs.steps" in said
    )
    assert "No module named 'vlmill.pipelines.web.archives'" in said
    assert said.endswith(
        f"install vlmill {__version__} with its dependencies on every host of a task manager"
    )
    assert jobs_of(cluster)[0]["state"] in ("CANCELLING", "CANCELED")


def test_one_of_another_version(
    inputs: Inputs, cluster: Cluster, master: list[str], tmp_path: Path
) -> None:
    process = process_environment(cluster, package(tmp_path / "other", version="0.0.9"))
    said = failure_of(inputs, tmp_path / "out", *master, *process)
    assert said.endswith(f"has vlmill 0.0.9, the job is of {__version__}: {REMEDY}")


def test_one_that_does_not_start(
    inputs: Inputs, cluster: Cluster, master: list[str], tmp_path: Path
) -> None:
    config = json.dumps({"command": str(cluster.folder / "no-such-worker")})
    flags = ["--environment_type=PROCESS", f"--environment_config={config}"]
    said = failure_of(inputs, tmp_path / "out", *master, *flags)
    assert said.startswith("failed: a task manager could not start a worker (No such file")
