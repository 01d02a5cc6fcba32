"""Requests a second of `extract-rois serve`, their waiting, and its memory, beside a plain run.

Prints lines of JSON. Pictures are generated, 240 x 320, the network is `tiny` with random weights,
and one thread computes. ``peer`` is the rate at which the engine of `extract-rois run` makes the
same pictures' rows in this process, measured before and after each load, the better of the two;
``ratio`` is the share of it that requests get (goal: 0.9). Clients are threads here, each with a
connection that is kept: what they, the front process and the worker take, they take from the same
cores. ``cpu_ratio`` compares CPU seconds of the worker alone.

    python benchmarks/serve.py --full
"""

import argparse
import http.client
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from PIL import Image
from shell import parse_form, result_line

SHORT = {"requests": 200, "concurrency": (1, 2, 8), "long": 1_000, "r101": 0}
FULL = {"requests": 500, "concurrency": (1, 2, 4, 8, 16, 32), "long": 10_000, "r101": 20}
SIZES = {"tiny": ("--short-side", "240", "--long-side", "400"), "r101": ()}
GOAL = 0.9
WARM = 20
TICKS = os.sysconf("SC_CLK_TCK")


def photographs(count: int) -> list[bytes]:
    """Encodes pictures of coloured blobs, 240 x 320."""
    random = np.random.default_rng(0)
    pictures = []
    for _ in range(count):
        blobs = random.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        content = io.BytesIO()
        Image.fromarray(blobs).resize((320, 240), Image.Resampling.BICUBIC).save(content, "JPEG")
        pictures.append(content.getvalue())
    return pictures


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
def service(arch: str, log: Path) -> Iterator[Service]:
    """Runs `extract-rois serve` at a free port."""
    flags = ["--arch", arch, *SIZES[arch], "--port", "0", "--queue", "512"]
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "vlmill.extract.cli", "serve", *flags],
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
    """Counts what clients got: seconds of each answer, and the others' statuses."""

    seconds: list[float] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    wall: float = 0.0


def loaded(running: Service, pictures: Sequence[bytes], count: int, clients: int) -> Load:
    """Sends ``count`` requests of a picture each by ``clients`` connections."""
    load, numbers, lock = Load(), iter(range(count)), threading.Lock()

    def client() -> None:
        connection = http.client.HTTPConnection(running.host, running.port, timeout=120)
        headers = {"content-type": "image/jpeg", "accept": "application/vnd.apache.arrow.stream"}
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                connection.close()
                return
            begin = time.perf_counter()
            body = pictures[number % len(pictures)]
            connection.request("POST", "/v1/regions", body, headers)
            answer = connection.getresponse()
            answer.read()
            with lock:
                if answer.status == 200:
                    load.seconds.append(time.perf_counter() - begin)
                else:
                    load.refused.append(answer.status)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    load.wall = time.perf_counter() - begin
    return load


class Plain:
    """Makes rows in this process as `extract-rois run` does."""

    def __init__(self, arch: str, pictures: Sequence[bytes], folder: Path) -> None:
        from vlmill.extract.cli import parser
        from vlmill.extract.flags import config_of, detector_of
        from vlmill.extract.pictures.plan import plan_pictures
        from vlmill.extract.run.job import Job

        for number, content in enumerate(pictures):
            (folder / f"{number}.jpg").write_bytes(content)
        words = ["run", str(folder), "--output", str(folder), "--arch", arch, *SIZES[arch]]
        arguments = parser().parse_args(words)
        self.job = Job(
            plan=plan_pictures([str(folder)]),
            output=folder,
            detector=detector_of(arguments),
            config=config_of(arguments),
        )

    def rate(self) -> tuple[float, float]:
        """Returns pictures a second of the clock, and a CPU second."""
        from vlmill.extract.run.devices import Crew, engine_of
        from vlmill.extract.run.job import Part, results_of

        job = self.job
        wall, cpu = time.perf_counter(), time.process_time()
        with engine_of(Crew(), job.detector, job.config, None) as engine:
            part = Part(index=0, total=1, pictures=job.plan)
            count = sum(1 for _ in results_of(engine, job, [part]))
        return count / (time.perf_counter() - wall), count / (time.process_time() - cpu)


def worker_seconds(running: Service) -> float:
    """Returns the CPU seconds of the processes that compute."""
    return sum(
        sum(map(int, stat.read_text().rsplit(")", 1)[1].split()[11:13])) / TICKS
        for child in children(running.process.pid)
        for grandchild in children(child)
        for stat in [Path(f"/proc/{grandchild}/stat")]
    )


def children(pid: int) -> list[int]:
    """Returns the processes that a process has started."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for file in files for word in file.read_text().split()]


def line(name: str, value: float, unit: str, **more: object) -> None:
    """Prints a result."""
    print(json.dumps(result_line(name, value, unit, **more)), flush=True)


def measure(
    running: Service,
    plain: Plain,
    pictures: Sequence[bytes],
    options: argparse.Namespace,
    arch: str,
    count: int,
) -> None:
    """Prints rates and waiting at rising concurrency."""
    loaded(running, pictures, min(WARM, count), 1)
    before = plain.rate()
    for clients in options.concurrency:
        cpu = worker_seconds(running)
        load = loaded(running, pictures, count, clients)
        cpu = worker_seconds(running) - cpu
        after = plain.rate()
        peer, peer_cpu = (max(pair) for pair in zip(before, after, strict=True))
        rate = len(load.seconds) / load.wall
        p50, p95, p99 = (1_000 * float(np.percentile(load.seconds, q)) for q in (50, 95, 99))
        line(
            f"serve {arch}, {clients} clients",
            round(rate, 2),
            "requests/s",
            peer=round(peer, 2),
            ratio=round(rate / peer, 3),
            goal=GOAL,
            cpu_ratio=round(len(load.seconds) / cpu / peer_cpu, 3),
            p50_ms=round(p50, 1),
            p95_ms=round(p95, 1),
            p99_ms=round(p99, 1),
            refused=len(load.refused),
        )
        before = after


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = partial(parser.add_argument, type=int, metavar="N")
    add("--requests", help="at each concurrency")
    add("--long", help="requests over which memory is looked at")
    add("--r101", help="pictures for the large network; 0: none")
    parser.add_argument("--concurrency", type=int, nargs="+", metavar="N")
    options = parse_form(parser, argv, short=SHORT, full=FULL)
    pictures = photographs(50)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tiny").mkdir()
        plain = Plain("tiny", pictures, folder / "tiny")
        with service("tiny", folder / "log") as running:
            measure(running, plain, pictures, options, "tiny", options.requests)
            first = running.metric("vlmill_resident_bytes")
            load = loaded(running, pictures, options.long, 4)
            last = running.metric("vlmill_resident_bytes")
            line(
                f"serve tiny, memory over {options.long} requests",
                round((last - first) / 2**20, 1),
                "MiB more",
                before_mib=round(first / 2**20, 1),
                refused=len(load.refused),
            )
        if options.r101:
            (folder / "r101").mkdir()
            few = pictures[: options.r101]
            plain = Plain("r101", few, folder / "r101")
            with service("r101", folder / "log") as running:
                options.concurrency = (2,)
                measure(running, plain, few, options, "r101", options.r101)
    return 0


if __name__ == "__main__":
    sys.exit(main())
