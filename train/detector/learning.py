"""`Learning` of detectors: annotated images, the losses of regions, the scores of detections.

Groups of parameters, clips, and the rate of each step follow Detectron2's rules (source:
facebookresearch/detectron2, ``solver/build.py`` and ``solver/lr_scheduler.py``).
"""

import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn
from torch.optim import Optimizer

from vlmill.extract.config import InputLimits
from vlmill.extract.images.decode import decode
from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.runtime.console import report
from vlmill.runtime.console.drawing import Corners, draw_boxes
from vlmill.runtime.files.atomic import write_json
from vlmill.runtime.readers.images import ImageReader
from vlmill.runtime.settings.plain_fields import to_plain
from vlmill.schemas.rejects import Reason
from vlmill.train.detector.batches import Images, step_parts
from vlmill.train.detector.evaluation import Evaluation, evaluate_detector, for_inference
from vlmill.train.detector.examples import Examples, get_class_name
from vlmill.train.detector.job import TrainJob
from vlmill.train.detector.saving import CRITERION, METRICS, REPORT
from vlmill.train.detector.settings import Solver, TrainingSettings
from vlmill.train.detector.step import Batch, DetectorStep
from vlmill.train.devices.setup import unwrap_step
from vlmill.train.loading.undecodable import Tolerance
from vlmill.train.run.learning import Criterion
from vlmill.train.run.loop import StageRun
from vlmill.train.run.snapshot import whole_weights
from vlmill.train.run.step import CountLabels
from vlmill.train.run.updates import Update, full_norm

NAMED = 16  # images that a message names

NORMS = (nn.BatchNorm2d, nn.GroupNorm)
NEARLY = 1e-6  # a share of the run that is short of a drop by at most this has reached it


@dataclass(frozen=True, kw_only=True)
class DetectorStage:
    """Describes the only stage of a detector's training, for `StageRun`."""

    batch_size: int
    accumulation: int
    name: str = "detector"
    trained: tuple[str, ...] = ()  # all; the configuration freezes stages


def stage_run(settings: TrainingSettings) -> StageRun:
    """Returns the run of the only stage."""
    stage = DetectorStage(batch_size=settings.batch_size, accumulation=settings.accumulation)
    return StageRun(stage=stage, number=0, offset=0, steps=settings.steps)


@dataclass(kw_only=True)
class DetectorLearning:
    """Trains boxes, classes and attributes; implements `Learning`.

    Every part of a step divides by its own examples, and gradients are averaged over parts, as
    Detectron2 averages the gradients of processes.
    """

    job: TrainJob
    accelerator: Accelerator
    images: ImageReader
    examples: Examples
    validation: Examples
    metrics: dict[str, float] = field(default_factory=dict)  # of the last validation
    measured_at: int | None = None  # the step of that
    unread: dict[str, tuple[Reason, str]] = field(default_factory=dict)  # held-out images, and why

    @property
    def criterion(self) -> Criterion:
        """Returns Visual Genome's mean average precision."""
        return CRITERION

    @property
    def tolerance(self) -> Tolerance:
        """Returns no limit: a step continues without the images that cannot be used."""
        return Tolerance(images=len(self.examples.examples), share=1.0)

    def reads_images(self, run: StageRun) -> bool:
        """Returns True: every batch has pixels."""
        return True

    def training_parts(self, run: StageRun, done: int) -> Iterator[Batch]:
        """Yields this process's parts of the steps after ``done``, endlessly."""
        settings = self.job.settings
        return step_parts(
            Images(self.examples.examples, self.images, settings),
            settings,
            done=done,
            rank=self.accelerator.process_index,
            processes=self.accelerator.num_processes,
        )

    def step(
        self, model: nn.Module, run: StageRun, device: torch.device, *, blank: bool = False
    ) -> DetectorStep | None:
        """Returns the losses; None for a model without values, whose proposals select no
        examples.
        """
        assert isinstance(model, FasterRCNN)
        return None if blank else DetectorStep(model, self.job.settings)

    def count_labels(self, run: StageRun) -> CountLabels:
        """Returns 1 for each part, so that all parts have the same share."""
        return lambda part: {"part": 1}

    def update(self, model: nn.Module, run: StageRun) -> Update:
        """Returns the recipe's solver."""
        solver = self.job.settings.solver
        trained = [p for p in model.parameters() if p.requires_grad]
        return Update(
            optimizer=make_optimizer(model, solver),
            rate=lambda step: solver.lr * rate_factor(step - 1, run.steps, solver),
            clip_gradients=partial(clip_by_solver, parameters=trained, solver=solver),
        )

    @staticmethod
    def explain(
        step: int,
        losses: Mapping[str, float],
        norm: float,
        parts: Sequence[Any],
        module: nn.Module,
        accelerator: Accelerator,
    ) -> str:
        """Returns the message of a step that is not finite, with its images and remedies."""
        losses_text = ", ".join(f"{name} {value:g}" for name, value in losses.items())
        images = [image_id for part in parts for image_id in part.image_ids]
        return (
            f"step {step}: {losses_text}, gradient norm {norm:g}; no update was made. Images of "
            f"the step: {', '.join(images[:NAMED])}. Look at their boxes, or lower solver.lr (0.02 "
            "is for 16 images a step: scale it with batch_size) or lengthen solver.warmup"
        )

    def estimate_bytes(self, stages: tuple[Any, ...]) -> int:
        """Returns 0: the memory of a detector's step is not estimated."""
        return 0

    def validates_every(self, run: StageRun) -> int:
        """Returns the recipe's number, or all steps; 0 without held-out images."""
        if not self.validation.examples:
            return 0
        return self.job.settings.validate_every or run.steps

    def measure(self, run: StageRun, step: int, module: nn.Module) -> dict[str, float]:
        """Measures the held-out images in the first process; writes the numbers and the report."""
        model = unwrap_step(module).model
        weights, broadcast = whole_weights(model), [self.metrics]
        if self.accelerator.is_main_process:
            job, settings = self.job, to_plain(self.job.settings)
            network = for_inference(model.config, weights, self.accelerator.device)
            evaluation = evaluate_detector(network, self.validation.examples, self.images)
            broadcast = [evaluation.metrics]
            self.unread |= evaluation.findings.unread
            write_json(job.output / METRICS, {"step": step, **evaluation.metrics})
            title = f"{job.settings.name}, step {step}"
            names = job.names.classes
            write_report(job.output / REPORT, evaluation, self.images, names, settings, title=title)
        self.metrics, self.measured_at = broadcast_object_list(broadcast)[0], step
        return {f"validation/{name}": value for name, value in self.metrics.items()}


