"""Runs scripts in forks of a process that has imported PyTorch and run nothing.

torch.compile cannot trace the package while tests run, because its shapes are checked then, and
each rank of a distributed run is a process. A new interpreter imports for five seconds before each
script. A fork has the same untouched modules, and its own environment, arguments and output.
"""

import functools
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
IMPORTED = ("torch", "torch._dynamo", "vlmill.models", "vlmill.train.tasks.finetuning.job")
STREAMS = ("stdout", "stderr")


def run_script(
    script: str,
    *arguments: object,
    ranks: int = 1,
    environment: Mapping[str, str] | None = None,
    folder: Path = ROOT,
) -> "subprocess.CompletedProcess[str]":
    """Runs a script as ``python -c`` does, or in several ``ranks``, as torchrun starts them.

    The output is that of all ranks, one after the other; the exit status is the first that is not
    0, at which the other ranks are killed.
    """
    with tempfile.TemporaryDirectory() as outputs:
        request = {
            "script": script,
            "arguments": [str(argument) for argument in arguments],
            "environments": [
                {**(environment or {}), **variables} for variables in _rank_variables(ranks)
            ],
            "folder": str(folder),
            "outputs": outputs,
        }
        server = _server()
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        stdout, stderr = (
            "".join(Path(outputs, f"{stream}-{rank}").read_text() for rank in range(ranks))
            for stream in STREAMS
        )
    return subprocess.CompletedProcess([script], status, stdout, stderr)


def _rank_variables(ranks: int) -> list[dict[str, str]]:
    """Returns the variables that torchrun sets for each rank; none for a single process."""
    if ranks == 1:
        return [{}]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


@functools.cache
def _server() -> "subprocess.Popen[str]":
    """Starts the process that forks; it ends with this one, which holds its input."""
    return subprocess.Popen(
        [sys.executable, "-c", "from tests.forked import serve; serve()"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def serve() -> None:
    """Forks processes for each request on the standard input, and prints their exit status."""
    for name in IMPORTED:
        importlib.import_module(name)
    while line := sys.stdin.readline():
        request = json.loads(line)
        processes = set()
        for rank in range(len(request["environments"])):
            process = os.fork()
            if not process:
                sys.exit(_run(request, rank))
            processes.add(process)
        print(_wait(processes), flush=True)


def _wait(processes: set[int]) -> int:
    """Waits for all; returns the first exit status that is not 0, or 0."""
    first = 0
    while processes:
        process, status = os.wait()
        processes.discard(process)
        if status and not first:
            first = os.waitstatus_to_exitcode(status)
            for other in processes:
                with suppress(ProcessLookupError):
                    os.kill(other, signal.SIGKILL)
    return first


def _run(request: Mapping[str, Any], rank: int) -> int:
    """Runs the script in this process, a fork."""
    for number, stream in enumerate(STREAMS, start=1):
        path = Path(request["outputs"], f"{stream}-{rank}")
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.chdir(request["folder"])
    os.environ.update(request["environments"][rank])
    arguments: Sequence[str] = request["arguments"]
    sys.argv = ["-c", *arguments]
    main = sys.modules["__main__"]
    try:
        exec(compile(request["script"], "<string>", "exec"), main.__dict__)
    except SystemExit as stopped:
        return stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0
