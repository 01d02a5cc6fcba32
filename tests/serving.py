"""Services on this machine, each in processes of its own, for tests."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 900  # so that what hangs ends, also on a machine with much other work


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a service has answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Returns the body's JSON."""
        return json.loads(self.body)


@dataclass(kw_only=True)
class Served:
    """A running service."""

    process: "subprocess.Popen[str]"
    url: str = ""
    log: list[str] = field(default_factory=list)  # lines of standard error

    @property
    def address(self) -> tuple[str, int]:
        """Returns where it listens."""
        parts = urllib.parse.urlsplit(self.url)
        assert parts.hostname and parts.port
        return parts.hostname, parts.port

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 120,
    ) -> Reply:
        """Asks by a connection of its own."""
        connection = http.client.HTTPConnection(*self.address, timeout=timeout)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            named = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(status=answer.status, headers=named, body=answer.read())
        finally:
            connection.close()

    def post(self, path: str, body: bytes, content_type: str, **headers: str) -> Reply:
        """Posts a body of a type."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask("POST", path, body, {"content-type": content_type, **named})

    def count(self, name: str) -> float:
        """Returns a metric's value, summed over its labels."""
        text = self.ask("GET", "/metrics").body.decode()
        lines = [line for line in text.splitlines() if line.split("{")[0].split(" ")[0] == name]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def workers(self) -> list[int]:
        """Returns the processes that compute: children of the server that forks them."""
        found = []
        for child in children(self.process.pid):
            found += children(child)
        return found

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Asks it to stop, and returns its exit status."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_SECONDS)


def children(pid: int) -> list[int]:
    """Returns the processes that a process has started."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(word) for word in task.read_text().split()]
    return found


@contextmanager
def served(
    command: Sequence[str], stderr: int = subprocess.PIPE, **environment: str
) -> Iterator[Served]:
    """Runs ``python ...`` until it says where it listens, and ends it with the block.

    Its standard error is read here, or is the file descriptor ``stderr``.
    """
    process = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    service = Served(process=process)
    assert process.stdout is not None
    errors = process.stderr

    def listen() -> None:
        service.log.extend(errors or ())

    reader = threading.Thread(target=listen, daemon=True)
    reader.start()
    watchdog = threading.Timer(PATIENCE_SECONDS, process.kill)
    watchdog.start()
    try:
        line = process.stdout.readline()
        watchdog.cancel()
        if "http://" not in line:
            process.wait(30)
            reader.join(5)
            raise AssertionError(f"status {process.returncode}: {''.join(service.log)}")
        service.url = line.split(" ")[-1].strip()
        yield service
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        reader.join(10)
        process.stdout.close()
        if errors is not None:
            errors.close()


def until(holds: Callable[[], bool]) -> None:
    """Waits until something holds, however slow the machine is."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"did not come about in {PATIENCE_SECONDS} seconds")
        time.sleep(0.05)


def form(files: Sequence[tuple[str, bytes]], **words: str) -> tuple[bytes, str]:
    """Returns a multipart form of (file name, content) and fields, with its type."""
    parts = [
        f'--edge\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{word}\r\n'.encode()
        for name, word in words.items()
    ]
    parts += [
        f'--edge\r\nContent-Disposition: form-data; name="images"; filename="{name}"\r\n'.encode()
        + b"Content-Type: image/jpeg\r\n\r\n"
        + content
        + b"\r\n"
        for name, content in files
    ]
    return b"".join(parts) + b"--edge--\r\n", "multipart/form-data; boundary=edge"
