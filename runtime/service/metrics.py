"""Counts requests, images and workers for Prometheus.

All counters are in the front process: workers report with each batch, so the sums include all
processes, and a worker that dies loses none.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Holds the counters of one service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "Requests answered.", ("path", "status"))
        self.request_seconds = Histogram(
            "vlmill_request_seconds",
            "Seconds from a request's headers to the end of its response.",
            ("path",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.items = self._counter("items", "Images or questions computed.")
        self.rejects = self._counter("rejects", "Images without a row, by reason.", ("reason",))
        self.compute_seconds = self._counter("compute_seconds", "Seconds spent in workers.")
        self.batch_items = Histogram(
            "vlmill_batch_items",
            "Images or questions in a batch.",
            buckets=SIZES,
            registry=self.registry,
        )
        self.refusals = self._counter("refusals", "Requests refused, by reason.", ("reason",))
        self.closed = self._counter(
            "connections_closed", "Connections closed by the service, by reason.", ("reason",)
        )
        self.accept_errors = self._counter("accept_errors", "Connections that were not accepted.")
        self.restarts = self._counter("worker_restarts", "Restarted workers.")
        self.errors = self._counter("errors", "Internal server errors.")

    def _counter(self, name: str, what: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"vlmill_{name}", what, labels, registry=self.registry)

    def watch(self, name: str, what: str, value: Callable[[], float]) -> None:
        """Adds a number that is computed whenever the metrics are read."""
        Gauge(f"vlmill_{name}", what, registry=self.registry).set_function(value)

    def computed(self, items: int, seconds: float) -> None:
        """Counts a batch."""
        self.items.inc(items)
        self.compute_seconds.inc(seconds)
        self.batch_items.observe(items)

    def text(self) -> bytes:
        """Returns all metrics in Prometheus's text format."""
        return generate_latest(self.registry)


def resident_bytes(processes: Iterable[int | None]) -> float:
    """Returns the memory that these processes and this one hold, summed."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = 0
    for process in (os.getpid(), *processes):
        try:
            total += page * int(Path(f"/proc/{process}/statm").read_text().split()[1])
        except (OSError, IndexError, ValueError):
            continue  # it has just ended
    return float(total)
