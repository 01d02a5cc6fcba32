"""Runs the training loop over the steps of a stage."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

from vlmill.runtime.console.log import Log
from vlmill.runtime.console.progress import Progress
from vlmill.schemas.errors import InputError
from vlmill.train.devices.throughput import Throughput, peak_memory
from vlmill.train.run.step import PartT, StepPart, Training, Uploads, train_step


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


class StepInputs(Generic[PartT]):
    """Takes the ``count`` parts of each step from ``parts``; ``seconds`` is the time it waited.

    With ``uploads`` it can fetch a step's parts while the device computes the previous step.
    """

    def __init__(
        self, parts: Iterator[PartT], count: int, uploads: Uploads[PartT] | None = None
    ) -> None:
        self._parts, self._count, self._uploads = parts, count, uploads
        self._fetched: list[PartT] | Exception | None = None
        self.seconds = 0.0

    def fetch(self) -> None:
        """Takes the parts of the next step, if there is one, and starts to copy the first. An error
        is raised when that step takes its parts.
        """
        try:
            self._fetched = self._next()
        except Exception as error:
            self._fetched = error
            return
        if self._uploads is not None:
            self._uploads.start(self._fetched[0])

    def take(self) -> list[PartT]:
        """Returns the parts of the next step."""
        fetched, self._fetched = self._fetched, None
        if isinstance(fetched, Exception):
            raise fetched
        return self._next() if fetched is None else fetched

    def _next(self) -> list[PartT]:
        started = time.perf_counter()
        try:
            return [next(self._parts) for _ in range(self._count)]
        finally:
            self.seconds += time.perf_counter() - started


@dataclass(frozen=True, kw_only=True)
class Events:
    """Holds a loop's actions other than training; steps are the run's, counted from 1 over stages.

    ``after_step`` follows every update (the moving average). ``validate`` measures the held-out
    pairs, and ``enough`` returns whether the stage ends because they have not improved for as long
    as the recipe waits. ``save`` gets the metrics that the step has measured. ``reject`` takes the
    parts of a step, or the error that prevented them, and returns the number of undecodable images
    that the run has met. ``stopping`` returns whether to save and stop.
    """

    log: Log
    progress: Progress
    throughput: Throughput
    log_every: int
    save: Callable[[int, Mapping[str, float]], None]
    save_every: int
    after_step: Callable[[], None]
    validate: Callable[[int], dict[str, float]]
    validate_every: int
    enough: Callable[[], bool]
    reject: Callable[[int, Sequence[StepPart] | InputError], int]
    stopping: Callable[[], bool]


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
        if within == done + 1:
            events.throughput.count(parts)
        numbers = train_step(step, parts, training, inputs.fetch)
        events.after_step()
        line: dict[str, object] = {"step": step, "stage": stage.name, **numbers, "lr": rate}
        if undecodable:
            line["undecodable_pictures"] = undecodable
        last, every, measured = within == run.steps, events.validate_every, dict[str, float]()
        if every and (last or step % every == 0):
            measured = events.validate(step)
            line |= measured
            training.step_module.train()
        if step % events.log_every == 0 or within == 1 or last or measured:
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
        if step % events.save_every == 0 or last or measured or stopping:
            events.log.flush()
            events.save(step, measured)
        if measured and events.enough():
            return
        if stopping and not last:
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
