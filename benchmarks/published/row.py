"""Defines tables of ablations, their rows and figures."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from proof.arms import Arm, Tables
from proof.task_arms import FROM_BERT, TaskArm

ZERO_SHOT = "zero-shot"  # the task of a model that is ranked as it comes from pretraining
IMAGES, CAPTIONS = "image_retrieval", "text_retrieval"
SOUGHT = {IMAGES: "images", CAPTIONS: "captions"}


@dataclass(frozen=True, kw_only=True)
class Step:
    """A pretraining run of so many steps, which continues the one before it."""

    arm: Arm
    steps: int


@dataclass(frozen=True, kw_only=True)
class RowArm(TaskArm):
    """A row's model on one task: its chain of pretraining, then the task's recipe.

    ``tables`` are those that the task is trained and measured on; no ``steps`` of a task measure
    the last checkpoint of the chain as it is.
    """

    chain: tuple[Step, ...] = ()
    tables: Tables = "world"


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """A task's small recipe with changes, and its steps."""

    recipe: str
    steps: int = 300
    changes: tuple[str, ...] = ()


def from_bert_alone(tunings: Mapping[str, Tuning], *changes: str) -> dict[str, Tuning]:
    """The same tasks, learned from BERT without pretraining; before that nothing can rank."""
    return {
        task: replace(tuning, changes=(*tuning.changes, *FROM_BERT, *changes))
        for task, tuning in tunings.items()
        if tuning.steps
    }


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model that rows are about: how it is pretrained, and by which recipes it learns tasks."""

    key: str
    chain: tuple[Step, ...]
    tunings: Mapping[str, Tuning] = field(default_factory=dict)
    tables: Tables = "world"

    def arm(self, task: str, seeds: tuple[int, ...]) -> RowArm:
        """The run that measures it on a task."""
        tuning = self.tunings[task]
        return RowArm(
            task=task,
            name=self.key,
            recipe=tuning.recipe,
            steps=tuning.steps,
            changes=tuning.changes,
            seeds=seeds,
            chain=self.chain,
            tables=self.tables,
        )


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A column: a task's metrics, of which the mean is told, in percent."""

    label: str
    task: str
    metrics: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table. ``published`` are the paper's figures in the order of the table's columns,
    in percent, None where there is none; ``missing`` says why the row cannot run here.
    """

    label: str
    published: tuple[float | None, ...]
    subject: Subject | None = None
    missing: str = ""

    def __post_init__(self) -> None:
        if (self.subject is None) == (not self.missing):
            raise ValueError(
                f"row {self.label}: expected a subject, or the reason that there is none"
            )


@dataclass(frozen=True, kw_only=True)
class AblationTable:
    """A published table: the other rows are compared with the one labelled ``base``."""

    key: str
    title: str
    base: str
    figures: tuple[Figure, ...]
    rows: tuple[Row, ...]
    about: str  # what stands here for what the paper has
    reading: str = ""  # why the measured rows move as they do

    def __post_init__(self) -> None:
        if self.base not in [row.label for row in self.rows]:
            raise ValueError(f"table {self.key}: no row is labelled {self.base}")
        if short := [row.label for row in self.rows if len(row.published) != len(self.figures)]:
            raise ValueError(
                f"table {self.key}: expected a published figure or None each in {short}"
            )

    def arms(self, seeds: tuple[int, ...]) -> tuple[RowArm, ...]:
        """The runs that its figures need: one a row and task."""
        tasks = dict.fromkeys(figure.task for figure in self.figures)
        return tuple(
            row.subject.arm(task, seeds)
            for row in self.rows
            if row.subject is not None
            for task in tasks
            if task in row.subject.tunings
        )


def recall(task: str, direction: str, at: int = 1) -> Figure:
    """R@1, or at another rank, in one direction."""
    said = "zero-shot" if task == ZERO_SHOT else "fine-tuned"
    return Figure(
        label=f"{said} R@{at}, {SOUGHT[direction]}", task=task, metrics=(f"{direction}/r{at}",)
    )


def mean_recall(task: str, direction: str) -> Figure:
    """The mean of R@1, R@5 and R@10 in one direction."""
    return Figure(
        label=f"mean of R@1, 5, 10, {SOUGHT[direction]}",
        task=task,
        metrics=tuple(f"{direction}/r{at}" for at in (1, 5, 10)),
    )


VQA = Figure(label="VQA", task="vqa", metrics=("vqa/test/accuracy",))
