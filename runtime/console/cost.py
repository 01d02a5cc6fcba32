"""Estimates the cost of a run before it begins: inputs, output, hours, and disk space.

Each job computes its estimate with a pure function. This module defines the estimate, measures a
rate on the first items, prints the table of ``--dry-run``, and refuses a disk that is too small.
"""

import argparse
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmill.schemas.errors import InputError

SECONDS_MEASURED = 10.0
WIDTH = 10


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Holds the number of items done, and the measured seconds."""

    items: float
    seconds: float
    unit: str

    def seconds_for(self, items: float) -> float | None:
        """Returns the seconds for ``items`` at this rate; None if nothing could be measured."""
        return items * self.seconds / self.items if self.items and self.seconds > 0 else None


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The cost of a run. Bytes count the files in --output.

    ``min_bytes`` is the certain minimum: a disk with less space is refused. ``max_bytes`` is the
    maximum, and ``expected_bytes`` the size if all items are like the first ones; None if only the
    run itself can tell. ``memory`` describes the device's memory. ``note`` states what the figures
    omit.
    """

    inputs: Mapping[str, str]  # flag or name -> amount
    min_bytes: int = 0
    max_bytes: int | None = None
    expected_bytes: int | None = None
    seconds: float | None = None
    rate: Rate | None = None
    memory: str = ""
    note: str = ""


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    """Declares ``--dry-run``."""
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="estimate disk space and run time and print the inputs and the free space, "
        "without writing anything (measures the first items for some seconds)",
    )


def add_cost_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares ``--dry-run`` and ``--force``."""
    add_dry_run(parser)
    add_force(parser)


def add_force(parser: argparse.ArgumentParser) -> None:
    """Declares ``--force``, against the refusal of :func:`require_disk_space`."""
    parser.add_argument(
        "--force", action="store_true", help="run even if the disk is too small for the output"
    )


def print_estimate(estimate: Estimate, output: str | Path) -> int:
    """Prints the table of a dry run; returns the exit status, 0."""
    print("\n".join(estimate_lines(estimate, free_bytes(output))))
    return 0


def size_words(count: int) -> str:
    """Formats bytes for people: 1.5 GB."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def time_words(seconds: float) -> str:
    """Formats seconds for people: long times as minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def estimate_lines(estimate: Estimate, free_bytes: int | None) -> list[str]:
    """Returns the table of ``--dry-run``; ``free_bytes`` None: the disk cannot be queried."""
    facts = [("input", f"{name} {count}") for name, count in estimate.inputs.items()]
    facts.append(("output", _output_words(estimate)))
    hours = "unknown" if estimate.seconds is None else time_words(estimate.seconds)
    if estimate.rate is not None and estimate.rate.seconds > 0:
        rate = estimate.rate
        hours += (
            f", at {rate.items / rate.seconds:.3g} {rate.unit}/s "
            f"(measured on {rate.items:.4g} in {rate.seconds:.1f} s)"
        )
    facts.append(("time", hours))
    if estimate.memory:
        facts.append(("memory", estimate.memory))
    free = "unknown" if free_bytes is None else size_words(free_bytes)
    shortage = "" if free_bytes is None or estimate.min_bytes <= free_bytes else ": NOT ENOUGH"
    facts.append(("free", f"{free} at --output{shortage}"))
    if estimate.note:
        facts.append(("note", estimate.note))
    return [f"{name:{WIDTH}} {value}" for name, value in facts] + ["dry run: nothing was written"]


def _output_words(estimate: Estimate) -> str:
    min_bytes, max_bytes = estimate.min_bytes, estimate.max_bytes
    if estimate.expected_bytes is not None:
        return f"about {size_words(estimate.expected_bytes)}, if all is like the first items"
    if max_bytes is None:
        return f"at least {size_words(min_bytes)}" if min_bytes else "unknown until it is made"
    if min_bytes == max_bytes:
        return size_words(max_bytes)
    return (
        f"{size_words(min_bytes)} to {size_words(max_bytes)}"
        if min_bytes
        else f"up to {size_words(max_bytes)}"
    )


def free_bytes(folder: str | Path) -> int | None:
    """Returns the free bytes at ``folder``, which may not exist yet; None for a remote path."""
    if "://" in str(folder):
        return None
    path = os.path.abspath(folder)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return shutil.disk_usage(path).free


def require_disk_space(min_bytes: int, folder: str | Path, *, force: bool) -> None:
    """Raises InputError if the disk of ``folder`` is smaller than the certain output of a run."""
    free = free_bytes(folder)
    if force or free is None or min_bytes <= free:
        return
    raise InputError(
        f"--output {folder}: the run writes at least {size_words(min_bytes)}, {size_words(free)} "
        "are free there; give another disk, or --force to try"
    )


def compute_rate(times: Sequence[float], unit: str) -> Rate:
    """Returns the rate of items that ended at ``times[1:]``.

    The first item, which loads modules, counts only if it is the only one.
    """
    start = 1 if len(times) > 2 else 0
    return Rate(items=len(times) - 1 - start, seconds=times[-1] - times[start], unit=unit)


def measure_rate(
    items: Iterable[Any],
    unit: str,
    *,
    weight: Callable[[Any], float] = lambda _: 1.0,
    limit_s: float = SECONDS_MEASURED,
    clock: Callable[[], float] = time.perf_counter,
) -> Rate:
    """Iterates over ``items`` until they end or ``limit_s`` seconds have passed; returns their
    rate.

    ``weight`` is the amount that an item counts, in ``unit``.
    """
    start = now = clock()
    done = 0.0
    for item in items:
        done += weight(item)
        now = clock()
        if now - start >= limit_s:
            break
    return Rate(items=done, seconds=now - start, unit=unit)
