"""``extract-rois train``: tables of boxes and images to a detector, resumable by checkpoint."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from vlmill.extract.config import saved_steps
from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.runtime.console.command import print_status
from vlmill.runtime.console.cost import require_disk_space
from vlmill.runtime.console.log import Log
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.console.stopping import StopRequest, reduce_flags
from vlmill.runtime.files.atomic import write_json
from vlmill.runtime.files.checkpoints import keep_last, remove_partial
from vlmill.runtime.files.inputs import Input
from vlmill.runtime.files.manifest import write_manifest
from vlmill.runtime.files.mirror import push
from vlmill.runtime.files.outputs import State, prepare_output
from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.images import ImageReader
from vlmill.runtime.settings.plain_fields import to_plain
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason, reject, rejects_said
from vlmill.schemas.tables import REJECTS
from vlmill.train.detector.batches import Images, LoadedImage, step_images
from vlmill.train.detector.checkpoints import (
    LOG,
    METRICS,
    REPORT,
    publish,
    remove_run,
    restore_checkpoint,
    save_checkpoint,
)
from vlmill.train.detector.evaluation import evaluate_detector
from vlmill.train.detector.examples import (
    STAGE,
    Examples,
    read_examples,
    read_rows,
    say_examples,
    say_left_out,
)
from vlmill.train.detector.job import JOB, TrainJob, make_accelerator
from vlmill.train.detector.loop import Events, Stopped, Training, run_steps
from vlmill.train.detector.report import write_report
from vlmill.train.detector.settings import TrainingSettings
from vlmill.train.detector.solver import make_optimizer
from vlmill.train.detector.start import new_model, start_from
from vlmill.train.detector.step import DetectorStep


def train(job: TrainJob, *, fresh: bool = False, force: bool = False) -> str:
    """Trains, or goes on; returns what to say at the end.

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
        return f"{job.output}: finished before; --fresh starts over"
    run = Run(job, accelerator)
    if main:
        require_disk_space(run.estimate_min_bytes(), job.output, force=force)
        say_examples(run.examples, settings.detector.num_classes, job.names.classes)
        say_left_out(run.validation, "validation boxes")
        say_sizes(settings)
    try:
        run.train()
    except Stopped:
        return f"{job.output}: stopped; the same command goes on"
    if main:
        run.finish(inputs)
    accelerator.wait_for_everyone()
    return f"{job.output}: {settings.name}, {settings.steps} steps; {run.format_summary()}"


def say_sizes(settings: TrainingSettings) -> None:
    """Tells where a detector extracts from images of a size that it has not seen."""
    trained, detector = settings.short_sides, settings.detector
    if not min(trained) <= detector.short_side <= max(trained):
        print_status(
            f"short_sides={list(trained)} are trained on, but measured and extracted is at "
            f"detector.short_side={detector.short_side} (long side {detector.long_side}): set both"
        )


