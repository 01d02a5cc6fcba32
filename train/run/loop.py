"""Runs the training loop."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from vlmill.models.inputs import copy_to_device
from vlmill.runtime.console.log import Log
from vlmill.runtime.console.progress import Progress
from vlmill.schemas.errors import InputError
from vlmill.train.devices.casts import WeightCasts
from vlmill.train.devices.memory import peak_memory
from vlmill.train.devices.setup import sync_gradients, unwrap_step
from vlmill.train.devices.throughput import Throughput
from vlmill.train.loading.undecodable import Undecodable
from vlmill.train.objectives.cached_contrast import CachedContrast, cache_contrast, second_pass
from vlmill.train.objectives.negatives import negative_numbers
from vlmill.train.run.ahead import StepInputs, Uploads, start_reading
from vlmill.train.run.diverged import explain_divergence
from vlmill.train.run.graphs import StepGraph
from vlmill.train.run.updates import Update

SMALLEST_SCALE = 2.0**-10  # of float16's losses; 26 halvings from where it starts

CountLabels = Callable[[Any], Mapping[str, int]]  # of a part
Explain = Callable[[int, Mapping[str, float], float, Sequence[Any], nn.Module, Accelerator], str]


class StepPart(Protocol):
    """Holds a part of a step in host memory: `HostBatch`, or a detector's."""

    @property
    def pair_ids(self) -> tuple[str, ...]:
        """Returns the ids of its rows."""
        ...

    @property
    def sources(self) -> tuple[str, ...]:
        """Returns the source of each row, or nothing."""
        ...

    @property
    def undecodable(self) -> tuple[Undecodable, ...]:
        """Returns the images that others have replaced, or that are missing."""
        ...

    def to(self, device: torch.device | str) -> Any:
        """Returns the part as the step's module takes it."""
        ...


class NonFiniteLoss(ArithmeticError):
    """Raised for a NaN or infinite loss or gradient; the message names the step, and the images,
    weights or losses that are not finite.
    """


class Stopped(Exception):
    """Raised after the run was asked to stop and has saved; the message states the step."""


@dataclass(frozen=True, kw_only=True)
class StageRun:
    """Holds a stage and its offset in the run: its step 1 is the run's step ``offset + 1``.

    Every ``stage`` has a ``name``, a ``batch_size`` (rows of a step), ``accumulation`` (parts of a
    step in each process) and ``trained`` (as `TrainingStage`'s); the rest depends on the command.
    ``epoch_steps``: the steps of an epoch. ``visits``: its pairs, by source. ``sources``: the
    sources of its pairs, and of the texts that come with pairs. ``share``: of a stage that visits a
    part of its pairs (`TrainingStage.share`, `TrainingStage.max_pairs`), how many that are, and of
    how many.
    """

    stage: Any
    number: int
    offset: int
    steps: int
    epoch_steps: float = 0.0
    visits: Mapping[str, int] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    share: tuple[int, int] | None = None

    @property
    def last(self) -> int:
        """Returns the run's step with which the stage ends."""
        return self.offset + self.steps


@dataclass(frozen=True, kw_only=True)
class Training:
    """Holds the module and its update: ``step_module`` is a wrapped step (`PretrainingStep`, a
    task's, a detector's), ``update`` updates its weights.

    ``count_labels`` counts the labels of a batch for each of its losses, in their order. ``seed``
    is the seed of the negatives that VLMo samples by its contrast. ``sources`` are the sources
    whose pairs are counted. ``casts`` are applied around each step's forward and backward passes;
    None: autocast casts weights where they are used. ``graph`` computes steps of one part instead.
    With ``uploads`` the update and the next step's copies are queued before the host reads the
    numbers of a step. ``explain`` writes the message of a step that is not finite.
    """

    step_module: nn.Module
    count_labels: CountLabels
    update: Update
    accelerator: Accelerator
    seed: int
    sources: tuple[str, ...] = ()
    casts: WeightCasts | None = None
    graph: StepGraph | None = None
    uploads: Uploads[Any] | None = None
    explain: Explain = explain_divergence

    @property
    def optimizer(self) -> Optimizer:
        """Returns the optimiser."""
        return self.update.optimizer

    def cast_weights(self) -> AbstractContextManager[None]:
        """Returns the context of a step's forward and backward passes."""
        return nullcontext() if self.casts is None else self.casts.applied()

    def copy(self, part: Any) -> Any:
        """Copies a part to the device, as the graph takes it if there is one."""
        if self.graph is not None:
            return self.graph.prepare(part)
        return part.to(self.accelerator.device)

    def take(self, part: Any) -> Any:
        """Returns the part's copy on the device, which may have been started before."""
        return self.copy(part) if self.uploads is None else self.uploads.take(part)

    def compute(self, batch: Any, shares: Tensor, *more: Any) -> dict[str, Tensor]:
        """Computes the gradients of a part of a step; returns ``loss`` and each of the losses."""
        accelerator = self.accelerator
        with accelerator.autocast():
            loss, losses = self.step_module(batch, shares, *more)
            # Gradients of processes are averaged; the shares of all add up to the loss.
            accelerator.backward(loss * accelerator.num_processes)
        return {name: value.detach() for name, value in {"loss": loss, **losses}.items()}


