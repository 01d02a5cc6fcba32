"""The loop of a detector's training, step by step."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from jaxtyping import Int64
from torch import Tensor, nn

from vlmill.runtime.console.log import Log
from vlmill.runtime.console.progress import Progress
from vlmill.schemas.errors import InputError
from vlmill.train.detector.batches import LoadedImage, padded_batch
from vlmill.train.detector.settings import TrainingSettings
from vlmill.train.detector.solver import clip_gradients, set_rate
from vlmill.train.detector.step import Batch
from vlmill.train.detector.targets import Draw

DRAW = 4  # what a number is drawn for, beside the others of `batches`


class NonFiniteLoss(ArithmeticError):
    """A loss is NaN or infinite; the message names the step and its images."""


class Stopped(Exception):
    """The run was asked to stop and has saved where it is."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """Holds what moves together: a step, wrapped for its processes, and its optimiser."""

    step: nn.Module
    optimizer: torch.optim.Optimizer
    accelerator: Accelerator
    settings: TrainingSettings


@dataclass(frozen=True, kw_only=True)
class Events:
    """Says what a loop does beside training; steps count from 1."""

    log: Log
    progress: Progress
    save: Callable[[int], None]
    stopping: Callable[[], bool]
    validate: Callable[[int], dict[str, float]]
    reject: Callable[
        [Sequence[LoadedImage]], int
    ]  # tells images that cannot be used; how many so far


def drawing(seed: int, step: int, rank: int) -> Draw:
    """Returns the permutations of one step of one process, which follow from these alone."""
    mixed = torch.Generator().manual_seed(((seed * 1_000_003 + step) * 4_099 + rank) * 8 + DRAW)

    def draw(count: int) -> Int64[Tensor, " n"]:
        return torch.randperm(count, generator=mixed)

    return draw


def run_steps(
    images: Iterator[list[LoadedImage]], training: Training, events: Events, *, done: int
) -> None:
    """Trains from step ``done + 1`` to the last. Raises Stopped after saving when it is asked to
    stop, and NonFiniteLoss before the weights change.
    """
    settings, clock, logged = training.settings, time.perf_counter(), done
    waited = 0.0
    training.step.train()
    for step in range(done + 1, settings.steps + 1):
        rate = set_rate(training.optimizer, step - 1, settings.steps, settings.solver)
        wait_start = time.perf_counter()
        loaded_images = next(images)
        waited += time.perf_counter() - wait_start
        rejected = events.reject(loaded_images)
        numbers = train_step(step, make_batch(loaded_images, settings), training)
        last = step == settings.steps
        line: dict[str, object] = {"step": step, **numbers, "lr": rate}
        if rejected:
            line["undecodable_pictures"] = rejected
        measured = last or (settings.validate_every and step % settings.validate_every == 0)
        if measured:
            line |= events.validate(step)
            training.step.train()
        if step % settings.log_every == 0 or step == 1 or measured:
            now = time.perf_counter()
            speed = (step - logged) * settings.batch_size / (now - clock)
            line |= {"pictures_per_second": round(speed, 3)}
            line |= {"data_wait": round(waited / (now - clock), 4)}
            clock, logged, waited = now, step, 0.0
            events.log.write(line)
            events.progress.advance(0, speed=f"{speed:.1f} images/s")
        events.progress.advance(1, loss=f"{numbers['loss']:.3f}")
        stopping = events.stopping()
        if step % settings.save_every == 0 or last or stopping:
            events.save(step)
        if stopping and not last:
            raise Stopped


def make_batch(loaded_images: Sequence[LoadedImage], settings: TrainingSettings) -> Batch:
    """Puts the images of a step that can be used together. Raises InputError if none can."""
    usable = [
        image for image in loaded_images if image.image is not None and image.truth is not None
    ]
    if not usable:
        why = "; ".join(f"{image.image_id}: {image.reject}" for image in loaded_images[:4])
        raise InputError(
            f"--images: none of {len(loaded_images)} images of a step can be used ({why}); mend "
            "the table"
        )
    return padded_batch(
        [image.image_id for image in usable],
        [image.image for image in usable if image.image is not None],
        [image.truth for image in usable if image.truth is not None],
        [image.scale for image in usable],
        settings.detector,
    )


def train_step(step: int, batch: Batch, training: Training) -> dict[str, float]:
    """Makes one update; returns the loss and its parts, the means over the processes.

    Every process divides by its own examples, and gradients are averaged, as Detectron2 does.
    """
    accelerator, settings = training.accelerator, training.settings
    draw = drawing(settings.seed, step, accelerator.process_index)
    with accelerator.autocast():
        losses = training.step(batch.to(accelerator.device), draw)
        total = torch.stack(list(losses.values())).sum()
    accelerator.backward(total)
    values = torch.stack([total.detach(), *(loss.detach() for loss in losses.values())]).float()
    means = accelerator.reduce(values, reduction="mean").tolist()
    losses_by_name = dict(zip(("loss", *(f"loss/{name}" for name in losses)), means, strict=True))
    parameters = [p for p in training.step.parameters() if p.grad is not None]
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    if not math.isfinite(losses_by_name["loss"] + norm.item()):
        raise NonFiniteLoss(format_divergence(step, losses_by_name, norm.item(), batch))
    clip_gradients(parameters, settings.solver)
    training.optimizer.step()
    training.optimizer.zero_grad(set_to_none=True)
    return losses_by_name | {"gradient_norm": norm.item()}


def format_divergence(step: int, losses: dict[str, float], norm: float, batch: Batch) -> str:
    """Says where a run has diverged, and what to look at."""
    losses_text = ", ".join(f"{name} {value:g}" for name, value in losses.items())
    return (
        f"step {step}: {losses_text}, gradient norm {norm:g}; no update was made. Images of the "
        "step: "
        f"{', '.join(batch.image_ids[:16])}. Look at their boxes, or lower solver.lr (0.02 is for "
        "16 images a step: scale it with batch_size) or lengthen solver.warmup"
    )
