"""The processes of a cluster of several hosts find each other, and end when they are told."""

import json
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


@contextmanager
def node(role: str, jar: Path, rpc_port: int, port: int) -> Iterator["subprocess.Popen[bytes]"]:
    where = ["--job-manager", HOST, "--own", HOST, "--bind", HOST]
    ports = ["--rpc-port", str(rpc_port), "--port", str(port)]
    command = [sys.executable, str(NODE), role, *where, *ports, "--jar", str(jar)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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


def test_a_task_manager_finds_its_job_manager(jar: Path) -> None:
    rpc_port, port = free_ports(2)
    deadline = time.monotonic() + START_S
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(node(role, jar, rpc_port, port))
            for role in ("jobmanager", "taskmanager")
        ]
        while registered(port) != 1:
            assert [each.poll() for each in nodes] == [None, None]
            assert time.monotonic() < deadline
            time.sleep(0.5)
    assert registered(port) == -1