def with_graph(training: Training) -> Training:
    """Returns the training whose steps are replayed as CUDA graphs (`StepGraph`)."""

    def compute(batch: Any, shares: Tensor) -> dict[str, Tensor]:
        with training.cast_weights():
            return training.compute(batch, shares)

    parameters = [p for p in training.step_module.parameters() if p.requires_grad]
    graph = StepGraph(compute, parameters, training.accelerator.device)
    return replace(training, graph=graph)


def with_uploads(training: Training) -> Training:
    """Returns the training that queues work ahead of the host (`vlmill.train.run.ahead`).

    Returns it unchanged where float16's scaler decides on updates, for sharded weights, and for an
    optimizer that cannot skip a step on the device.
    """
    accelerator = training.accelerator
    is_sharded = any(isinstance(p, DTensor) for p in training.step_module.parameters())
    if accelerator.scaler is not None or is_sharded or not training.update.skips_on_device:
        return training
    return replace(training, uploads=Uploads(training.copy, accelerator.device))


@dataclass(frozen=True, kw_only=True)
class Events:
    """Holds a loop's actions other than training; steps are the run's, counted from 1 over stages.

    ``after_step`` follows every update (the moving average). ``validate`` measures the held-out
    pairs, and ``enough`` returns whether the stage ends because they have not improved for as long
    as the recipe waits. ``reject`` takes the parts of a step, or the error that prevented them, and
    returns the number of undecodable images that the run has met. ``stopping`` returns whether to
    save and stop.
    """

    log: Log
    progress: Progress
    throughput: Throughput
    log_every: int
    save: Callable[[int], None]
    save_every: int
    after_step: Callable[[], None]
    validate: Callable[[int], dict[str, float]]
    validate_every: int
    enough: Callable[[], bool]
    reject: Callable[[int, Sequence[StepPart] | InputError], int]
    stopping: Callable[[], bool]

    def validates_at(self, step: int, *, last: bool) -> bool:
        """Returns whether the held-out pairs are measured after this step."""
        return bool(self.validate_every) and (last or step % self.validate_every == 0)


def run_stage(
    run: StageRun, batches: Iterator[StepPart], training: Training, events: Events, *, done: int
) -> None:
    """Trains from step ``done + 1`` of the stage to its end, or until validation has had enough;
    ``batches`` begin there.

    Raises Stopped after saving when it is asked to stop.
    """
    stage, logged, clock = run.stage, run.offset + done, time.perf_counter()
    inputs = StepInputs(batches, stage.accumulation, training.uploads)
    training.step_module.train()
    for within in range(done + 1, run.steps + 1):
        step = run.offset + within
        rate = training.update.set_rate(within)
        parts, undecodable = next_parts(step, inputs, events)
        events.throughput.count(parts)
        numbers = train_step(step, parts, training, inputs.fetch)
        events.after_step()
        line: dict[str, object] = {"step": step, "stage": stage.name, **numbers, "lr": rate}
        if undecodable:
            line["undecodable_pictures"] = undecodable
        measured = events.validates_at(step, last=within == run.steps)
        if measured:
            line |= events.validate(step)
            training.step_module.train()
        if step % events.log_every == 0 or within in (1, run.steps) or measured:
            now = time.perf_counter()
            speed = (step - logged) * stage.batch_size / (now - clock)
            line |= {"samples_per_second": round(speed, 2)}
            line |= events.throughput.utilisation(speed / stage.batch_size)
            line |= {"data_wait": round(inputs.seconds / (now - clock), 4)}
            line |= peak_memory(training.accelerator.device)
            logged, clock, inputs.seconds = step, now, 0.0
            events.log.write(line)
            events.progress.advance(0, speed=f"{speed:.1f} samples/s")
        events.progress.advance(1, loss=f"{numbers['loss']:.3f}")
        stopping = events.stopping()
        if step % events.save_every == 0 or within == run.steps or measured or stopping:
            events.save(step)
        if measured and events.enough():
            return
        if stopping and within < run.steps:
            raise Stopped


def next_parts(
    step: int, inputs: StepInputs[StepPart], events: Events
) -> tuple[list[StepPart], int]:
    """Returns the parts of a step, and the number of undecodable images up to it.

    An error in one process's images is raised in all, so that none waits for it.
    """
    try:
        parts = inputs.take()
    except InputError as error:
        events.reject(step, error)
        raise
    return parts, events.reject(step, parts)