class Run:
    """Holds a run's network, examples and checkpoints."""

    def __init__(self, job: TrainJob, accelerator: Accelerator) -> None:
        self.job, self.settings, self.accelerator = job, job.settings, accelerator
        self.images = ImageReader(job.images)
        self.examples, self.validation = self.read()
        self.unusable: dict[str, tuple[Reason, str]] = {}  # images, and why
        self.metrics: dict[str, float] = {}
        steps = saved_steps(job.output)
        self.done = max(steps, default=0)
        self.model = FasterRCNN(self.settings.detector) if steps else self.start()
        momenta: Mapping[str, Tensor] = {}
        if steps:
            momenta, rejects = restore_checkpoint(self.model, steps[self.done])
            self.unusable |= rejects
        step = accelerator.prepare(DetectorStep(self.model, self.settings))
        self.optimizer = make_optimizer(self.model, self.settings.solver)
        for name, parameter in self.model.named_parameters():
            if (momentum := momenta.get(name)) is not None:
                self.optimizer.state[parameter]["momentum_buffer"] = momentum.to(parameter.device)
        self.training = Training(
            step=step,
            optimizer=self.optimizer,
            accelerator=accelerator,
            settings=self.settings,
        )

    def read(self) -> tuple[Examples, Examples]:
        """Reads the examples to train and to validate on. Raises InputError where none is left."""
        settings, rows = self.settings, list(read_rows(self.job.boxes))
        examples = read_examples(
            rows, self.images, settings, settings.splits, empty_pictures=settings.empty_pictures
        )
        if not any(len(example.boxes) for example in examples.examples):
            raise InputError(
                f"--boxes {self.job.boxes}: no box of the splits {', '.join(settings.splits)} in a "
                f"image of --images is left ({len(rows)} rows); give others, or splits=[...]"
            )
        splits = (settings.validation_split,)
        held_out = read_examples(rows, self.images, settings, splits, empty_pictures=True)
        max_images = settings.validation_pictures or len(held_out.examples)
        return examples, dataclasses.replace(held_out, examples=held_out.examples[:max_images])

    def start(self) -> FasterRCNN:
        """Builds the network of step 0."""
        settings, job = self.settings, self.job
        if job.init is None and (
            settings.detector.frozen_stages or settings.detector.batch_norm == "frozen"
        ):
            raise InputError(
                f"{settings.name} keeps its normalisations, and the first "
                f"{settings.detector.frozen_stages} stages, as they are: give --init FILE (an "
                "ImageNet ResNet or a detector), or train all of it with "
                "detector.frozen_stages=0 detector.batch_norm=trained"
            )
        model = new_model(settings)
        if job.init is not None:
            origins = start_from(model, job.init, job.names)
            if self.accelerator.is_main_process:
                for line in origins.lines():
                    print_status(f"--init {job.init}: {line}")
        return model

    def train(self) -> None:
        """Runs the steps that are left."""
        settings, accelerator = self.settings, self.accelerator
        main = accelerator.is_main_process
        log = Log(
            self.job.output / LOG,
            after=self.done,
            active=main,
            trackers=settings.trackers,
            settings=to_plain(settings),
        )
        progress = Progress(
            total=settings.steps, unit="step", label=settings.name, done=self.done, visible=main
        )
        with log, progress, StopRequest(partial(reduce_flags, accelerator)) as stop:
            events = Events(
                log=log,
                progress=progress,
                save=partial(self.save, log),
                stopping=stop.is_requested,
                validate=self.validate,
                reject=self.reject,
            )
            if not settings.steps and not self.done:
                self.save(log, 0)
                self.validate(0)
            run_steps(self.steps_of_images(), self.training, events, done=self.done)
        if self.done and self.done == settings.steps:  # it was killed after its last checkpoint
            self.validate(settings.steps)

    def steps_of_images(self) -> Iterator[list[LoadedImage]]:
        """Yields this process's images of each step that is left."""
        settings, accelerator = self.settings, self.accelerator
        return step_images(
            Images(self.examples.examples, self.images, settings),
            settings,
            done=self.done,
            rank=accelerator.process_index,
            processes=accelerator.num_processes,
        )

    def estimate_min_bytes(self) -> int:
        """Returns what checkpoints the run still adds: weights and momenta, where most lie there.

        One more than is kept while the newest is written.
        """
        state = self.model.state_dict().values()
        momenta = [p for p in self.model.parameters() if p.requires_grad]
        checkpoint_bytes: int = sum(tensor.nbytes for tensor in [*state, *momenta])
        settings, there = self.settings, len(saved_steps(self.job.output))
        saves = max(1, -(-settings.steps // settings.save_every))
        return checkpoint_bytes * max(0, min(max(settings.keep_checkpoints, 1) + 1, saves) - there)

    def reject(self, loaded_images: Sequence[LoadedImage]) -> int:
        """Keeps the images that could not be used, each once; returns how many there are."""
        for image in loaded_images:
            if image.reject is not None:
                self.unusable.setdefault(image.image_id, image.reject)
        return len(self.unusable)

    def save(self, log: Log, step: int) -> None:
        """Writes a checkpoint whole, or not at all; the first process does."""
        self.unusable = dict(gather_object(list(self.unusable.items())))
        if not self.accelerator.is_main_process:
            return
        log.flush()
        save_checkpoint(
            self.job.output,
            step,
            self.model,
            self.optimizer,
            classes=self.job.names.classes,
            attributes=self.job.names.attributes,
            recipe=self.settings.name,
            rejects=self.unusable,
        )
        keep_last(saved_steps(self.job.output), self.settings.keep_checkpoints)
        push(self.job.output)

    def validate(self, step: int) -> dict[str, float]:
        """Measures the held-out images, in the first process; nothing where there are none."""
        if self.validation.examples and self.accelerator.is_main_process:
            evaluation = evaluate_detector(self.model, self.validation.examples, self.images)
            self.metrics = evaluation.metrics
            self.unusable |= evaluation.findings.unread
            write_json(self.job.output / METRICS, {"step": step, **self.metrics})
            write_report(
                self.job.output / REPORT,
                evaluation,
                self.images,
                self.job.names.classes,
                to_plain(self.settings),
                title=f"{self.settings.name}, step {step}",
            )
        self.accelerator.wait_for_everyone()
        return {f"validation/{name}": value for name, value in self.metrics.items()}

    def finish(self, inputs: Sequence[Input]) -> None:
        """Leaves the last checkpoint's detector at the top, the rejects and the manifest."""
        publish(self.job.output, self.settings.steps)
        shard = write_shard(self.job.output, REJECTS, self.rejects())
        write_manifest(
            self.job.output,
            [shard],
            job=JOB,
            settings=self.job.plan(inputs),
            inputs=inputs,
            about={"metrics": self.metrics, "boxes_left_out": dict(self.examples.dropped)},
        )

    def rejects(self) -> list[dict[str, object]]:
        """Returns the rows of images that were not trained or not measured on, each once."""
        unusable = [reject(STAGE, key, *why) for key, why in sorted(self.unusable.items())]
        return [*self.examples.rejects, *self.validation.rejects, *unusable]

    def format_summary(self) -> str:
        """Returns what was used and left out, in a line."""
        count = len(self.examples.examples)
        rejects = rejects_said(Counter(str(row["reason"]) for row in self.rejects()))
        metric_texts = [f"{name} {value:.4f}" for name, value in self.metrics.items()][:4]
        return "; ".join([f"{count} images, {rejects}", *metric_texts])
