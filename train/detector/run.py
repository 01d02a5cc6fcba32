"""Runs ``extract-rois train``: from tables of boxes and images to a detector, resumable."""

import dataclasses
import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from accelerate import Accelerator

from vlmill.extract.config import saved_steps
from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.runtime.console.command import print_status
from vlmill.runtime.console.cost import Estimate, require_disk_space
from vlmill.runtime.console.stopping import reduce_flags
from vlmill.runtime.files.checkpoints import remove_partial
from vlmill.runtime.files.inputs import Input
from vlmill.runtime.files.manifest import write_manifest
from vlmill.runtime.files.outputs import State, prepare_output
from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.images import ImageReader
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import format_rejects, reject
from vlmill.schemas.tables import REJECTS
from vlmill.train.detector.examples import (
    STAGE,
    Examples,
    read_examples,
    read_rows,
    say_examples,
    say_left_out,
)
from vlmill.train.detector.job import JOB, TrainJob, make_accelerator
from vlmill.train.detector.learning import DetectorLearning, stage_run
from vlmill.train.detector.saving import DetectorSaving, remove_run
from vlmill.train.detector.settings import TrainingSettings
from vlmill.train.detector.start import new_model, start_from
from vlmill.train.detector.step import DetectorStep
from vlmill.train.run.cost import measure
from vlmill.train.run.loop import Stopped
from vlmill.train.run.runner import Runner, RunSetup

DetectorRunner = Runner[DetectorLearning, DetectorSaving]


def train(job: TrainJob, *, fresh: bool = False, force: bool = False) -> str:
    """Trains a detector, or continues; returns a line that describes the result.

    Raises InputError, for a disk that is too small unless ``force`` is set, and ArithmeticError.
    """
    settings = job.settings
    accelerator = make_accelerator(settings)
    main = accelerator.is_main_process
    inputs, finished = job.inputs(), False
    if main:
        if fresh:
            remove_run(job.output)
        state = prepare_output(job.output, job=JOB, settings=job.plan(inputs), fresh=fresh)
        finished = state is State.FINISHED
        if not finished:
            remove_partial(job.output)
    if reduce_flags(accelerator, finished):  # all wait here until the folder is ready
        return f"{job.output}: already finished; --fresh starts over"
    runner = open_run(job, accelerator)
    learning = runner.learning
    if main:
        require_disk_space(estimate_min_bytes(runner), job.output, force=force)
        say_examples(learning.examples, settings.detector.num_classes, job.names.classes)
        say_left_out(learning.validation, "validation boxes")
        warn_about_sizes(settings)
    try:
        runner.train()
    except Stopped:
        return f"{job.output}: stopped; the same command continues"
    if learning.validation.examples and learning.measured_at != runner.done:
        # It has no step, or was killed after its last checkpoint.
        assert isinstance(runner.model, FasterRCNN)
        step = DetectorStep(runner.model, settings).to(accelerator.device)
        runner.validate(runner.stages[0], runner.done, step)
    if main:
        finish(runner, inputs)
    accelerator.wait_for_everyone()
    return f"{job.output}: {settings.name}, {runner.done} steps; {format_summary(runner)}"


def warn_about_sizes(settings: TrainingSettings) -> None:
    """Prints where a detector extracts from images of a size that it was not trained on."""
    trained, detector = settings.short_sides, settings.detector
    if not min(trained) <= detector.short_side <= max(trained):
        print_status(
            f"short_sides={list(trained)} are used for training, but measuring and extracting use "
            f"detector.short_side={detector.short_side} (long side "
            f"{detector.long_side}): set both to the same"
        )


def open_run(job: TrainJob, accelerator: Accelerator) -> DetectorRunner:
    """Reads a run's examples, and its last checkpoint or first weights."""
    images = ImageReader(job.images)
    examples, validation = read_splits(job, images)
    learning = DetectorLearning(
        job=job, accelerator=accelerator, images=images, examples=examples, validation=validation
    )
    setup = RunSetup(
        recipe=job.settings,
        output=job.output,
        stages=[stage_run(job.settings)],
        accelerator=accelerator,
    )
    first = partial(first_model, job, speaks=accelerator.is_main_process)
    return Runner(setup, learning, DetectorSaving(job, accelerator), first)


