"""GLUE: eight tasks on texts, as tab-separated files that know no quoting.

Columns are found by their names in the header, as their places differ between the files of a task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmill.pipelines.counting.funnel import Drop
from vlmill.pipelines.manifest.own import clean_text
from vlmill.schemas.rejects import Reason

COLA_COLUMNS = ("source", "label", "mark", "sentence")  # train and dev have no header


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task's columns. ``labels`` are its classes in the order of their numbers; none: a score."""

    folder: str
    text_a: str
    text_b: str | None = None
    label: str = "label"
    labels: tuple[str, ...] = ("0", "1")
    rows: Mapping[str, int]  # by the name of the file, as published

    @property
    def source(self) -> str:
        """Returns the source of its statements: ``glue/cola``."""
        return f"glue/{self.folder.lower()}"


_NLI = ("entailment", "not_entailment")
TASKS = (
    Task(
        folder="CoLA",
        text_a="sentence",
        rows={"train": 8_551, "dev": 1_043, "test": 1_063},
    ),
    Task(folder="SST-2", text_a="sentence", rows={"train": 67_349, "dev": 872, "test": 1_821}),
    Task(
        folder="MRPC",
        text_a="#1 String",
        text_b="#2 String",
        label="Quality",
        rows={"train": 3_668, "dev": 408, "test": 1_725},
    ),
    Task(
        folder="STS-B",
        text_a="sentence1",
        text_b="sentence2",
        label="score",
        labels=(),
        rows={"train": 5_749, "dev": 1_500, "test": 1_379},
    ),
    Task(
        folder="QQP",
        text_a="question1",
        text_b="question2",
        label="is_duplicate",
        rows={"train": 363_846, "dev": 40_430, "test": 390_965},
    ),
    Task(
        folder="MNLI",
        text_a="sentence1",
        text_b="sentence2",
        label="gold_label",
        labels=("entailment", "neutral", "contradiction"),
        rows={
            "train": 392_702,
            "dev_matched": 9_815,
            "dev_mismatched": 9_832,
            "test_matched": 9_796,
            "test_mismatched": 9_847,
        },
    ),
    Task(
        folder="QNLI",
        text_a="question",
        text_b="sentence",
        labels=_NLI,
        rows={"train": 104_743, "dev": 5_463, "test": 5_463},
    ),
    Task(
        folder="RTE",
        text_a="sentence1",
        text_b="sentence2",
        labels=_NLI,
        rows={"train": 2_490, "dev": 277, "test": 3_000},
    ),
)


def header_of(task: Task, split: str) -> tuple[str, ...] | None:
    """Returns the columns of a file that has no header; None for one whose first line is one."""
    return COLA_COLUMNS if task.folder == "CoLA" and not split.startswith("test") else None


def required_columns(task: Task, split: str) -> list[str]:
    """Returns the columns that a file must have."""
    label = [] if split.startswith("test") else [task.label]
    return [task.text_a, *([task.text_b] if task.text_b else []), *label]


def statement_row(
    task: Task, split: str, number: int, columns: Sequence[str], fields: Sequence[str]
) -> dict[str, Any] | Drop:
    """Reads a line as a row of ``statements``. ``number`` counts the rows of the file from 0."""
    if len(fields) != len(columns):
        return Drop(Reason.BAD_ROW, f"{len(fields)} fields instead of {len(columns)}")
    values = dict(zip(columns, fields, strict=True))
    text_a = clean_text(values[task.text_a])
    text_b = clean_text(values[task.text_b]) if task.text_b else None
    if split == "train" and (not text_a or text_b == ""):  # elsewhere every row is scored
        return Drop(Reason.EMPTY_TEXT, f"row {number}")
    label = None if split.startswith("test") else values[task.label].strip()
    judged = label_columns(task, label)
    if isinstance(judged, Drop):
        return judged
    return {
        "example_id": f"{task.source}/{split}/{number}",
        "image_ids": [],
        "text_a": text_a,
        "text_b": text_b,
        "split": split,
        "source": task.source,
        **judged,
    }


def label_columns(task: Task, label: str | None) -> dict[str, Any] | Drop:
    """Returns the columns of a label as published; of a test set, whose labels are not, -1."""
    if label is None:
        return {"label": None, "label_id": -1, "score": None}
    if task.labels:
        if label not in task.labels:
            wanted = ", ".join(task.labels)
            return Drop(Reason.LABEL_UNKNOWN, f"{label!a} is none of {wanted}")
        return {"label": label, "label_id": task.labels.index(label), "score": None}
    try:
        score = float(label)
    except ValueError:
        score = -1.0
    if not 0 <= score <= 5:
        return Drop(Reason.LABEL_UNKNOWN, f"{label!a} is no score from 0 to 5")
    return {"label": label, "label_id": -1, "score": score}
