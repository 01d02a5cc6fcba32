"""The processes of a cluster of several hosts find each other, and end when they are told."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from flink_cluster import HOST, START_S, free_ports

pytestmark = [pytest.mark.flink, pytest.mark.long]
NODE = Path(__file__).parents[2] / "docker/flink/flink_node.py"


HEALTHY = NODE.parents[1] / "healthy.py"


@contextmanager
def node(
    role: str, jar: Path, ports: list[int], folder: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """A node whose temporary folder is its own, as in a container."""
    where = ["--job-manager", HOST, "--own", HOST, "--bind", HOST]
    flags = ("--rpc-port", "--port", "--task-port")
    words = [word for flag, port in zip(flags, ports, strict=True) for word in (flag, str(port))]
    command = [sys.executable, str(NODE), role, *where, *words, "--jar", str(jar)]
    folder.mkdir()
    process = subprocess.Popen(
        command,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def registered(port: int) -> int:
    """How many task managers the job manager knows; -1 before it listens."""
    try:
        with urlopen(f"http://{HOST}:{port}/overview", timeout=10) as answer:
            return int(json.load(answer)["taskmanagers"])
    except OSError:
        return -1


def health(folder: Path) -> str:
    """What the health check of a node says; "" if it is well."""
    done = subprocess.run(
        [sys.executable, str(HEALTHY), "--flink"],
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
    )
    assert bool(done.stderr) == bool(done.returncode)
    return done.stderr


def test_a_task_manager_finds_its_job_manager(jar: Path, tmp_path: Path) -> None:
    """And its health check sees its death: that it hangs, and that it is gone."""
    ports = free_ports(3)
    port = ports[1]
    deadline = time.monotonic() + START_S
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(node(role, jar, ports, tmp_path / role))
            for role in ("jobmanager", "taskmanager")
        ]
        while registered(port) != 1:
            assert [each.poll() for each in nodes] == [None, None]
            assert time.monotonic() < deadline
            time.sleep(0.5)
        assert [health(tmp_path / role) for role in ("jobmanager", "taskmanager")] == ["", ""]
        nodes[1].send_signal(signal.SIGSTOP)  # a process that hangs still has its port
        while not (problem := health(tmp_path / "taskmanager")):
            assert time.monotonic() < deadline
            time.sleep(2)
        assert "no heartbeat for" in problem and not health(tmp_path / "jobmanager")
        nodes[1].kill()
        nodes[1].wait()
        assert "Connection refused" in health(tmp_path / "taskmanager")
    assert registered(port) == -1