def clip_by_solver(
    optimizer: Optimizer, accelerator: Accelerator, *, parameters: Sequence[Tensor], solver: Solver
) -> Float[Tensor, " 1"]:
    """Clips as the solver specifies; returns the whole gradient's norm before clipping."""
    updated = [p for p in parameters if p.grad is not None]
    norm = nn.utils.get_total_norm([p.grad for p in updated if p.grad is not None])
    clip_gradients(updated, solver)
    return full_norm(norm).reshape(1)


def norm_parameters(model: nn.Module) -> set[str]:
    """Returns the names of the parameters that normalisations learn."""
    return {
        f"{name}.{parameter}"
        for name, module in model.named_modules()
        if isinstance(module, NORMS)
        for parameter, _ in module.named_parameters(recurse=False)
    }


def parameter_groups(
    named_parameters: Iterable[tuple[str, Tensor]], norms: set[str], solver: Solver
) -> list[dict[str, Any]]:
    """Returns the trained parameters by how they are treated; ``rate`` is a factor of the rate."""
    groups: dict[tuple[float, float], list[Tensor]] = {}
    for name, parameter in named_parameters:
        if parameter.requires_grad:
            groups.setdefault(treatment(name, norms, solver), []).append(parameter)
    return [
        {"params": members, "rate": rate, "lr": solver.lr * rate, "weight_decay": decay}
        for (rate, decay), members in groups.items()
    ]


def treatment(name: str, norms: set[str], solver: Solver) -> tuple[float, float]:
    """Returns a parameter's factor of the rate, and its decay; a bias's rule overrides a norm's."""
    rate, decay = 1.0, solver.weight_decay
    if name in norms and solver.norm_decay is not None:
        decay = solver.norm_decay
    if name.rpartition(".")[2] == "bias":
        rate = solver.bias_rate
        decay = decay if solver.bias_decay is None else solver.bias_decay
    return rate, decay


def make_optimizer(model: nn.Module, solver: Solver) -> torch.optim.SGD:
    """Makes the optimiser of everything that is trained."""
    groups = parameter_groups(model.named_parameters(), norm_parameters(model), solver)
    return torch.optim.SGD(groups, lr=solver.lr, momentum=solver.momentum, nesterov=solver.nesterov)


def clip_gradients(parameters: Sequence[Tensor], solver: Solver) -> None:
    """Clips the gradients in place, before the decay is added: each tensor separately (``value``,
    ``norm``), as Detectron2 does, or all of them together (``global``).
    """
    if solver.clip == "value":
        nn.utils.clip_grad_value_(parameters, solver.clip_at)
    elif solver.clip == "norm":
        for parameter in parameters:
            nn.utils.clip_grad_norm_(parameter, solver.clip_at, solver.clip_norm)
    elif solver.clip == "global":
        nn.utils.clip_grad_norm_(parameters, solver.clip_at, solver.clip_norm)


