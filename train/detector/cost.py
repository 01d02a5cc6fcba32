"""What a detector's training costs: checkpoints by their size, hours at the rate of first steps."""

import dataclasses
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from vlmill.runtime.console.cost import SECONDS_MEASURED, Estimate, Rate, compute_rate
from vlmill.runtime.console.log import Log
from vlmill.runtime.console.progress import Progress
from vlmill.schemas.errors import InputError
from vlmill.train.detector.job import TrainJob, make_accelerator
from vlmill.train.detector.loop import Events, Stopped, run_steps
from vlmill.train.detector.run import Run


def estimate_run(job: TrainJob) -> Estimate:
    """Returns what a run costs from its first step to its last, and writes nothing.

    Raises InputError as the run would, and under a launcher.
    """
    accelerator = make_accelerator(job.settings)
    if accelerator.num_processes > 1:
        raise InputError("--dry-run measures one process; start it without a launcher")
    with tempfile.TemporaryDirectory(prefix="vlmill-dry-run-") as scratch:
        run = Run(dataclasses.replace(job, output=Path(scratch)), accelerator)
        rate = measure_steps(run)
    examples, held_out = run.examples.examples, run.validation.examples
    boxes = sum(len(example.boxes) for example in examples)
    return Estimate(
        inputs={
            "--boxes": f"{len(examples):,} images, {boxes:,} boxes",
            "validation": f"{len(held_out):,} images",
            "steps": f"{job.settings.steps:,} of {job.settings.batch_size} images",
        },
        min_bytes=run.estimate_min_bytes(),
        seconds=rate.seconds_for(job.settings.steps),
        rate=rate,
        note="output is checkpoints; the time is that of the steps, without validation",
    )


def measure_steps(run: Run, limit_s: float = SECONDS_MEASURED) -> Rate:
    """Returns the rate of the first steps, of which nothing is saved or logged."""
    times = [time.perf_counter()]

    def enough() -> bool:
        times.append(time.perf_counter())
        return times[-1] - times[0] >= limit_s

    with (
        Progress(total=None, unit="step", label="first steps", visible=False) as progress,
        Log(run.job.output / "log.jsonl", after=0, active=False) as log,
    ):
        events = Events(
            log=log,
            progress=progress,
            save=lambda _: None,
            stopping=enough,
            validate=lambda _: {},
            reject=lambda _: 0,
        )
        with suppress(Stopped):  # at its limit
            run_steps(run.steps_of_images(), run.training, events, done=0)
    return compute_rate(times, "steps")
