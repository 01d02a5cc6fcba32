"""Runs a peer in a separate process, with its users' memory settings."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing.connection import Connection
from statistics import median

import torch
import torch.multiprocessing
from torch import Tensor, nn

from vlmill.train.devices.throughput import peak_memory

Make = Callable[[], tuple[nn.Module, Callable[[bool], object]]]
"""Makes a network and its step, which is told whether it has a backward pass."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Holds wall and CPU seconds, and the most memory of the process so far."""

    wall_s: float
    cpu_s: float
    peak_bytes: int = 0  # of the device, where it is a GPU


def timed(work: Callable[[], object]) -> Timing:
    """Returns the seconds that a step takes in this process."""
    started, cpu_started = time.perf_counter(), time.process_time()
    work()
    wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
    device = torch.device("cuda" if torch.cuda.is_initialized() else "cpu")  # type: ignore[no-untyped-call]
    (peak_bytes,) = peak_memory(device).values()
    return Timing(wall_s=wall_s, cpu_s=cpu_s, peak_bytes=peak_bytes)


PRODUCTS = 16
PRODUCT_OPERATIONS = PRODUCTS * 2 * 2048 * 768 * 3072


def products() -> Timing:
    """Times the float32 matrix products whose rate is the limit, of all PRODUCT_OPERATIONS."""
    left, right = _factors()

    def work() -> None:
        for _ in range(PRODUCTS):
            left @ right

    return timed(work)


@cache
def _factors() -> tuple[Tensor, Tensor]:
    return torch.randn(2048, 768), torch.randn(768, 3072)


def measure(works: Mapping[str, Callable[[], Timing]], rounds: int) -> dict[str, Timing]:
    """Medians of the works, taken in turn, so that a busy spell meets all; the first is warm-up."""
    measured: dict[str, list[Timing]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            timing = work()
            if number:
                measured[name].append(timing)
    return {
        name: Timing(
            wall_s=median(one.wall_s for one in timings),
            cpu_s=median(one.cpu_s for one in timings),
            peak_bytes=max(one.peak_bytes for one in timings),
        )
        for name, timings in measured.items()
    }


class Apart:
    """Takes and times, in another process, the step that ``make``, which is sent there, returns."""

    def __init__(self, make: Make) -> None:
        context = torch.multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, make), daemon=True)
        self._process.start()
        other.close()

    def step(self, backward: bool) -> Timing:
        """Takes a step. Raises RuntimeError if the process has ended; it has said why."""
        try:
            self._connection.send(backward)
            timing: Timing = self._connection.recv()
        except (EOFError, OSError) as error:
            raise RuntimeError("the peer's process ended, see above") from error
        return timing

    def close(self) -> None:
        """Ends the process."""
        self._connection.close()
        self._process.join()


def _serve(connection: Connection, make: Make) -> None:
    _, step = make()
    while True:
        try:
            backward = connection.recv()
        except EOFError:
            return
        connection.send(timed(partial(step, backward)))
