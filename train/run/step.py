"""Computes one training step: losses and gradients of its parts, and the update of the weights."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from vlmill.models.inputs import copy_to_device
from vlmill.train.devices.setup import list_scalars, unwrap_step
from vlmill.train.loading.batch import HostBatch, describe_not_finite
from vlmill.train.loading.undecodable import Undecodable
from vlmill.train.objectives.cached_contrast import (
    CachedContrast,
    StepContrast,
    cache_contrast,
    seed_dropout,
)
from vlmill.train.objectives.negatives import negative_numbers
from vlmill.train.run.graphs import StepGraph
from vlmill.train.run.updates import Update

NAMED = 6  # weights that a message names
SMALLEST_SCALE = 2.0**-10  # of float16's losses; 26 halvings from where it starts

CountLabels = Callable[[Any], Mapping[str, int]]  # of a part
Explain = Callable[[int, Mapping[str, float], float, Sequence[Any], nn.Module, Accelerator], str]
PartT = TypeVar("PartT")


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


def explain_divergence(
    step: int,
    losses: Mapping[str, float],
    norm: float,
    parts: Sequence[HostBatch],
    module: nn.Module,
    accelerator: Accelerator,
) -> str:
    """Returns the message for a step whose ``losses`` or gradient ``norm`` are not finite.

    It names the images, else the weights, that are not finite either, and a remedy.

    An image whose features and boxes are finite is never named. All processes call it, and all name
    the same images.
    """
    loss_text = ", ".join(f"{name} {value:g}" for name, value in losses.items())
    stopped = f"step {step}: {loss_text}, gradient norm {norm:g}; no update was made. "
    images = [image_id for part in parts for image_id in part.not_finite()]
    if accelerator.num_processes > 1:
        images = gather_object(images)
    if images:
        return stopped + describe_not_finite(images)
    if weights := _weights_not_finite(module):
        more = f" and {len(weights) - NAMED} more" if len(weights) > NAMED else ""
        return stopped + (
            f"The model was not finite before the step ({', '.join(weights[:NAMED])}{more}); start "
            "from another --init, or from an earlier checkpoint with a lower optimizer.lr"
        )
    exact = "" if accelerator.mixed_precision == "no" else ", or set precision=no"
    return stopped + (
        "The images of the step and the model's weights are finite, so the run has diverged: lower "
        f"optimizer.lr or lengthen its warm-up{exact}"
    )


def _weights_not_finite(module: nn.Module) -> list[str]:
    """Returns the names of parameters and buffers with a non-finite value in this process."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    local = {
        name: value.to_local() if isinstance(value, DTensor) else value
        for name, value in tensors.items()
    }
    return [name for name, value in local.items() if not bool(torch.isfinite(value).all())]


class Uploads(Generic[PartT]):
    """Copies the part that the next step begins with, while the device computes the current step.

    ``copy`` copies a part to the device without waiting. On CUDA it runs on a stream of its own.
    """

    def __init__(self, copy: Callable[[PartT], Any], device: torch.device) -> None:
        self._copy, self._device = copy, device
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._started: tuple[PartT, Any] | None = None
        self._in_use: Any = None

    def start(self, part: PartT) -> None:
        """Starts to copy a part. On a CPU it does nothing: there, copying checks a part's values,
        and an error belongs to the part's own step.
        """
        if self._device.type == "cpu":
            return
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            self._started = part, self._copy(part)

    def take(self, part: PartT) -> Any:
        """Returns the part's copy, which is made now if it was not started.

        A copy that was started stays in memory until the next one is taken. The host has read the
        numbers of its step by then, so the device no longer needs it.
        """
        started, self._started = self._started, None
        if started is None or started[0] is not part:
            return self._copy(part)
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
        self._in_use = started[1]
        return self._in_use


