"""The training loop."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from accelerate import Accelerator
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from vlmill.models.inputs import sent
from vlmill.runtime.console.log import Log
from vlmill.runtime.console.progress import Progress
from vlmill.schemas.errors import InputError
from vlmill.train.devices.casts import WeightCasts
from vlmill.train.devices.memory import peak_memory
from vlmill.train.devices.setup import reducing, unwrapped
from vlmill.train.devices.throughput import Throughput
from vlmill.train.loading.batch import Batch, HostBatch
from vlmill.train.objectives.cached_contrast import cache_contrast, second_pass
from vlmill.train.objectives.negatives import negative_numbers
from vlmill.train.optim.adam import BertAdam
from vlmill.train.optim.schedule import learning_rate
from vlmill.train.run.diverged import explain
from vlmill.train.run.graphs import StepGraph
from vlmill.train.settings.spec import TrainingStage

SMALLEST_SCALE = 2.0**-10  # of float16's losses; 26 halvings from where it starts


CountLabels = Callable[[HostBatch], Mapping[str, int]]


class NonFiniteLoss(ArithmeticError):
    """A loss or gradient is NaN or infinite; the message names the step, and the images, weights
    or losses that are not finite.
    """


class Stopped(Exception):
    """The run was asked to stop and has saved where it is; the message says where."""


@dataclass(frozen=True, kw_only=True)
class StageRun:
    """A stage with its place in the run: its step 1 is the run's step ``offset + 1``.

    ``epoch_steps``: the steps of an epoch. ``visits``: its pairs, by source. ``sources``: theirs,
    and those of the texts that come beside pairs. ``share``: of a stage that visits a part of its
    pairs (`TrainingStage.share`, `TrainingStage.max_pairs`), how many that are, and of how many.
    """

    stage: TrainingStage
    number: int
    offset: int
    steps: int
    epoch_steps: float = 0.0
    visits: Mapping[str, int] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    share: tuple[int, int] | None = None

    @property
    def last(self) -> int:
        """The run's step with which the stage ends."""
        return self.offset + self.steps


@dataclass(frozen=True, kw_only=True)
class Training:
    """What moves together: ``step_module`` is a wrapped step, `PretrainingStep` or a task's.

    ``count_labels`` says how many labels a batch has of each of its losses, in their order.
    ``seed`` is that of the negatives which VLMo draws by its contrast. ``sources`` are those whose
    pairs are counted. ``casts`` are applied around each step's forward and backward passes; None:
    autocast casts weights where they are used. ``graph`` computes steps of one part instead.
    """

    step_module: nn.Module
    count_labels: CountLabels
    optimizer: Optimizer
    accelerator: Accelerator
    seed: int
    sources: tuple[str, ...] = ()
    casts: WeightCasts | None = None
    graph: StepGraph | None = None

    def cast_weights(self) -> AbstractContextManager[None]:
        """Returns the context of a step's forward and backward passes."""
        return nullcontext() if self.casts is None else self.casts.applied()

    def compute(self, batch: Batch, shares: Tensor, *more: Any) -> dict[str, Tensor]:
        """Computes the gradients of a part of a step; returns ``loss`` and each of the losses."""
        accelerator = self.accelerator
        with accelerator.autocast():
            loss, losses = self.step_module(batch, shares, *more)
            # Gradients of processes are averaged; the shares of all add up to the loss.
            accelerator.backward(loss * accelerator.num_processes)
        return {name: value.detach() for name, value in {"loss": loss, **losses}.items()}


def with_graph(training: Training) -> Training:
    """Returns the training whose steps are replayed as CUDA graphs (`StepGraph`)."""

    def compute(batch: Batch, shares: Tensor) -> dict[str, Tensor]:
        with training.cast_weights():
            return training.compute(batch, shares)

    parameters = [p for p in training.step_module.parameters() if p.requires_grad]
    graph = StepGraph(compute, parameters, training.accelerator.device)
    return replace(training, graph=graph)


