"""Divides a step into parts that fit into a device's memory, and names the remedy if none fits."""

import dataclasses
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch

from vlmill.runtime.console.command import is_about_memory, print_status
from vlmill.schemas.errors import InputError
from vlmill.train.run.loop import StageRun
from vlmill.train.run.step import Training, part_losses, shares_of_labels

DeviceBatch = int | Literal["auto"]
MEMORY_SHARE = 0.9  # of the free memory, which a part of longer rows than the tried ones may exceed
MOMENT_BYTES = 8  # of Adam, for each trained number, before the first update
MEMINFO = Path("/proc/meminfo")


class OutOfMemory(RuntimeError):
    """Raised if a step does not fit into the device's memory; the message has the remedy."""


def list_parts(stage: Any, processes: int) -> list[int]:
    """Returns the numbers of parts that a step of a stage can be divided into, in ascending
    order.
    """
    rows = stage.batch_size // processes
    texts = getattr(getattr(stage, "feeding", None), "text_rows", 0)
    return [n for n in range(1, rows + 1) if rows % n == 0 and texts % n == 0]


def with_parts(run: StageRun, parts: int) -> StageRun:
    """Returns the stage with its steps divided into ``parts``."""
    return dataclasses.replace(run, stage=dataclasses.replace(run.stage, accumulation=parts))


def divide_stage(
    run: StageRun, device_batch: DeviceBatch, processes: int, fits: Callable[[StageRun], bool]
) -> StageRun:
    """Returns the stage with as few parts as possible, so that a part has at most ``device_batch``
    rows or, with ``auto``, so that it ``fits``. With 0 the stage is unchanged.

    Raises InputError if no part is small enough, or OutOfMemory if none fits.
    """
    if device_batch == 0:
        return run
    rows, counts = run.stage.batch_size // processes, list_parts(run.stage, processes)
    if device_batch == "auto":
        if processes > 1:
            raise InputError(
                f"--device-batch auto: a run of {processes} processes cannot try parts; give the "
                "number of rows that each device computes together"
            )
        chosen = next((n for n in counts if fits(with_parts(run, n))), None)
        if chosen is None:
            raise OutOfMemory(
                f"stage {run.stage.name}: not even one part of {counts[-1]} fits into the memory; "
                "use checkpoint_activations=true, a shorter feeding or a smaller model"
            )
    else:
        chosen = next((n for n in counts if rows // n <= device_batch), None)
        if chosen is None:
            raise InputError(
                f"--device-batch {device_batch}: a part of stage {run.stage.name} has at least "
                f"{rows // counts[-1]} rows; give that number or more"
            )
    if chosen != run.stage.accumulation:
        print_status(
            f"stage {run.stage.name}: {rows // chosen} rows at a time, {chosen} "
            f"{'part' if chosen == 1 else 'parts'} for each step of {run.stage.batch_size}"
        )
    return with_parts(run, chosen)


def try_step(
    run: StageRun, training: Training, batches: Iterator[Any], estimated_bytes: int
) -> bool:
    """Returns whether the stage's next step fits, by computing its gradients without an update.

    The random state is restored, so the run has the same numbers as without the trial. On a
    CPU, where the system ends a process that takes too much, a step whose ``estimated_bytes``
    exceed the available memory is not tried.
    """
    device = training.accelerator.device
    if device.type == "cpu" and estimated_bytes > MEMORY_SHARE * available_memory():
        return False
    with _without_traces(training):
        try:
            parts = list(islice(batches, run.stage.accumulation))
            shares = shares_of_labels(parts, training.count_labels, training.accelerator)
            for _ in part_losses(1, parts, shares, training):
                pass
        except (RuntimeError, MemoryError) as error:
            if not is_about_memory(error):
                raise
            return False
        return device.type != "cuda" or _leaves_room(training, device)


@contextmanager
def _without_traces(training: Training) -> Iterator[None]:
    """Removes gradients and restores the random state at the end of the block."""
    device = training.accelerator.device
    state = torch.get_rng_state()
    device_state = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    try:
        yield
    finally:
        training.optimizer.zero_grad(set_to_none=True)
        torch.set_rng_state(state)
        if device_state is not None:
            torch.cuda.set_rng_state(device_state, device)
            torch.cuda.empty_cache()


def _leaves_room(training: Training, device: torch.device) -> bool:
    """Returns whether the peak and the moments of Adam leave a tenth of the GPU's memory."""
    trained = sum(p.numel() for p in training.step_module.parameters() if p.requires_grad)
    moments = 0 if training.optimizer.state else MOMENT_BYTES * trained
    free, _ = torch.cuda.mem_get_info(device)
    capacity = free + torch.cuda.memory_reserved(device)
    return torch.cuda.max_memory_allocated(device) + moments <= MEMORY_SHARE * capacity


def available_memory() -> int:
    """Returns the bytes of main memory that are available now."""
    if MEMINFO.exists():
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@contextmanager
def name_remedy(run: StageRun, processes: int) -> Iterator[None]:
    """Raises OutOfMemory, with the remedy, for an error in the block about too little memory."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, OutOfMemory) or not is_about_memory(error):
            raise
        stage = run.stage
        rows = stage.batch_size // processes // stage.accumulation
        smaller = f"--device-batch auto or --device-batch {rows // 2}" if rows > 1 else ""
        remedies = [*([smaller] if smaller else []), "checkpoint_activations=true"]
        raise OutOfMemory(
            f"stage {stage.name}: not enough memory for {rows} rows at a time; repeat the command "
            f"with {', or with '.join(remedies)} (it continues from the last checkpoint; the steps "
            f"keep their {stage.batch_size} rows): {str(error).splitlines()[0][:200]}"
        ) from None
