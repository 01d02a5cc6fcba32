"""Measures a card's own rates: launches, products of a step's shapes, and lists of tensors."""

import json
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmarks.gpu_check.measuring import copy_peak
from torch import Tensor

from vlmill.train.devices.throughput import wait_for

# Rows, inner and columns of products in a packed step of ViLBERT, then of longer batches.
SHAPES = (
    (3529, 768, 768),
    (3529, 768, 3072),
    (3529, 3072, 768),
    (768, 3529, 3072),
    (14000, 768, 3072),
    (14000, 768, 768),
)
MATRICES, MATRIX_SHAPE = 60, (2304, 768)
VECTORS, VECTOR_LENGTH = 328, 768


def card_rates(device: torch.device, peak: float) -> dict[str, float]:
    """Returns the rates of products (at ``peak`` operations/s) and copies, on a GPU also those of
    single operations.
    """
    rates = {"peak_tflops": round(peak / 1e12, 1), "copy_tb_s": round(copy_peak(device) / 1e12, 3)}
    if device.type != "cuda":
        return rates
    gradients = gradient_like_tensors(device)
    return rates | launch_times(device) | product_shares(device, peak) | list_times(gradients)


def launch_times(device: torch.device) -> dict[str, float]:
    """Returns the microseconds that the host takes to launch a small kernel, without and with the
    wait for the last one.
    """
    values, launches = torch.zeros(8, device=device), 5000
    for _ in range(100):
        values.add_(1)
    wait_for(device)
    started = time.perf_counter()
    for _ in range(launches):
        values.add_(1)
    queued_s = time.perf_counter() - started
    wait_for(device)
    finished_s = time.perf_counter() - started
    return {
        "launch_us": round(queued_s / launches * 1e6, 2),
        "launch_and_run_us": round(finished_s / launches * 1e6, 2),
    }


def product_shares(
    device: torch.device, peak: float, shapes: tuple[tuple[int, int, int], ...] = SHAPES
) -> dict[str, float]:
    """Returns the share of ``peak`` that bfloat16 products of these shapes reach."""
    shares = {}
    for rows, inner, columns in shapes:
        left = torch.randn(rows, inner, device=device, dtype=torch.bfloat16)
        right = torch.randn(inner, columns, device=device, dtype=torch.bfloat16)
        seconds = mean_seconds(partial(torch.matmul, left, right), device, 100, warm_up=20)
        shares[f"{rows}x{inner}x{columns}"] = round(2 * rows * inner * columns / seconds / peak, 3)
    return shares


def gradient_like_tensors(device: torch.device) -> list[Tensor]:
    """Returns tensors of about the number and sizes that a model's gradients have."""
    matrices = [torch.randn(*MATRIX_SHAPE, device=device) for _ in range(MATRICES)]
    return matrices + [torch.randn(VECTOR_LENGTH, device=device) for _ in range(VECTORS)]


def list_times(tensors: list[Tensor]) -> dict[str, float]:
    """Returns the milliseconds to scale all the tensors, by factors on the device and by Python
    numbers.
    """
    device = tensors[0].device
    factors = list(torch.ones(len(tensors), device=device).unbind())
    numbers = [1.0] * len(tensors)
    works: dict[str, Callable[[], object]] = {
        "foreach_mul_by_tensors_ms": lambda: torch._foreach_mul_(tensors, factors),
        "foreach_mul_by_numbers_ms": lambda: torch._foreach_mul_(tensors, numbers),
    }
    return {
        name: round(1e3 * mean_seconds(work, device, 10, warm_up=3), 3)
        for name, work in works.items()
    }


def mean_seconds(
    work: Callable[[], object], device: torch.device, rounds: int, *, warm_up: int
) -> float:
    """Returns the mean seconds of ``work`` when the device is waited for after all rounds only."""
    for _ in range(warm_up):
        work()
    wait_for(device)
    started = time.perf_counter()
    for _ in range(rounds):
        work()
    wait_for(device)
    return (time.perf_counter() - started) / rounds


REASON_LENGTH = 400
TRACEBACK_LINES = 3


class Record:
    """Prints each result and appends it to a file, with the seconds since the record was opened."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1, encoding="utf-8")
        self._started = time.perf_counter()

    def seconds(self) -> float:
        """Returns the seconds since the record was opened."""
        return time.perf_counter() - self._started

    def write(self, part: str, **fields: Any) -> None:
        """Writes a line: the part's name, the time and the fields."""
        line = json.dumps({"part": part, "at_s": round(self.seconds(), 1), **fields})
        print(line, flush=True)
        self._file.write(line + "\n")

    def attempt(self, part: str, work: Callable[[], object]) -> bool:
        """Runs ``work``; an exception becomes the part's line. Returns False for an exception."""
        try:
            work()
        except Exception as error:
            lines = traceback.format_exc().splitlines()
            print(*lines, sep="\n", file=sys.stderr)
            reason = f"{type(error).__name__}: {error}"[:REASON_LENGTH]
            self.write(part, failed=reason, where=lines[-TRACEBACK_LINES:])
            return False
        return True

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
