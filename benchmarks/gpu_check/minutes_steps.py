"""Measures training steps within a minute or two: rates, the compiler's graphs, waits, kernels and
the host's share.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count, pairwise
from statistics import median_high
from typing import Any
from unittest.mock import patch

import torch
from benchmarks.gpu_check.measuring import (
    Setting,
    kernel_times,
    peak_memory_gb,
    places_of_waits,
    reset_peak_memory,
)
from benchmarks.gpu_check.minutes_card import Record
from benchmarks.gpu_check.steps import count_useful, graphs, real_batches, stepper, timed_rounds
from benchmarks.gpu_check.training import (
    CASES,
    Work,
    make_accelerator,
    new_model,
    training_of,
    work_of,
)
from benchmarks.gpu_check.utilisation import utilisation
from torch._dynamo.utils import counters

from vlmill.train.devices.setup import (
    compile_blocks,
    use_attention_kernel,
    use_half_norms,
    use_residual_kernel,
)
from vlmill.train.devices.throughput import wait_for
from vlmill.train.loading.batch import HostBatch
from vlmill.train.run.step import Training, train_step, with_graph, with_uploads

ROUNDS, TINY_ROUNDS = 4, 1
LARGE_BATCH = 256  # pairs; from here on two batches are enough to compare
LONGEST_KERNELS, KERNEL_NAME_LENGTH = 10, 60


@dataclass(frozen=True, kw_only=True)
class StepCase:
    """Names a variant and the number of pairs in a batch, and how the step is computed."""

    name: str
    variant: str
    pairs: int
    blocks: bool = False  # each block compiled separately
    graph: bool = False  # forward and backward replayed as a CUDA graph
    ahead: bool = False  # the update queued before the host reads the loss
    casts: bool = True  # weights cast once a step
    half_norms: bool = False
    profile: bool = True
    attention_kernel: bool = False  # of our own, for a bias of relative positions
    residual_kernel: bool = False  # likewise, for layer scale


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Holds what the parts share: the setting, the device's measured ``peak`` in operations/s, the
    record, and the tables that have been written so far.
    """

    setting: Setting
    peak: float
    record: Record
    works: dict[str, Work] = field(default_factory=dict)

    def work(self, variant: str, pairs: int) -> Work:
        """Returns the variant's batches of ``pairs``; at tiny size those of the tests."""
        if variant not in self.works:
            folder = self.setting.folder / variant
            folder.mkdir()
            setting = Setting(device=self.setting.device, tiny=self.setting.tiny, folder=folder)
            self.works[variant] = work_of(CASES[variant], setting)
        work = self.works[variant]
        return work if self.setting.tiny else work.with_batches_of(pairs)


@dataclass(frozen=True, kw_only=True)
class StepRun:
    """Holds a model that is ready to train, its batches, which take ``operations`` useful ones
    together, and the step that trains on one of them.
    """

    batches: Sequence[HostBatch]
    operations: int
    training: Training
    step: Callable[[HostBatch], dict[str, float]]


def measure_steps(case: StepCase, bench: Bench) -> StepRun:
    """Measures a case's steps and records two lines: the step's, and the host's parts of it."""
    run = prepare_run(case, bench)
    bench.record.write(case.name, **measure_run(run, case, bench))
    bench.record.write(f"{case.name}/host", **host_parts(run))
    return run


def prepare_run(case: StepCase, bench: Bench) -> StepRun:
    """Makes the case's batches and model, with the compiler's caches and counters empty."""
    setting = bench.setting
    work = bench.work(case.variant, case.pairs)
    batches = real_batches(work, 2 if case.pairs >= LARGE_BATCH else 4, setting.device)
    operations = count_useful(work, batches)
    accelerator = make_accelerator(work.recipe, setting.device)
    model = new_model(work.recipe)
    if case.half_norms:
        use_half_norms(model)
    if case.attention_kernel:
        use_attention_kernel(model, setting.device)
    if case.residual_kernel:
        use_residual_kernel(model, setting.device)
    torch._dynamo.reset()
    counters.clear()
    if case.blocks:  # traced alone at tiny size: generating code takes minutes on a CPU
        compile_blocks(model, **({"backend": "aot_eager"} if setting.tiny else {}))
    training = training_of(model, work.recipe, accelerator, pack=True, casts=case.casts)
    if case.graph:
        training = with_graph(training)
    if case.ahead:
        training = with_uploads(training)
    step = stepper(training) if training.uploads is None else stepper_ahead(training, batches)
    return StepRun(batches=batches, operations=operations, training=training, step=step)


