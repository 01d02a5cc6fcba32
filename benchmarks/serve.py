"""Measures requests per second, latency and memory of `extract-rois serve`.

Prints lines of JSON. Images are generated, 240 x 320, the network is `tiny` with random weights,
and one thread computes. ``peer`` is the rate at which the engine of `extract-rois run` makes the
same images' rows in this process. Loads and the peer take turns, ROUNDS times at each number of
clients: ``ratio`` is the median over the rounds of the share of the peer's rate, the mean of before
and after, that requests get (goal: 0.9). Clients are threads here, each with a connection that is
kept: what they, the front process and the worker take, they take from the same cores. ``cpu_ratio``
compares CPU seconds of the worker alone, ``front_ms`` is the CPU time of the front process for each
request. One load meets a queue that is too short for it: its clients wait as a 429 says. Memory is
looked at with smaller images, as it is the number of requests that counts. Then the service is
overloaded with clients, simultaneous requests, idle connections and large bodies, and its worker is
killed (`serve_overload.py`). ``--requests 0 --long 0 --r101 0`` measures only that.

    python benchmarks/serve.py --full
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from serve_overload import (
    BURST,
    BURST_SECONDS,
    allow_sockets,
    measure_bodies,
    measure_burst,
    measure_clients,
    measure_idle,
    measure_kills,
)
from serving import Service, cpu_seconds, loaded, photographs, service, waiting
from shell import parse_form, print_line

SHORT = {
    **{"requests": 50, "concurrency": (1, 2, 8), "long": 1_000, "r101": 0},
    **{"overload": 0, "idle": 1_000, "kills": 1},
}
FULL = {
    **{"requests": 100, "concurrency": (1, 2, 4, 8, 16, 32), "long": 10_000, "r101": 20},
    **{"overload": 120, "idle": 10_000, "kills": 10},
}
TINY = ("--arch", "tiny", "--short-side", "240", "--long-side", "400")
SMALL = ("--arch", "tiny", "--short-side", "64", "--long-side", "112", "--max-boxes", "8")
R101 = ("--arch", "r101")
SHORT_QUEUE = ("--max-images", "4", "--queue", "4")
ROUNDS = 5
CLIENTS = 64
GOAL = 0.9
WARM = 20
TICKS = os.sysconf("SC_CLK_TCK")


class Plain:
    """Makes rows in this process as `extract-rois run` does."""

    def __init__(self, flags: Sequence[str], images: Sequence[bytes], folder: Path) -> None:
        from vlmill.extract.cli import parser
        from vlmill.extract.from_flags import make_config, make_detector
        from vlmill.extract.images.plan import plan_images
        from vlmill.extract.run.job import Job

        for number, content in enumerate(images):
            (folder / f"{number}.jpg").write_bytes(content)
        words = ["run", str(folder), "--output", str(folder), *flags]
        arguments = parser().parse_args(words)
        self.job = Job(
            plan=plan_images([str(folder)]),
            output=folder,
            detector=make_detector(arguments),
            config=make_config(arguments),
        )

    def rate(self) -> tuple[float, float]:
        """Returns images a second of the clock, and a CPU second."""
        from vlmill.extract.run.devices import WorkerSettings, start_engine
        from vlmill.extract.run.job import Part, compute_results

        job = self.job
        wall, cpu = time.perf_counter(), time.process_time()
        with start_engine(WorkerSettings(), job.detector, job.config, None) as engine:
            part = Part(index=0, total=1, images=job.plan)
            count = sum(1 for _ in compute_results(engine, job, [part]))
        return count / (time.perf_counter() - wall), count / (time.process_time() - cpu)


@dataclass(kw_only=True)
class Rounds:
    """Collects the rounds at a number of clients."""

    seconds: list[float] = field(default_factory=list)
    refused: int = 0
    rates: list[float] = field(default_factory=list)
    peers: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    cpu_shares: list[float] = field(default_factory=list)
    front: float = 0.0  # CPU seconds


def measure(
    running: Service,
    plain: Plain,
    images: Sequence[bytes],
    name: str,
    *,
    count: int,
    concurrency: Sequence[int],
    rounds: int,
) -> None:
    """Prints rates and waiting at rising concurrency, ``count`` requests at each."""
    rounds = min(rounds, count)
    loaded(running, images, min(WARM, count), 1)
    plain.rate()
    before = plain.rate()
    results = {clients: Rounds() for clients in concurrency}
    for _ in range(rounds):
        for clients, result in results.items():
            fronts, workers = cpu_seconds(running)
            load = loaded(running, images, count // rounds, clients)
            fronts_after, workers_after = cpu_seconds(running)
            after = plain.rate()
            peer, peer_cpu = ((one + other) / 2 for one, other in zip(before, after, strict=True))
            before = after
            rate, done = len(load.seconds) / load.wall, len(load.seconds)
            result.rates.append(rate)
            result.peers.append(peer)
            result.shares.append(rate / peer)
            result.cpu_shares.append(done / (workers_after - workers) / peer_cpu)
            result.front += fronts_after - fronts
            result.seconds += load.seconds
            result.refused += len(load.refused)
    for clients, result in results.items():
        print_line(
            f"serve {name}, {clients} clients",
            round(float(np.median(result.rates)), 2),
            "requests/s",
            peer=round(float(np.median(result.peers)), 2),
            ratio=round(float(np.median(result.shares)), 3),
            goal=GOAL,
            cpu_ratio=round(float(np.median(result.cpu_shares)), 3),
            front_ms=round(1_000 * result.front / len(result.seconds), 1),
            refused=result.refused,
            **waiting(result.seconds),
        )


def measure_refusals(running: Service, images: Sequence[bytes], count: int, clients: int) -> None:
    """Prints what becomes of requests that meet a queue which is too short for them."""
    load = loaded(running, images, count, clients)
    print_line(
        f"serve tiny, {clients} clients, {' '.join(SHORT_QUEUE)}",
        round(len(load.seconds) / load.wall, 2),
        "requests/s",
        refused=len(load.refused),
        other_statuses=sorted(set(load.refused) - {429}),
        **waiting(load.seconds),
    )


def measure_memory(running: Service, images: Sequence[bytes], count: int) -> None:
    """Prints by how much the processes grow over ``count`` requests, the first tenth left out."""
    sizes, refused = [], 0
    for _ in range(10):
        refused += len(loaded(running, images, count // 10, 4).refused)
        sizes.append(running.metric("vlmill_resident_bytes") / 2**20)
    print_line(
        f"serve tiny, memory over {count} requests",
        round(sizes[-1] - sizes[0], 1),
        "MiB more",
        by_tenths_mib=[round(size) for size in sizes],
        refused=refused,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = partial(parser.add_argument, type=int, metavar="N")
    add("--requests", help="requests for each --concurrency; 0: none")
    add("--long", help="requests during which memory is measured; 0: none")
    add("--r101", help="images for ResNet-101; 0: none")
    add("--overload", help=f"seconds of overload by {CLIENTS} clients; 0: none")
    add("--idle", help="idle connections; 0: none")
    add("--kills", help="kills of the worker; 0: none")
    parser.add_argument("--concurrency", type=int, nargs="+", metavar="N")
    options = parse_form(parser, argv, short=SHORT, full=FULL)
    images = photographs(20)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tiny").mkdir()
        plain = Plain(TINY, images, folder / "tiny")
        measured = partial(measure, count=options.requests, concurrency=options.concurrency)
        if options.requests:
            with service(folder / "log", *TINY, "--queue", "512") as running:
                measured(running, plain, images, "tiny", rounds=ROUNDS)
            with service(folder / "log", *TINY, *SHORT_QUEUE) as running:
                measure_refusals(running, images, options.requests, options.concurrency[-1])
        if options.long:
            with service(folder / "log", *SMALL) as running:
                measure_memory(running, images, options.long)
        if options.overload:
            with service(folder / "log", *TINY) as running:
                measure_clients(running, images, CLIENTS, options.overload)
            with service(folder / "log", *TINY, "--seconds", str(BURST_SECONDS)) as running:
                measure_burst(running, images, BURST)
            with service(folder / "log", *TINY) as running:
                measure_bodies(running)
        if options.idle:
            count = allow_sockets(options.idle)
            more = ("--max-connections", str(count + 100))
            for flags in ((), more):
                with service(folder / "log", *TINY, *flags) as running:
                    measure_idle(running, images, count, " ".join(flags) or "512 at most")
        if options.kills:
            with service(folder / "log", *TINY) as running:
                measure_kills(running, images, options.kills)
        if options.r101:
            (folder / "r101").mkdir()
            few = images[: options.r101]
            plain = Plain(R101, few, folder / "r101")
            with service(folder / "log", *R101) as running:
                measured(
                    running, plain, few, "r101", count=options.r101, concurrency=(2,), rounds=1
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