def train_step(
    step: int,
    parts: Sequence[StepPart],
    training: Training,
    fetch_next: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Updates the weights once from the losses of ``parts`` of all processes.

    With ``training.uploads`` it calls ``fetch_next`` before it waits for the device.

    Returns ``loss`` and ``loss/NAME`` for each of the step's losses, each the mean over the labels
    of the whole step, the ``gradient_norm`` from before it is clipped (where float16 skips the
    step, none), and with ``pairs/SOURCE`` how many rows of the step are of each source. Raises
    NonFiniteLoss, with the weights unchanged.
    """
    accelerator, module = training.accelerator, training.step_module
    shares = shares_of_labels(parts, training.count_labels, accelerator)
    sums: dict[str, Tensor] = {}
    for losses_of_part in part_losses(step, parts, shares, training):
        for name, value in losses_of_part.items():
            sums[name] = sums.get(name, torch.zeros_like(value)) + value
    norms = training.update.clip(accelerator)
    losses = torch.stack([value.float() for value in sums.values()])
    source_counts = Counter(source for part in parts for source in part.sources)
    counts = torch.tensor([float(source_counts[source]) for source in training.sources])
    values = torch.cat([losses, copy_to_device(counts, accelerator.device)])
    values = accelerator.reduce(values, reduction="sum")
    numbers_there = torch.cat([values, norms])
    read = numbers_there.tolist
    if training.uploads is not None:
        is_finite = values[0].isfinite() & norms[0].isfinite()  # the loss comes first
        training.update.apply(norms[1:], found_inf=(~is_finite).float())
        read = start_reading(numbers_there)
        fetch_next()
    numbers = read()  # the step's only wait for the device
    totals, (norm, *piece_norms) = numbers[: len(values)], numbers[len(values) :]
    loss_values = dict(zip(sums, totals[: len(sums)], strict=True))
    if not math.isfinite(loss_values["loss"] + (0.0 if _scale_falls(accelerator) else norm)):
        raise NonFiniteLoss(training.explain(step, loss_values, norm, parts, module, accelerator))
    if training.uploads is None:
        training.update.apply(piece_norms)
    line = {
        "loss" if name == "loss" else f"loss/{name}": loss for name, loss in loss_values.items()
    }
    if math.isfinite(norm):
        line["gradient_norm"] = norm
    pairs = zip(training.sources, totals[len(sums) :], strict=True)
    return line | {f"pairs/{source}": int(count) for source, count in pairs}


def part_losses(
    step: int, parts: Sequence[Any], shares: Sequence[Tensor], training: Training
) -> Iterator[dict[str, Tensor]]:
    """Yields ``loss`` and each of the step's losses of every part, after its backward pass."""
    accelerator, module = training.accelerator, training.step_module
    if training.graph is not None:
        (part,), (part_shares,) = parts, shares
        yield training.graph(training.take(part), part_shares)
        return
    drawn = [
        negative_numbers(training.seed, step, number, len(part.pair_ids), accelerator)
        for number, part in enumerate(parts)
    ]
    with training.cast_weights():
        caches: list[CachedContrast | None] = [None] * len(parts)
        if (contrast := unwrap_step(module).contrast) is not None:
            caches = cache_contrast(module, parts, contrast, drawn, accelerator)
        for number, part in enumerate(parts):
            cached, last = caches[number], number == len(parts) - 1
            with (
                sync_gradients(module, accelerator, last=last),
                second_pass(cached, accelerator.device),
            ):
                batch = training.take(part)
                yield training.compute(batch, shares[number], drawn[number], cached)


def _scale_falls(accelerator: Accelerator) -> bool:
    """Returns whether the scaler handles a norm that is not finite: float16's range was passed, so
    it skips the step and halves its scale, unless that is tiny already.
    """
    scaler = accelerator.scaler
    return scaler is not None and scaler.get_scale() >= SMALLEST_SCALE


def shares_of_labels(
    parts: Sequence[StepPart], count_labels: CountLabels, accelerator: Accelerator
) -> list[Tensor]:
    """Returns each part's share of the labels of all parts of all processes.

    One for each loss that ``count_labels`` names, float32, on the device. Means of parts with these
    shares add up to the mean of the whole, however it is cut.
    """
    counts = torch.tensor(
        [list(count_labels(part).values()) for part in parts], dtype=torch.float64
    )
    totals = counts.sum(0)
    if accelerator.num_processes > 1:
        # float32 on purpose: some backends have no float64, and labels of a step are few.
        local_totals = copy_to_device(totals.float(), accelerator.device)
        totals = accelerator.reduce(local_totals, reduction="sum").double().cpu()
    shares = (counts / totals.clamp(min=1.0)).float()
    return list(copy_to_device(shares, accelerator.device))