def stepper_ahead(
    training: Training, batches: Sequence[HostBatch]
) -> Callable[[HostBatch], dict[str, float]]:
    """Returns `stepper`'s function for training with uploads: each step begins to copy the batch
    that follows in ``batches``, endlessly.
    """
    assert training.uploads is not None
    start, numbers = training.uploads.start, count(1)
    following = {id(one): other for one, other in pairwise([*batches, batches[0]])}
    return lambda batch: train_step(
        next(numbers), [batch], training, partial(start, following[id(batch)])
    )


def measure_run(run: StepRun, case: StepCase, bench: Bench) -> dict[str, Any]:
    """Returns the fields of a case's line; the first round is the warm-up."""
    device, batches = bench.setting.device, run.batches
    first_s = warm_up(run, device)
    first_graphs = graphs()
    rounds = TINY_ROUNDS if bench.setting.tiny else ROUNDS
    round_s = timed_rounds(run.step, batches, rounds, device).round_s
    step_again = partial(run.step, batches[0])
    return {
        "first_step_s": round(first_s, 1),
        "step_ms": round(1e3 * round_s / len(batches), 2),
        "samples_per_s": round(sum(len(batch.pair_ids) for batch in batches) / round_s, 1),
        "mfu": round(utilisation(run.operations, round_s, bench.peak), 4),
        "graphs": first_graphs,
        "recompiled": graphs() - first_graphs,
        "breaks": sum(counters["graph_break"].values()),
        "captured": run.training.graph and run.training.graph.captured,
        "loss": round(run.step(batches[0])["loss"], 4),
        "memory_gb": peak_memory_gb(device),
        "pairs": len(batches[0].pair_ids),
        "waits": places_of_waits(step_again),
        **(kernels_of(step_again, device) if case.profile else {}),
    }


def warm_up(run: StepRun, device: torch.device) -> float:
    """Trains on every batch and then watches the memory; returns the first step's seconds.

    Three times, as a graph of a shape is captured for its second batch.
    """
    started = time.perf_counter()
    run.step(run.batches[0])
    wait_for(device)
    first_s = time.perf_counter() - started
    for batch in [*run.batches] * 3:
        run.step(batch)
    reset_peak_memory(device)
    return first_s


def kernels_of(step: Callable[[], object], device: torch.device) -> dict[str, Any]:
    """Returns the number of kernels in a step, their milliseconds and the longest ones by name;
    nothing on a CPU.
    """
    if device.type != "cuda":
        step()
        return {}
    times = kernel_times(step, device)
    return {
        "kernels": sum(calls for _, calls, _ in times),
        "kernel_ms": round(sum(ms for *_, ms in times), 2),
        "top": [
            (name[:KERNEL_NAME_LENGTH], calls, round(ms, 2))
            for name, calls, ms in times[:LONGEST_KERNELS]
        ],
    }


def host_parts(run: StepRun) -> dict[str, float]:
    """Returns the median milliseconds of processor time that the host spends in each part of a
    step.
    """
    training = run.training
    parts: dict[str, tuple[object, str]] = {
        "forward": (training.step_module, "forward"),
        "backward": (training.accelerator, "backward"),
        "optimizer": (training.optimizer, "step"),
    }
    with host_seconds(parts) as seconds:
        for batch in run.batches:
            run.step(batch)
    # A replayed step calls neither forward nor backward.
    return {name: round(1e3 * median_high(values), 2) for name, values in seconds.items() if values}


@contextmanager
def host_seconds(methods: Mapping[str, tuple[object, str]]) -> Iterator[dict[str, list[float]]]:
    """Yields lists that collect the seconds of processor time of each call of the ``methods``, each
    an object and a method's name.
    """
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    with ExitStack() as stack:
        for name, (owner, method) in methods.items():
            timed = _timed(getattr(owner, method), seconds[name])
            stack.enter_context(patch.object(owner, method, timed))
        yield seconds


def _timed(function: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        started = time.process_time()
        result = function(*args, **kwargs)
        seconds.append(time.process_time() - started)
        return result

    return call
