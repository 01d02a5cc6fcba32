"""Measures the loader during training steps: how long the device waits for batches.

Batches are planned, read and pinned as in a run (`vlmill.train.loading.loader`), without worker
processes and with several. The step is ImageBERT's: with up to 100 regions of a pair it has the
most to read.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import torch
from benchmarks.gpu_check.measuring import Setting
from benchmarks.gpu_check.steps import fitting, real_batches, stepper, timed_rounds
from benchmarks.gpu_check.training import (
    CASES,
    Work,
    make_accelerator,
    new_model,
    training_of,
    work_of,
)

from vlmill.train.devices.throughput import wait_for
from vlmill.train.loading.batch import HostBatch
from vlmill.train.loading.loader import batch_loader

WORKERS, TINY_WORKERS = (0, 4), (0, 1)
LARGEST_WAIT = 0.05  # share of a run's time, with workers
# Batches that are not timed: workers start, and what they have planned ahead is used up.
SKIPPED, TINY_SKIPPED = 20, 2
TIMED, TINY_TIMED = 30, 4
IN_MEMORY = 8  # batches of the step by itself

Step = Callable[[HostBatch], object]


@dataclass(frozen=True, kw_only=True)
class Waited:
    """Times a run of some steps: its seconds, those that the host waited for batches, and the
    seconds that the device had nothing to do between steps; None where it cannot tell.
    """

    total_s: float
    host_s: float
    device_s: float | None

    def shares(self) -> dict[str, float | None]:
        """Returns both waits as shares of the time."""
        device = None if self.device_s is None else round(self.device_s / self.total_s, 4)
        return {"host_share": round(self.host_s / self.total_s, 4), "device_share": device}


def run(setting: Setting) -> dict[str, object]:
    """Runs the part: the fastest form's samples per second, beside those of the step by itself."""
    work = work_of(CASES["imagebert"], setting)
    pairs, result = fitting(
        work.stage.batch_size, lambda size: measure(work.with_batches_of(size), setting)
    )
    return result | {"batch_size": pairs}


def measure(work: Work, setting: Setting) -> dict[str, object]:
    """Times the step by itself, and for each number of workers the loader by itself and before
    it.
    """
    size, device = work.stage.batch_size, setting.device
    accelerator = make_accelerator(work.recipe, device)
    training = training_of(new_model(work.recipe), work.recipe, accelerator, pack=True)
    step = stepper(training)
    batches = real_batches(work, TINY_TIMED if setting.tiny else IN_MEMORY, device)
    timed_rounds(step, batches, 1, device)
    alone_s = timed_rounds(step, batches, 2, device).round_s / len(batches)
    forms: dict[str, Any] = {}
    for workers in TINY_WORKERS if setting.tiny else WORKERS:
        loader_s = loader_alone(work, workers, setting)
        waited = beside_step(work, workers, step, setting)
        timed = TINY_TIMED if setting.tiny else TIMED
        forms[f"{workers}_workers"] = {
            "samples_per_second": round(size * timed / waited.total_s, 2),
            "loader_alone": round(size / loader_s, 2),
            **waited.shares(),
        }
    return line_of(forms, size / alone_s)


def batches_of(work: Work, workers: int, setting: Setting, number: int) -> Iterator[HostBatch]:
    """Yields the real loader's first batches."""
    device = setting.device
    if device.type == "cuda":  # the loader's thread wants to know which
        device = torch.device("cuda", torch.cuda.current_device())
    return batch_loader(work.batches, 0, number, workers=workers, device=device)


def loader_alone(work: Work, workers: int, setting: Setting) -> float:
    """Returns seconds for a batch that nothing is done with."""
    skipped, timed = counts(setting)
    batches = batches_of(work, workers, setting, skipped + timed)
    for _ in islice(batches, skipped):
        pass
    started = time.perf_counter()
    for _ in batches:
        pass
    return (time.perf_counter() - started) / timed


def beside_step(work: Work, workers: int, step: Step, setting: Setting) -> Waited:
    """Trains on what the loader makes."""
    skipped, timed = counts(setting)
    batches = batches_of(work, workers, setting, skipped + timed)
    for batch in islice(batches, skipped):
        step(batch)
    return waited_for(batches, step, timed, setting.device)


def counts(setting: Setting) -> tuple[int, int]:
    """Returns batches that are not timed, and that are."""
    return (TINY_SKIPPED, TINY_TIMED) if setting.tiny else (SKIPPED, TIMED)


def waited_for(
    batches: Iterator[HostBatch], step: Step, number: int, device: torch.device
) -> Waited:
    """Times ``number`` steps, each on the next batch of ``batches``."""
    on_device = device.type == "cuda"
    events: list[tuple[Any, Any]] = []
    host_s = 0.0
    wait_for(device)
    started = time.perf_counter()
    for _ in range(number):
        asked = time.perf_counter()
        batch = next(batches)
        host_s += time.perf_counter() - asked
        if on_device:
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begun.record()
            step(batch)
            ended.record()
            events.append((begun, ended))
        else:
            step(batch)
    wait_for(device)
    total_s = time.perf_counter() - started
    return Waited(
        total_s=total_s, host_s=host_s, device_s=idle_seconds(events) if on_device else None
    )


def idle_seconds(events: Sequence[tuple[Any, Any]]) -> float:
    """Seconds from the end of each step on the device to the beginning of the next one."""
    pairs = pairwise(events)
    gaps_ms = (float(ended.elapsed_time(begun)) for (_, ended), (begun, _) in pairs)
    return sum(max(gap, 0.0) for gap in gaps_ms) / 1000


def line_of(forms: dict[str, Any], alone: float) -> dict[str, object]:
    """Returns the result's fields: ``peer`` is the loader without workers, ``limit`` the step
    alone.
    """
    first, *_, last = forms
    value, peer = (forms[name]["samples_per_second"] for name in (last, first))
    shares = [forms[last][name] for name in ("host_share", "device_share")]
    return {
        "value": value,
        "unit": "samples/s",
        "peer": peer,
        "ratio": round(value / peer, 3),
        "limit": round(alone, 2),
        "fraction_of_limit": round(value / alone, 4),
        "largest_wait": LARGEST_WAIT,
        "within_bar": all(share <= LARGEST_WAIT for share in shares if share is not None),
        "forms": forms,
    }
