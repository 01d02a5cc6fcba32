"""Starts a service, and defines the clients that measure it."""

import http.client
import io
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

TICKS = os.sysconf("SC_CLK_TCK")


def photographs(count: int) -> list[bytes]:
    """Encodes images of coloured blobs, 240 x 320."""
    random = np.random.default_rng(0)
    images = []
    for _ in range(count):
        blobs = random.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        content = io.BytesIO()
        Image.fromarray(blobs).resize((320, 240), Image.Resampling.BICUBIC).save(content, "JPEG")
        images.append(content.getvalue())
    return images


@dataclass(kw_only=True)
class Service:
    """Holds a running service."""

    process: "subprocess.Popen[str]"
    host: str
    port: int

    def get(self, path: str) -> str:
        """Returns what a path says."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        connection.request("GET", path)
        said = connection.getresponse().read().decode()
        connection.close()
        return said

    def metric(self, name: str) -> float:
        """Returns a number of /metrics, summed over its labels."""
        lines = self.get("/metrics").splitlines()
        named = [line for line in lines if line.split("{")[0].split(" ")[0] == name]
        return sum(float(line.rsplit(" ", 1)[1]) for line in named)


@contextmanager
def service(log: Path, *flags: str, module: str = "vlmill.extract.cli") -> Iterator[Service]:
    """Runs `extract-rois serve`, or that of another command's module, at a free port."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", module, "serve", "--port", "0", *flags],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            assert process.stdout is not None
            parts = urlsplit(process.stdout.readline().split(" ")[-1].strip())
            assert parts.hostname and parts.port, log.read_text()
            yield Service(process=process, host=parts.hostname, port=parts.port)
            process.terminate()
            assert process.wait(60) == 0, log.read_text()[-2_000:]
        finally:
            process.kill()
            process.wait()


@dataclass(kw_only=True)
class Load:
    """Counts what clients got: seconds of each answer, and the others' statuses and seconds."""

    seconds: list[float] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    refused_seconds: list[float] = field(default_factory=list)
    wall: float = 0.0


def loaded(
    running: Service,
    images: Sequence[bytes],
    count: int,
    clients: int,
    seconds: float = math.inf,
    patience: float = math.inf,
) -> Load:
    """Sends ``count`` requests of an image each by ``clients`` connections, but none that would
    begin after ``seconds``. Clients wait as a 429 says, but not for longer than ``patience``.
    """
    load, numbers, lock = Load(), iter(range(count)), threading.Lock()
    end = time.perf_counter() + seconds

    def client() -> None:
        connection = http.client.HTTPConnection(running.host, running.port, timeout=120)
        headers = {"content-type": "image/jpeg", "accept": "application/vnd.apache.arrow.stream"}
        while True:
            with lock:
                number = next(numbers, None)
            if number is None or time.perf_counter() > end:
                connection.close()
                return
            begin = time.perf_counter()
            body = images[number % len(images)]
            connection.request("POST", "/v1/regions", body, headers)
            answer = connection.getresponse()
            answer.read()
            with lock:
                if answer.status == 200:
                    load.seconds.append(time.perf_counter() - begin)
                else:
                    load.refused.append(answer.status)
                    load.refused_seconds.append(time.perf_counter() - begin)
            if answer.status == 429:
                connection.close()  # the service would meanwhile
                left = end - time.perf_counter()
                time.sleep(max(0.0, min(int(answer.headers["retry-after"]), patience, left)))

    threads = [threading.Thread(target=client) for _ in range(clients)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    load.wall = time.perf_counter() - begin
    return load


def cpu_seconds(running: Service) -> tuple[float, float]:
    """Returns the CPU seconds of the front process, and of those that compute."""
    front = running.process.pid
    workers = [pid for child in children(front) for pid in children(child)]
    return seconds_of(front), sum(map(seconds_of, workers))


def seconds_of(pid: int) -> float:
    """Returns the CPU seconds of a process."""
    stat = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, stat[11:13])) / TICKS


def children(pid: int) -> list[int]:
    """Returns the processes that a process has started."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for file in files for word in file.read_text().split()]


def held_bytes(pid: int, what: str = "VmRSS") -> int:
    """Returns the memory of a process, or with VmHWM the most that it has had."""
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(row.split()[1]) * 1_024 for row in rows if row.startswith(f"{what}:"))


def waiting(seconds: Sequence[float]) -> dict[str, float]:
    """Returns how long answers take, in milliseconds."""
    return {f"p{q}_ms": round(1_000 * float(np.percentile(seconds, q)), 1) for q in (50, 95, 99)}