@dataclass(frozen=True, kw_only=True)
class Events:
    """What a loop does beside training; steps are the run's, counted from 1 over all stages.

    ``after_step`` follows every update (the moving average). ``validate`` measures the held-out
    pairs, and ``enough`` says whether they have got no better for so long that the stage ends.
    ``reject`` is told the parts of a step of images, or why there are none, and
    gives the number of undecodable ones that the run has met. ``stopping`` tells whether to save
    and leave.
    """

    log: Log
    progress: Progress
    throughput: Throughput
    log_every: int
    save: Callable[[int], None]
    save_every: int
    after_step: Callable[[], None]
    validate: Callable[[], dict[str, float]]
    validate_every: int
    enough: Callable[[], bool]
    reject: Callable[[int, Sequence[HostBatch] | InputError], int]
    stopping: Callable[[], bool]

    def validates_at(self, step: int, *, last: bool) -> bool:
        """Whether the held-out pairs are measured after this step."""
        return bool(self.validate_every) and (last or step % self.validate_every == 0)


def run_stage(
    run: StageRun, batches: Iterator[HostBatch], training: Training, events: Events, *, done: int
) -> None:
    """Train from step ``done + 1`` of the stage to its end, or until validation has had enough;
    ``batches`` begin there.

    Raises Stopped after saving when it is asked to stop.
    """
    stage, logged, clock = run.stage, run.offset + done, time.perf_counter()
    waited = 0.0  # for batches, since the last line
    training.step_module.train()
    for within in range(done + 1, run.steps + 1):
        step = run.offset + within
        rate = set_rate(training.optimizer, within, run)
        wait_start = time.perf_counter()
        parts, undecodable = next_parts(step, batches, stage, events)
        waited += time.perf_counter() - wait_start
        events.throughput.count(parts)
        numbers = train_step(step, parts, stage, training)
        events.after_step()
        line: dict[str, object] = {"step": step, "stage": stage.name, **numbers, "lr": rate}
        if undecodable:
            line["undecodable_pictures"] = undecodable
        measured = events.validates_at(step, last=within == run.steps)
        if measured:
            line |= events.validate()
            training.step_module.train()
        if step % events.log_every == 0 or within in (1, run.steps) or measured:
            now = time.perf_counter()
            speed = (step - logged) * stage.batch_size / (now - clock)
            line |= {"samples_per_second": round(speed, 2)}
            line |= events.throughput.utilisation(speed / stage.batch_size)
            line |= {"data_wait": round(waited / (now - clock), 4)}
            line |= peak_memory(training.accelerator.device)
            logged, clock, waited = step, now, 0.0
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


def set_rate(optimizer: Optimizer, within: int, run: StageRun) -> float:
    """Give every group its share of the rate of the stage's step ``within``; returns the rate."""
    rate = learning_rate(
        within, steps=run.steps, settings=run.stage.optimizer, epoch_steps=run.epoch_steps
    )
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("rate", 1.0)
    return rate


def next_parts(
    step: int, batches: Iterator[HostBatch], stage: TrainingStage, events: Events
) -> tuple[list[HostBatch], int]:
    """The parts of a step, and how many undecodable images the run has met up to it.

    What one process finds wrong with its images is raised in all, so that none waits for it.
    """
    try:
        parts = [next(batches) for _ in range(stage.accumulation)]
    except InputError as error:
        if stage.feeding.reads_images:
            events.reject(step, error)
        raise
    return parts, events.reject(step, parts) if stage.feeding.reads_images else 0


def train_step(
    step: int, parts: Sequence[HostBatch], stage: TrainingStage, training: Training
) -> dict[str, float]:
    """One update from the losses of ``parts`` of all processes.

    Returns ``loss`` and ``loss/NAME`` for each of the step's losses, each the mean over the labels
    of the whole step, the ``gradient_norm`` from before it is clipped (where float16 skips the
    step, none), and with ``pairs/SOURCE`` how many rows of the step are of each source. Raises
    NonFiniteLoss before the weights change.
    """
    accelerator, module = training.accelerator, training.step_module
    shares = shares_of_labels(parts, training.count_labels, accelerator)
    sums: dict[str, Tensor] = {}
    for losses_of_part in part_losses(step, parts, shares, training):
        for name, value in losses_of_part.items():
            sums[name] = sums.get(name, torch.zeros_like(value)) + value
    norms = clip_gradients(training, stage)
    losses = torch.stack([value.float() for value in sums.values()])
    source_counts = Counter(source for part in parts for source in part.sources)
    counts = torch.tensor([float(source_counts[source]) for source in training.sources])
    values = torch.cat([losses, sent(counts, accelerator.device)])
    # The step's only wait for the device.
    numbers = torch.cat([accelerator.reduce(values, reduction="sum"), norms]).tolist()
    totals, norm, piece_norms = (
        numbers[: len(values)],
        numbers[len(values)],
        numbers[len(values) + 1 :],
    )
    loss_values = dict(zip(sums, totals[: len(sums)], strict=True))
    if not math.isfinite(loss_values["loss"] + (0.0 if _scale_falls(accelerator) else norm)):
        raise NonFiniteLoss(explain(step, loss_values, norm, parts, module, accelerator))
    optimizer = unwrapped_optimizer(training.optimizer)
    if isinstance(optimizer, BertAdam):
        optimizer.known_norms = piece_norms
    training.optimizer.step()
    training.optimizer.zero_grad(set_to_none=True)
    line = {
        "loss" if name == "loss" else f"loss/{name}": loss for name, loss in loss_values.items()
    }
    if math.isfinite(norm):
        line["gradient_norm"] = norm
    pairs = zip(training.sources, totals[len(sums) :], strict=True)
    return line | {f"pairs/{source}": int(count) for source, count in pairs}