def read_splits(job: TrainJob, images: ImageReader) -> tuple[Examples, Examples]:
    """Reads the examples to train and to validate on. Raises InputError if none are left."""
    settings, rows = job.settings, list(read_rows(job.boxes))
    examples = read_examples(
        rows, images, settings, settings.splits, empty_pictures=settings.empty_pictures
    )
    if not any(len(example.boxes) for example in examples.examples):
        raise InputError(
            f"--boxes {job.boxes}: no box of the splits {', '.join(settings.splits)} "
            f"has an image in --images ({len(rows)} rows); give other tables, or set splits=[...]"
        )
    splits = (settings.validation_split,)
    held_out = read_examples(rows, images, settings, splits, empty_pictures=True)
    max_images = settings.validation_pictures or len(held_out.examples)
    return examples, dataclasses.replace(held_out, examples=held_out.examples[:max_images])


def first_model(job: TrainJob, *, speaks: bool) -> FasterRCNN:
    """Builds the network of step 0; with ``speaks`` prints what came from ``--init``."""
    settings = job.settings
    if job.init is None and (
        settings.detector.frozen_stages or settings.detector.batch_norm == "frozen"
    ):
        raise InputError(
            f"{settings.name} does not train the normalisations and the first "
            f"{settings.detector.frozen_stages} stages: give --init FILE (an ImageNet "
            "ResNet or a detector), or train everything with detector.frozen_stages=0 "
            "detector.batch_norm=trained"
        )
    model = new_model(settings)
    if job.init is not None:
        origins = start_from(model, job.init, job.names)
        for line in origins.lines() if speaks else ():
            print_status(f"--init {job.init}: {line}")
    return model


def estimate_min_bytes(runner: DetectorRunner) -> int:
    """Returns a lower bound of the bytes of checkpoints still to write: weights, momenta, averages.

    One more than is kept exists while the newest is written.
    """
    settings, trained = runner.learning.job.settings, runner.model.parameters()
    copies = 2 if settings.average else 1
    state_bytes: int = sum(tensor.nbytes for tensor in runner.model.state_dict().values())
    state_bytes += copies * sum(p.nbytes for p in trained if p.requires_grad)
    saves = max(1, -(-settings.steps // settings.save_every))
    there = len(saved_steps(runner.output))
    return state_bytes * max(0, min(max(settings.keep_checkpoints, 1) + 1, saves) - there)


def estimate_run(job: TrainJob) -> Estimate:
    """Returns the cost of a run from its first step to its last; writes nothing.

    Raises InputError as the run would, and under a launcher.
    """
    accelerator = make_accelerator(job.settings)
    if accelerator.num_processes > 1:
        raise InputError("--dry-run measures one process; start it without a launcher")
    with tempfile.TemporaryDirectory(prefix="vlmill-dry-run-") as scratch:
        runner = open_run(dataclasses.replace(job, output=Path(scratch)), accelerator)
        rate = measure(runner, runner.stages[0])
        min_bytes = estimate_min_bytes(runner)
    examples, held_out = runner.learning.examples.examples, runner.learning.validation.examples
    boxes = sum(len(example.boxes) for example in examples)
    return Estimate(
        inputs={
            "--boxes": f"{len(examples):,} images, {boxes:,} boxes",
            "validation": f"{len(held_out):,} images",
            "steps": f"{job.settings.steps:,} of {job.settings.batch_size} images",
        },
        min_bytes=min_bytes,
        seconds=rate.seconds_for(job.settings.steps),
        rate=rate,
        note="the output is checkpoints; the time is for the steps, without validation",
    )


def finish(runner: DetectorRunner, inputs: Sequence[Input]) -> None:
    """Writes the run's detector at the top, the rejects and the manifest."""
    learning, job = runner.learning, runner.learning.job
    runner.saving.publish(runner.done)
    shard = write_shard(job.output, REJECTS, make_rejects(runner))
    write_manifest(
        job.output,
        [shard],
        job=JOB,
        settings=job.plan(inputs),
        inputs=inputs,
        about={"metrics": learning.metrics, "boxes_left_out": dict(learning.examples.dropped)},
    )
    runner.rejecting.forget()


def make_rejects(runner: DetectorRunner) -> list[dict[str, object]]:
    """Returns the rows of images that were not trained or not measured on, each once."""
    learning = runner.learning
    met = {key: (fault.reason, fault.why) for key, fault in runner.rejecting.met.items()}
    unusable = [reject(STAGE, key, *why) for key, why in sorted((met | learning.unread).items())]
    return [*learning.examples.rejects, *learning.validation.rejects, *unusable]


def format_summary(runner: DetectorRunner) -> str:
    """Returns a line with the numbers of images and rejects, and the first metrics."""
    count = len(runner.learning.examples.examples)
    rejects = format_rejects(Counter(str(row["reason"]) for row in make_rejects(runner)))
    metrics = runner.learning.metrics
    metric_texts = [f"{name} {value:.4f}" for name, value in metrics.items()][:4]
    return "; ".join([f"{count} images, {rejects}", *metric_texts])
