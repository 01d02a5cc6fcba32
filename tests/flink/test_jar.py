"""What a cluster lacks, and whose fault that is; no Java and no network is needed."""

import hashlib
import shutil
import socket
import subprocess
from pathlib import Path

import flink_jar
import pytest
from flink_cluster import HOST, Cluster
from flink_jar import Missing, require_built, require_java, require_pinned, run_bounded

UNKNOWN_HOST = (
    "[INFO] Scanning for projects...\n[ERROR] Plugin org.apache.maven.plugins:maven-shade-plugin "
    "could not be resolved: Could not transfer artifact from central: repo.maven.example: Unknown "
    "host repo.maven.example: Temporary failure in name resolution -> [Help 1]"
)
NOT_FOUND = (
    "[ERROR] Failed to execute goal on project flink-job-server: Could not find artifact "
    "org.apache.beam:beam-runners-flink-1.19:jar:9 in central -> [Help 1]"
)


def test_a_registry_out_of_reach_is_no_failure() -> None:
    with pytest.raises(Missing, match=r"cannot reach its registry.*Unknown host"):
        require_built(UNKNOWN_HOST, 1)
    with pytest.raises(Missing, match="had not given all files"):
        require_built("[INFO] Downloading from central: a.jar", None)


def test_whatever_else_stops_the_build_is_one() -> None:
    with pytest.raises(OSError, match=r"could not build .*Could not find artifact"):
        require_built(NOT_FOUND, 1)
    with pytest.raises(OSError, match="was not done after"):
        require_built("[INFO] Including a.jar in the shaded jar.", None)
    require_built("[INFO] BUILD SUCCESS", 0)


def test_a_build_is_bounded() -> None:
    assert run_bounded(["sh", "-c", "echo Downloading; exec sleep 60"], 0.2) == (
        "Downloading\n",
        None,
    )
    assert run_bounded(["sh", "-c", "echo no; exit 3"], 60) == ("no\n", 3)


def test_a_file_of_beam_that_is_another_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org/apache/beam").mkdir(parents=True)
    (tmp_path / "org/apache/beam/a.jar").write_bytes(b"a")
    monkeypatch.setattr(flink_jar, "PINNED", {"a.jar": hashlib.sha256(b"a").hexdigest()})
    require_pinned(tmp_path)
    monkeypatch.setattr(flink_jar, "PINNED", {"a.jar": hashlib.sha256(b"b").hexdigest()})
    with pytest.raises(OSError, match=r"a\.jar has the SHA-256"):
        require_pinned(tmp_path)


@pytest.mark.parametrize(
    ("said", "why"),
    [(None, "no Java"), ('openjdk version "11.0.2"', "17 or newer"), ("", "it says nothing")],
)
def test_without_a_new_java_nothing_is_built(
    said: str | None, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = None if said is None else "/usr/bin/java"
    monkeypatch.setattr(shutil, "which", lambda _: found)
    answer = subprocess.CompletedProcess([], 0, stdout="", stderr=said or "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    with pytest.raises(Missing, match=why):
        require_java()


def test_a_taken_port_is_refused(tmp_path: Path) -> None:
    """Another cluster's job manager there would answer for this one."""
    with socket.create_server((HOST, 0)) as taken:
        cluster = Cluster(tmp_path / "jar", tmp_path, port=taken.getsockname()[1])
        with pytest.raises(OSError, match="is taken; give another --port"):
            cluster.start(1)
    assert cluster.processes == {}