def part_losses(
    step: int, parts: Sequence[HostBatch], shares: Sequence[Tensor], training: Training
) -> Iterator[dict[str, Tensor]]:
    """Yields ``loss`` and each of the step's losses of every part, after its backward pass."""
    accelerator, module = training.accelerator, training.step_module
    if training.graph is not None:
        (part,), (part_shares,) = parts, shares
        yield training.graph(part, part_shares)
        return
    drawn = [
        negative_numbers(training.seed, step, number, len(part.pair_ids), accelerator)
        for number, part in enumerate(parts)
    ]
    with training.cast_weights():
        caches = cache_contrast(module, parts, unwrapped(module).contrast, drawn, accelerator)
        for number, part in enumerate(parts):
            cached, last = caches[number], number == len(parts) - 1
            with reducing(module, accelerator, last=last), second_pass(cached, accelerator.device):
                batch = part.to(accelerator.device)
                yield training.compute(batch, shares[number], drawn[number], cached)


def _scale_falls(accelerator: Accelerator) -> bool:
    """Whether a norm that is not finite is the scaler's to handle: float16's range was passed, so
    it skips the step and halves its scale, unless that is tiny already.
    """
    scaler = accelerator.scaler
    return scaler is not None and scaler.get_scale() >= SMALLEST_SCALE


def shares_of_labels(
    parts: Sequence[HostBatch], count_labels: CountLabels, accelerator: Accelerator
) -> list[Tensor]:
    """For each part the share of its labels in those of all parts of all processes.

    One for each loss that ``count_labels`` names, float32, on the device. Means of
    parts with these shares add up to the mean of the whole, however it is cut.
    """
    counts = torch.tensor(
        [list(count_labels(part).values()) for part in parts], dtype=torch.float64
    )
    totals = counts.sum(0)
    if accelerator.num_processes > 1:
        # float32 on purpose: some backends have no float64, and labels of a step are few.
        local_totals = sent(totals.float(), accelerator.device)
        totals = accelerator.reduce(local_totals, reduction="sum").double().cpu()
    shares = (counts / totals.clamp(min=1.0)).float()
    return list(sent(shares, accelerator.device))


def clip_gradients(training: Training, stage: TrainingStage) -> Float[Tensor, " 1_P"]:
    """Clips the gradients as the stage says; returns the whole gradient's norm from before it.

    BertAdam clips each tensor separately in its own step: the norms that it needs for that follow.
    """
    accelerator, optimizer = training.accelerator, unwrapped_optimizer(training.optimizer)
    largest = 0.0 if isinstance(optimizer, BertAdam) else stage.optimizer.clip
    parameters = [
        p for group in optimizer.param_groups for p in group["params"] if p.grad is not None
    ]
    if not parameters:
        return torch.zeros(1, device=accelerator.device)
    if largest:
        norm = accelerator.clip_grad_norm_(parameters, largest)
        return _local(norm).reshape(1)
    accelerator.unscale_gradients()
    if isinstance(optimizer, BertAdam):
        norms = optimizer.gradient_norms()
        return torch.cat([torch.linalg.vector_norm(norms).reshape(1), norms])
    return _local(get_total_norm([p.grad for p in parameters])).reshape(1)


def _local(norm: Tensor) -> Tensor:
    whole = norm.full_tensor() if isinstance(norm, DTensor) else norm
    return whole.detach().float()


def unwrapped_optimizer(optimizer: Optimizer) -> Optimizer:
    """Returns the optimizer inside the one that accelerate makes for float16."""
    inside: Optimizer = getattr(optimizer, "optimizer", optimizer)
    return inside
