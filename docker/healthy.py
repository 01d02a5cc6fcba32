"""Checks the health of a container, without loading torch.

    healthy.py            the main process runs, and the GPU's driver fits torch if one was given
    healthy.py URL        the address responds
    healthy.py --flink    this node of Flink belongs to its cluster

Ends with status 0, or with 1 and one line.
"""

import ctypes
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

SECONDS = 5
LEAST_CUDA = 13  # of the libraries in constraints.txt
LEAST_DRIVER = 580  # docs/install.md, "GPUs"
NODE = Path(tempfile.gettempdir()) / "vlmill-flink-node.json"
"""Describes the node that flink_node.py has started in this container."""
HEARTBEAT = Path(tempfile.gettempdir()) / "vlmill-flink-heartbeat"
SILENT_S = 30.0  # heartbeats are sent every 2 s


def find_problem(words: Sequence[str]) -> str | None:
    """Returns what is wrong, or None."""
    if words and words[0] == "--flink":
        return check_node(json.loads(NODE.read_text(encoding="utf-8")))
    if words:
        return check_address(words[0])
    return check_process(Path("/proc/1/stat")) or check_gpu(os.environ)


def check_address(url: str) -> str | None:
    """Returns why an address does not respond, or None."""
    try:
        with urlopen(url, timeout=SECONDS):
            return None
    except OSError as error:  # also a status of 400 or above
        return f"{url}: {error}"


def check_process(stat: Path) -> str | None:
    """Returns whether the main process is stopped or dead, from its file in /proc, or None."""
    try:
        state = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):  # no Linux, or no right to see it
        return None
    return f"the main process is in state {state}" if state in ("T", "t", "Z", "X") else None


def check_gpu(environment: Mapping[str, str], library: str = "libcuda.so.1") -> str | None:
    """Returns why torch could not use the GPU that the container was given, or None."""
    if environment.get("NVIDIA_VISIBLE_DEVICES", "") in ("", "none", "void"):
        return None
    try:
        cuda = ctypes.CDLL(library)
    except OSError:
        return f"the container was given a GPU, and has no {library}: install the host's driver"
    version, count = ctypes.c_int(), ctypes.c_int()
    if status := cuda.cuInit(0):
        return f"the GPU's driver does not start (cuInit returns {status})"
    cuda.cuDriverGetVersion(ctypes.byref(version))
    cuda.cuDeviceGetCount(ctypes.byref(count))
    if version.value < 1000 * LEAST_CUDA:
        return (
            f"the GPU's driver is for CUDA {version.value // 1000}, torch's libraries for "
            f"CUDA {LEAST_CUDA}: install driver {LEAST_DRIVER} or newer on the host"
        )
    return None if count.value else "the container was given a GPU that the driver does not see"


def check_node(node: Mapping[str, Any], heartbeat: Path = HEARTBEAT) -> str | None:
    """Returns why a node of Flink does not work, or None.

    A job manager must respond. A task manager must listen, be registered under its own name, and
    have sent a heartbeat since an earlier check. While the job manager does not respond, that is
    the job manager's problem.
    """
    if node["role"] == "jobmanager":
        return check_address(f"http://127.0.0.1:{node['port']}/overview")
    if problem := check_port(node["own"], node["rpc_port"]):
        return problem
    url = f"http://{node['job_manager']}:{node['port']}/taskmanagers/{node['name']}"
    try:
        with urlopen(url, timeout=SECONDS) as response:
            last = json.load(response)["timeSinceLastHeartbeat"]
    except HTTPError as error:
        if error.code == 404:
            return f"the job manager does not know {node['name']}: it has lost this task manager"
        return None
    except OSError:
        return None
    return check_heartbeat(f"{node['name']} {last}", heartbeat)


def check_heartbeat(last: str, path: Path, silent_s: float = SILENT_S) -> str | None:
    """Returns a problem if the last heartbeat is still that of a check ``silent_s`` ago, or None.

    ``path`` keeps the heartbeat of an earlier check, so that no clocks of two hosts are compared.
    """
    if not path.exists() or path.read_text(encoding="utf-8") != last:
        path.write_text(last, encoding="utf-8")
        return None
    age = time.time() - path.stat().st_mtime
    return f"the job manager has had no heartbeat for {age:.0f} s" if age > silent_s else None


def check_port(host: str, port: int) -> str | None:
    """Returns why nothing listens at a port, or None."""
    try:
        with socket.create_connection((host, port), timeout=SECONDS):
            return None
    except OSError as error:
        return f"{host}:{port}: {error}"


def main() -> int:
    """Prints what is wrong, if anything is; returns the exit status."""
    try:
        problem = find_problem(sys.argv[1:])
    except (OSError, ValueError, KeyError) as error:
        problem = f"{NODE}: {error}"
    if problem:
        print(problem, file=sys.stderr)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
