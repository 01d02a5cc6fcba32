"""Estimates a pretraining run's cost: checkpoints by size, hours by the rate of its first steps."""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from vlmill.runtime.console.cost import SECONDS_MEASURED, Rate, compute_rate
from vlmill.runtime.console.log import Log
from vlmill.runtime.console.progress import Progress
from vlmill.train.checkpoints.folders import saved_steps
from vlmill.train.optim.groups import is_trained
from vlmill.train.recipes import RunSettings
from vlmill.train.run.loop import Events, StageRun, Stopped, run_stage
from vlmill.train.run.runner import LOG, Runner

FLOAT32_BYTES = 4
MOMENTS = 2  # of AdamW, for each number that is trained


def checkpoint_bytes(parameters: int, trained: int, *, averaged: bool) -> int:
    """Returns the bytes of weights and AdamW's moments in float32, and of averaged weights."""
    return FLOAT32_BYTES * (parameters + MOMENTS * trained + (trained if averaged else 0))


def num_saves(recipe: RunSettings, stages: Sequence[StageRun]) -> int:
    """Returns how many checkpoints are written: every ``save_every`` steps and after each stage."""
    ends = {run.last for run in stages if run.steps}
    last = stages[-1].last
    at_ends = sum(end % recipe.save_every != 0 for end in ends)
    return last // recipe.save_every + at_ends or 1


def checkpoints_bytes(runner: Runner[Any, Any]) -> int:
    """Returns a lower bound of the bytes that the run still adds to its folder: its checkpoints.

    While the newest is written, one more than is kept exists. An earlier start's are already there.
    """
    recipe, stages = runner.recipe, runner.stages
    sizes = {name: p.numel() for name, p in runner.model.named_parameters()}
    trained = min(
        sum(n for name, n in sizes.items() if name in runner.trainable and is_trained(name, stage))
        for stage in (run.stage for run in stages)
    )
    checkpoint_size = checkpoint_bytes(sum(sizes.values()), trained, averaged=bool(recipe.average))
    saves, num_kept = num_saves(recipe, stages), int(recipe.keep_checkpoints)
    there = len(saved_steps(runner.output))
    return checkpoint_size * max(0, min(num_kept + 1, saves) - there)


def measure(runner: Runner[Any, Any], run: StageRun, limit_s: float = SECONDS_MEASURED) -> Rate:
    """Measures the rate of a stage's first steps, without the very first, which loads the data.

    Nothing is saved or logged. Where the limit leaves no second step, the first one counts.
    """
    training = runner.build_training(run)
    run, times = runner.divide(run, training, 0), [time.perf_counter()]

    def after_step() -> None:
        runner.after_step()
        times.append(time.perf_counter())

    with (
        Progress(total=None, unit="step", label="first steps", visible=False) as progress,
        Log(runner.output / LOG, after=0, active=False) as log,
    ):
        events = Events(
            log=log,
            progress=progress,
            throughput=runner.throughput(run),
            log_every=run.steps + 1,
            save=lambda *_: None,
            save_every=run.steps + 1,
            after_step=after_step,
            validate=lambda _: {},
            validate_every=0,
            enough=lambda: False,
            reject=runner.noting(run),
            stopping=lambda: times[-1] - times[0] >= limit_s,
        )
        with suppress(Stopped):  # at its limit
            run_stage(run, runner.learning.training_parts(run, 0), training, events, done=0)
    return compute_rate(times, "steps")
