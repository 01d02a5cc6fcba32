"""Measures `extract-rois serve` under overload: clients, connections, large bodies, kills.

`serve.py` runs these measurements.
"""

import base64
import http.client
import json
import os
import resource
import selectors
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from serving import Service, children, held_bytes, loaded, waiting
from shell import print_line

BURST = 170
BURST_SECONDS = 15
BODY_BYTES = 31 * 2**20
BODIES = 16
HEALTH_LOOKS = 50


def measure_clients(
    running: Service, images: Sequence[bytes], clients: int, seconds: float
) -> None:
    """Prints the rate and waiting times of ``clients`` that each send one request after another."""
    load = loaded(running, images, 10**9, clients, seconds=seconds)
    print_line(
        f"serve tiny, {clients} clients for {seconds:g} s",
        round(len(load.seconds) / load.wall, 2),
        "requests/s",
        refused=len(load.refused),
        statuses=dict(Counter(load.refused)),
        **waiting(load.seconds),
    )


def measure_burst(running: Service, images: Sequence[bytes], count: int) -> None:
    """Prints the outcomes of ``count`` simultaneous requests, more than the deadline allows."""
    loaded(running, images, 4, 1)  # the pace is known
    load = loaded(running, images, count, count, patience=0.0)
    print_line(
        f"serve tiny, {count} requests together, --seconds {BURST_SECONDS}",
        len(load.seconds),
        "answered",
        refused=dict(Counter(load.refused)),
        refused_p50_ms=round(1_000 * float(np.median(load.refused_seconds or [0.0])), 1),
        refused_max_ms=round(1_000 * max(load.refused_seconds, default=0.0), 1),
        **waiting(load.seconds),
    )


def allow_sockets(count: int) -> int:
    """Raises the limit of open files, also for services; returns how many sockets it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 512
    if soft < wanted:
        soft = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(count, soft - 512)


@contextmanager
def idle_connections(running: Service, count: int) -> Iterator[list[socket.socket]]:
    """Opens connections that send nothing, as fast as possible."""
    sockets, waiting_for = [], selectors.DefaultSelector()
    try:
        for _ in range(count):
            connection = socket.socket()
            connection.setblocking(False)
            connection.connect_ex((running.host, running.port))
            waiting_for.register(connection, selectors.EVENT_WRITE)
            sockets.append(connection)
            while len(waiting_for.get_map()) > 512:
                for key, _ in waiting_for.select(1.0):
                    waiting_for.unregister(key.fileobj)
        yield sockets
    finally:
        waiting_for.close()
        for connection in sockets:
            connection.close()


def look(running: Service) -> float:
    """Returns the seconds until /healthz responds on a new connection."""
    begin = time.perf_counter()
    assert json.loads(running.get("/healthz"))["status"] == "ok"
    return time.perf_counter() - begin


def measure_idle(running: Service, images: Sequence[bytes], count: int, name: str) -> None:
    """Prints the response time of /healthz before, while and after ``count`` connections are
    opened that send nothing.
    """
    before = held_bytes(running.process.pid)
    alone = [look(running) for _ in range(HEALTH_LOOKS)]
    during, stopped = [look(running)], threading.Event()

    def keep_looking() -> None:
        while not stopped.is_set():
            during.append(look(running))

    looking = threading.Thread(target=keep_looking)
    looking.start()
    begin = time.perf_counter()
    with idle_connections(running, count):
        opened = time.perf_counter() - begin
        stopped.set()
        looking.join()
        occupied = [look(running) for _ in range(HEALTH_LOOKS)]
        num_open = running.metric("vlmill_connections")
        memory = held_bytes(running.process.pid) - before
        load = loaded(running, images, 1, 1)
    print_line(
        f"serve tiny, /healthz with {count} idle connections, {name}",
        round(1_000 * max(occupied), 1),
        "ms at most",
        limit=1_000,
        p50_ms=round(1_000 * float(np.median(occupied)), 1),
        without_max_ms=round(1_000 * max(alone), 1),
        without_p50_ms=round(1_000 * float(np.median(alone)), 1),
        while_opened_max_ms=round(1_000 * max(during), 1),
        while_opened_p50_ms=round(1_000 * float(np.median(during)), 1),
        opened_seconds=round(opened, 1),
        held=int(num_open),
        closed=int(running.metric("vlmill_connections_closed_total")),
        accept_errors=int(running.metric("vlmill_accept_errors_total")),
        more_mib=round(memory / 2**20, 1),
        image_answered=len(load.seconds),
    )


def measure_kills(running: Service, images: Sequence[bytes], count: int) -> None:
    """Prints the seconds until a worker is ready again that is killed while it computes."""
    pauses, stopped = [], threading.Event()
    loads = []

    def keep_asking() -> None:
        while not stopped.is_set():
            loads.append(loaded(running, images, 8, 4))

    asking = threading.Thread(target=keep_asking)
    asking.start()
    for kill in range(1, count + 1):
        (server,) = (pid for pid in children(running.process.pid) if children(pid))
        os.kill(children(server)[0], signal.SIGKILL)
        begin = time.perf_counter()
        while running.metric("vlmill_worker_restarts_total") < kill or not running.metric(
            "vlmill_workers_ready"
        ):
            time.sleep(0.02)
        pauses.append(time.perf_counter() - begin)
        num_items = running.metric("vlmill_items_total")
        while running.metric("vlmill_items_total") == num_items:
            time.sleep(0.1)
    stopped.set()
    asking.join()
    print_line(
        f"serve tiny, {count} kills of the worker, 4 clients",
        round(float(np.median(pauses)), 2),
        "s until it is ready again",
        longest=round(max(pauses), 2),
        answered=sum(len(load.seconds) for load in loads),
        refused=dict(Counter(status for load in loads for status in load.refused)),
    )


def measure_bodies(running: Service) -> None:
    """Prints the peak memory of the front process for large bodies of each kind."""
    image = bytes(BODY_BYTES // 4 * 3)
    text = json.dumps({"pictures": [base64.b64encode(image).decode()], "x": "\U0001f600"})
    part = b'--edge\r\nContent-Disposition: form-data; name="a"; filename="a.jpg"\r\n\r\n'
    kinds = {
        "image/jpeg": bytes(BODY_BYTES),
        "multipart/form-data; boundary=edge": part + bytes(BODY_BYTES) + b"\r\n--edge--\r\n",
        "application/json": text.encode(),
    }
    before = held_bytes(running.process.pid)
    for kind, body in kinds.items():
        statuses: list[int] = []

        def post(kind: str = kind, body: bytes = body, statuses: list[int] = statuses) -> None:
            connection = http.client.HTTPConnection(running.host, running.port, timeout=120)
            try:
                connection.request("POST", "/v1/regions", body, {"content-type": kind})
                statuses.append(connection.getresponse().status)
            except ConnectionError:  # refused, and closed while the body was being sent
                statuses.append(0)
            connection.close()

        threads = [threading.Thread(target=post) for _ in range(BODIES)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        most = held_bytes(running.process.pid, "VmHWM") - before
        print_line(
            f"serve tiny, {BODIES} bodies of {BODY_BYTES >> 20} MiB together, {kind.split(';')[0]}",
            round(most / 2**20),
            "MiB more at most so far",
            limit=16 * 32 + 96,
            statuses=dict(Counter(statuses)),
        )
