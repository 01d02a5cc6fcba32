"""Measures requests per second of `train-vl serve --index`, compared with /healthz.

Prints lines of JSON. Vectors are generated as in search.py, in an index of `--type`; the service
answers from it without a checkpoint. Rounds of both paths take turns, with the same client, which
keeps its connections and reads the responses: ``ratio`` is the median over the rounds of the rate
of /v1/similar divided by that of /healthz just before it (goal: 0.6), ``cpu_ratio`` the same with
CPU seconds of the service instead of seconds. Each request asks for the ten items nearest to a
random item. At the end the index is replaced while requests are sent: none may fail.

    python benchmarks/serve_similar.py --full
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pyarrow as pa
from search import generated
from serving import Service, held_bytes, seconds_of, service, waiting
from shell import add_counts, new_parser, parse_form, print_line

from vlmill.inference.search.building import TYPES, build_index, find_neighbours, measured_index
from vlmill.inference.search.index import save_index
from vlmill.inference.search.table import Vectors
from vlmill.runtime.console.threads import faiss_threads

SHORT = {"vectors": 10_000, "requests": 200, "rounds": 1}
FULL = {"vectors": 100_000, "requests": 2_000, "rounds": 5}
CLIENTS = (1, 8)
GOAL = 0.6
TOP = 10


def write_index(folder: Path, options: argparse.Namespace, seed: int) -> None:
    """Builds and saves an index of generated items."""
    matrix = generated(options.vectors, options.width, seed)
    ids = pa.array([f"item-{number}" for number in range(len(matrix))])
    texts = pa.array([f"the title of item {number}" for number in range(len(matrix))])
    about = {"kind": pa.array(["pair"] * len(matrix)), "image_id": ids, "pair_id": ids}
    origin = {"checkpoint": None, "weights_sha256": "generated", "variant": "interbert"}
    vectors = Vectors(matrix=matrix, about=pa.table({**about, "text": texts}), origin=origin)
    begin = time.process_time()
    index = measured_index(build_index(vectors, options.type), matrix, matrix, kind="pair")
    if options.neighbours:
        index = find_neighbours(index, options.neighbours)
    save_index(index, folder)
    print_line(
        "serve_similar/build",
        time.process_time() - begin,
        "CPU s",
        type=options.type,
        vectors=len(matrix),
        neighbours=options.neighbours,
        recall_at_10=index.settings.get("recall_at_10"),
        parameters=index.settings["parameters"],
    )


@dataclass(kw_only=True)
class Round:
    """Holds what clients measured: seconds of each response, of all, and of the service's CPU."""

    seconds: list[float] = field(default_factory=list)
    failed: int = 0
    wall: float = 0.0
    cpu: float = 0.0


def healthz(number: int) -> bytes:
    """Returns a request for /healthz."""
    return b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"


def similar(vectors: int, number: int) -> bytes:
    """Returns a request for the items near one."""
    item = int(np.random.default_rng(number).integers(vectors))
    body = json.dumps({"items": [f"item-{item}"], "top": TOP}).encode()
    head = "POST /v1/similar HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def send(running: Service, make: Callable[[int], bytes], count: int, clients: int) -> Round:
    """Sends ``count`` requests over ``clients`` connections."""
    result, numbers, lock = Round(), iter(range(count)), threading.Lock()
    requests = [make(number) for number in range(count)]
    begin, cpu = time.perf_counter(), seconds_of(running.process.pid)

    def client() -> None:
        with socket.create_connection((running.host, running.port), timeout=60) as connection:
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                start = time.perf_counter()
                connection.sendall(requests[number])
                is_good = read_response(connection)
                with lock:
                    result.seconds.append(time.perf_counter() - start)
                    result.failed += not is_good

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    result.wall = time.perf_counter() - begin
    result.cpu = seconds_of(running.process.pid) - cpu
    return result


def read_response(connection: socket.socket) -> bool:
    """Reads a response to its end; returns whether its status is 200."""
    content = b""
    while b"\r\n\r\n" not in content:
        content += connection.recv(65_536)
    head, _, body = content.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    left = length - len(body)
    while left > 0:
        left -= len(connection.recv(65_536))
    return head.startswith(b"HTTP/1.1 200")


def measure(running: Service, options: argparse.Namespace, clients: int) -> None:
    """Prints the rates of both paths."""
    ratios, cpu_ratios, rates, healthy, seconds, failed = [], [], [], [], list[float](), 0
    count = options.requests
    for _ in range(options.rounds):
        plain = send(running, healthz, count, clients)
        asked = send(running, partial(similar, options.vectors), count, clients)
        rates.append(count / asked.wall)
        healthy.append(count / plain.wall)
        ratios.append(plain.wall / asked.wall)
        cpu_ratios.append(plain.cpu / asked.cpu if asked.cpu else 0.0)
        seconds += asked.seconds
        failed += asked.failed + plain.failed
    print_line(
        f"serve_similar/{clients}",
        statistics.median(rates),
        "requests/s",
        healthz=statistics.median(healthy),
        ratio=statistics.median(ratios),
        cpu_ratio=statistics.median(cpu_ratios),
        goal=GOAL,
        failed=failed,
        front_ms=1_000 * asked.cpu / count,
        **waiting(seconds),
    )


def replace(running: Service, options: argparse.Namespace, link: Path, other: Path) -> None:
    """Makes the link lead to another index while requests are sent, and prints the failures."""
    before, result = running.metric("vlmill_index_loads"), list[Round]()
    stopped = threading.Event()

    def load() -> None:
        while not stopped.is_set():
            result.append(send(running, partial(similar, options.vectors), 100, CLIENTS[-1]))

    sender = threading.Thread(target=load)
    sender.start()
    temporary = link.with_name("next")
    temporary.symlink_to(other)
    temporary.replace(link)
    end = time.monotonic() + 300
    while running.metric("vlmill_index_loads") == before and time.monotonic() < end:
        time.sleep(0.2)
    stopped.set()
    sender.join()
    seconds = [value for one in result for value in one.seconds]
    print_line(
        "serve_similar/replaced",
        running.metric("vlmill_index_loads") - before,
        "indexes",
        requests=len(seconds),
        failed=sum(one.failed for one in result),
        **waiting(seconds),
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = new_parser(__doc__)
    add_counts(
        parser,
        vectors="vectors in the index",
        requests="requests per round",
        rounds="rounds to measure on both paths",
        width=(768, "width of a vector"),
        neighbours=(20, "stored neighbours of each item; 0: search instead"),
    )
    parser.add_argument("--type", choices=TYPES, default="pq")
    options = parse_form(parser, argv, short=SHORT, full=FULL)
    folder = Path(tempfile.mkdtemp())
    try:
        with faiss_threads(1):
            for number in range(2):
                write_index(folder / f"index-{number}", options, number)
        link = folder / "current"
        link.symlink_to(folder / "index-0")
        flags = ("--index", str(link), "--index-seconds", "1")
        with service(folder / "log", *flags, module="vlmill.train.cli") as running:
            send(running, partial(similar, options.vectors), 100, 1)  # warms up
            for clients in CLIENTS:
                measure(running, options, clients)
            print_line("serve_similar/memory", held_bytes(running.process.pid) / 1e6, "MB")
            replace(running, options, link, folder / "index-1")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