def rate_factor(iteration: int, steps: int, solver: Solver) -> float:
    """Returns the share of ``lr`` at an iteration, from 0, of a run of ``steps``.

    The warm-up rises to the schedule's value at its end, so a drop inside of it lowers the whole
    ramp.
    """
    warmup = min(solver.warmup, steps)
    if not warmup or iteration / steps + NEARLY > warmup / steps:
        if solver.rescale and steps > warmup:
            return schedule_share((iteration - warmup) / (steps - warmup) * steps, steps, solver)
        return schedule_share(iteration, steps, solver)
    start = solver.warmup_from * schedule_share(0, steps, solver)
    if solver.warmup_method == "constant":
        return start
    end = schedule_share(0 if solver.rescale else warmup, steps, solver)
    return start + (end - start) * iteration / warmup


def schedule_share(iteration: float, steps: int, solver: Solver) -> float:
    """Returns the share of ``lr`` at an iteration, without a warm-up."""
    if solver.schedule == "cosine":
        wave = 0.5 * (1 + math.cos(math.pi * iteration / max(steps, 1)))
        return solver.end + (1 - solver.end) * wave
    reached = sum(iteration + NEARLY * steps >= drop for drop in solver.drops)
    return float(solver.drop_factor**reached)


SHOWN_CLASSES, SHOWN_IMAGES, SHOWN_BOXES = 20, 12, 8
SIDE_PX, GAP_PX = 360, 8
COUNTS = ("pictures", "boxes")  # the measures that are not shares


def write_report(
    path: Path,
    evaluation: Evaluation,
    images: ImageReader,
    classes: Sequence[str],
    settings: dict[str, object],
    *,
    title: str,
) -> None:
    """Writes one file with its images inside."""
    rows = [
        [name, f"{value:.0f}" if name in COUNTS else f"{value:.4f}"]
        for name, value in evaluation.metrics.items()
    ]
    sections = [
        report.Section(title="Held-out images", body=report.html_table(["measure", "value"], rows)),
        *class_sections(evaluation, classes),
        report.Section(title="Images", body=report.image_cards(cards(evaluation, images, classes))),
        report.Section(title="Settings", body=report.settings_table(settings)),
    ]
    report.write_page(path, title, sections)


def class_sections(evaluation: Evaluation, classes: Sequence[str]) -> list[report.Section]:
    """Lists the best and the worst of the classes that have a true box."""
    scores = evaluation.classes
    there = np.flatnonzero(scores.counts)
    order = there[np.argsort(-scores.average_precision[there], kind="stable")]
    sections = []
    for title, ranking in (("Best classes", order), ("Worst classes", order[::-1])):
        rows = [
            [
                get_class_name(classes, class_number),
                f"{scores.average_precision[class_number]:.4f}",
                int(scores.counts[class_number]),
            ]
            for class_number in ranking[:SHOWN_CLASSES].tolist()
        ]
        body = report.html_table(["class", "average precision", "boxes"], rows)
        sections.append(report.Section(title=title, body=body))
    return sections


def cards(
    evaluation: Evaluation, images: ImageReader, classes: Sequence[str]
) -> list[dict[str, str]]:
    """Shows the first images twice: with their true boxes, and with the most certain detections."""
    findings, drawn = evaluation.findings, []
    for example, rows in list(zip(findings.examples, findings.coco, strict=True))[:SHOWN_IMAGES]:
        data = images.read_bytes(example.row)
        assert data is not None  # it was looked at
        pixels = decode(data, InputLimits())
        image = Image.fromarray(np.ascontiguousarray(pixels[:, :, ::-1]))
        true = [
            (corners(box), get_class_name(classes, number))
            for box, number in zip(example.boxes, example.classes.tolist(), strict=True)
        ]
        detected = [
            (corners(row[2:6]), f"{get_class_name(classes, int(row[1]))} {row[6]:.2f}")
            for row in rows[:SHOWN_BOXES]
        ]
        size, enlarged = image.size, max(1.0, SIDE_PX / max(image.size))
        image = image.resize((round(size[0] * enlarged), round(size[1] * enlarged)))
        sides = [
            draw_boxes(image, boxes, size=size, max_side_px=SIDE_PX) for boxes in (true, detected)
        ]
        canvas = Image.new("RGB", (2 * sides[0].width + GAP_PX, sides[0].height), "white")
        for index, side in enumerate(sides):
            canvas.paste(side, (index * (side.width + GAP_PX), 0))
        out = io.BytesIO()
        canvas.save(out, "JPEG", quality=85)
        drawn.append(
            {
                "uri": report.image_uri(out.getvalue(), "image/jpeg"),
                "text": example.image_id,
                "about": f"left: {len(true)} true boxes; right: {len(detected)} of {len(rows)} "
                "detections",
            }
        )
    return drawn


def corners(box: npt.NDArray[np.floating]) -> Corners:
    """Returns a box's corners as numbers."""
    x1, y1, x2, y2 = box.tolist()
    return x1, y1, x2, y2