@dataclass(frozen=True, kw_only=True)
class Training:
    """Holds the module and its update: ``step_module`` is a wrapped step (`PretrainingStep`, a
    task's, a detector's), ``update`` updates its weights.

    ``count_labels`` counts the labels of a batch for each of its losses, in their order. ``seed``
    is the seed of the negatives that VLMo samples by its contrast. ``sources`` are the sources
    whose pairs are counted. ``cast_weights`` returns the context of each step's forward and
    backward passes; by default autocast casts weights where they are used. ``graph`` computes steps
    of one part instead.
    With ``uploads`` the update and the next step's copies are queued before the host reads the
    numbers of a step. ``explain`` writes the message of a step that is not finite.
    """

    step_module: nn.Module
    count_labels: CountLabels
    update: Update
    accelerator: Accelerator
    seed: int
    sources: tuple[str, ...] = ()
    cast_weights: Callable[[], AbstractContextManager[None]] = nullcontext
    graph: StepGraph | None = None
    uploads: Uploads[Any] | None = None
    explain: Explain = explain_divergence

    @property
    def optimizer(self) -> Optimizer:
        """Returns the optimiser."""
        return self.update.optimizer

    @cached_property
    def contrast(self) -> StepContrast | None:
        """Returns the contrast of a step's parts with each other, if the module has one (VLMo)."""
        contrast: StepContrast | None = unwrap_step(self.step_module).contrast
        return contrast

    def copy(self, part: Any) -> Any:
        """Copies a part to the device, as the graph takes it if there is one."""
        if self.graph is not None:
            return self.graph.prepare(part)
        return part.to(self.accelerator.device)

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
    """Returns the training that queues a device's work before the host reads a step's numbers.

    Otherwise the device idles after each backward pass: the host waits for the loss, then launches
    the optimizer and prepares the next batch. With ``uploads`` a step's update and the copies of
    the next batch are queued first, and the update leaves the weights unchanged if the step is not
    finite. Returns the training unchanged where float16's scaler decides on updates, for sharded
    weights, and for an optimizer that cannot skip a step on the device.
    """
    accelerator = training.accelerator
    is_sharded = any(isinstance(p, DTensor) for p in training.step_module.parameters())
    if accelerator.scaler is not None or is_sharded or not training.update.skips_on_device:
        return training
    return replace(training, uploads=Uploads(training.copy, accelerator.device))


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
    copy = training.copy if training.uploads is None else training.uploads.take
    if training.graph is not None:
        (part,), (part_shares,) = parts, shares
        yield training.graph(copy(part), part_shares)
        return
    with training.cast_weights():
        numbers: Sequence[Tensor | None] = [None] * len(parts)
        caches: Sequence[CachedContrast | None] = [None] * len(parts)
        if training.contrast is not None:
            numbers = drawn = [
                negative_numbers(training.seed, step, number, len(part.pair_ids), accelerator)
                for number, part in enumerate(parts)
            ]
            caches = cache_contrast(module, parts, training.contrast, drawn, accelerator)
        for number, (part, cached) in enumerate(zip(parts, caches, strict=True)):
            last = number == len(parts) - 1
            with (
                sync_gradients(module, accelerator, last=last),
                # The second pass of a part repeats the dropout of its first one.
                nullcontext() if cached is None else seed_dropout(cached.seed, accelerator.device),
            ):
                yield training.compute(copy(part), shares[number], numbers[number], cached)


@contextmanager
def sync_gradients(module: nn.Module, accelerator: Accelerator, *, last: bool) -> Iterator[None]:
    """Wraps a part of a step: gradients are added over all processes in its ``last`` part only."""
    inside = getattr(module, "_orig_mod", module)  # of a compiled one
    if isinstance(inside, FSDPModule):
        inside.set_requires_gradient_sync(last)
        yield
        for parameter in list_scalars(module) if last else ():
            if parameter.grad is not None:
                parameter.grad = accelerator.reduce(parameter.grad, reduction="mean")
        return
    with nullcontext() if last else accelerator.no_sync(module):
        yield


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


def start_reading(numbers: Tensor) -> Callable[[], list[float]]:
    """Queues the copy of ``numbers`` to the host; returns the function that waits for them."""
    if numbers.device.type != "cuda":
        return numbers.tolist
    copied = torch.empty_like(numbers, device="cpu", pin_memory=True)
    copied.copy_(numbers, non_blocking=True)
    event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()

    def read() -> list[float]:
        event.synchronize()
        return copied.tolist()

    return read
