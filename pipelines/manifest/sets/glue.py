"""Reads GLUE: eight text tasks, as tab-separated files without quoting.

Columns are found by their names in the header, as their positions differ between the files of a
task.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from vlmill.pipelines.manifest.cleaning import clean_text
from vlmill.pipelines.manifest.entries import DataSet, Entry, Expected, Reading
from vlmill.pipelines.manifest.layouts.glue_hub import (
    HubFile,
    find_hub_files,
    hub_entries,
    make_hub_task,
)
from vlmill.pipelines.manifest.reading.lines import tsv_rows
from vlmill.pipelines.manifest.reading.sources import Folder, Source
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import STATEMENTS

# All columns of the published files, for any task.
COLUMNS = frozenset(
    (
        *("index", "id", "source", "label", "mark", "sentence", "Quality", "score", "question"),
        *("#1 ID", "#2 ID", "#1 String", "#2 String", "qid1", "qid2", "question1", "question2"),
        *("is_duplicate", "genre", "filename", "year", "old_index", "source1", "source2"),
        *("sentence1", "sentence2", "promptID", "pairID", "sentence1_parse", "sentence2_parse"),
        *("sentence1_binary_parse", "sentence2_binary_parse", "gold_label"),
        *("label1", "label2", "label3", "label4", "label5"),
    )
)
COLA_COLUMNS = ("source", "label", "mark", "sentence")  # train and dev have no header


@dataclass(frozen=True, kw_only=True)
class Task:
    """Holds a task's columns. ``labels`` are its classes by number; empty: a score."""

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
    Task(folder="CoLA", text_a="sentence", rows={"train": 8_551, "dev": 1_043, "test": 1_063}),
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


def get_header(task: Task, split: str) -> tuple[str, ...] | None:
    """Returns the columns of a file without a header; None if its first line is a header."""
    return COLA_COLUMNS if task.folder == "CoLA" and not split.startswith("test") else None


def required_columns(task: Task, split: str) -> list[str]:
    """Returns the columns that a file must have."""
    label = [] if split.startswith("test") else [task.label]
    return [task.text_a, *([task.text_b] if task.text_b else []), *label]


def statement_row(
    task: Task, split: str, number: int, columns: Sequence[str], fields: Sequence[str]
) -> dict[str, Any] | Drop:
    """Converts a line to a row of ``statements``. ``number`` counts the rows of the file from 0."""
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
    """Returns the columns of a published label; -1 for a test set, whose labels are not public."""
    if label is None:
        return {"label": None, "label_id": -1, "score": None}
    if task.labels:
        if label not in task.labels:
            known_labels = ", ".join(task.labels)
            return Drop(Reason.LABEL_UNKNOWN, f"{label!a} is none of {known_labels}")
        return {"label": label, "label_id": task.labels.index(label), "score": None}
    try:
        score = float(label)
    except ValueError:
        score = -1.0
    if not 0 <= score <= 5:
        return Drop(Reason.LABEL_UNKNOWN, f"{label!a} is not a score from 0 to 5")
    return {"label": label, "label_id": -1, "score": score}


# The data set


def open_glue(folder: Folder, args: argparse.Namespace) -> Reading:
    """Opens the files of the tasks that exist. Raises InputError."""
    files = [
        (task, split, source)
        for task in TASKS
        for split in task.rows
        if (source := find_file(folder, task, split)) is not None
    ]
    is_raw = any((folder.root / "MRPC").glob("msr_paraphrase_*.txt"))  # without GLUE's split
    if any(task.folder == "MRPC" for task, _, _ in files) or not is_raw:
        if files:
            return make_reading(files)
        tasks = {make_hub_task(task.source, task.labels): task for task in TASKS}
        if hub_files := find_hub_files(folder, list(tasks)):
            return make_hub_reading(hub_files, {h.folder: task for h, task in tasks.items()})
        raise folder.lacks(f"folder of a task ({', '.join(t.folder for t in TASKS)})")
    raise InputError(
        f"--input {folder.root}: MRPC has the raw files msr_paraphrase_*.txt; create "
        "train.tsv, dev.tsv and test.tsv from them with GLUE's download script, or move "
        "the folder MRPC elsewhere"
    )


def make_hub_reading(files: Sequence[HubFile], tasks: Mapping[str, Task]) -> Reading:
    """Returns the reading of the hub's Parquet files."""
    return Reading(
        sources=tuple(source for file in files for source in file.sources),
        entries=lambda: chain.from_iterable(map(hub_entries, files)),
        expected={
            file.group: Expected(
                rows=tasks[file.task.folder].rows[file.split], source="the published files"
            )
            for file in files
        },
    )


def make_file_name(task: Task, split: str) -> str:
    """Returns a file's name with its folder."""
    return f"{task.folder}/{split}.tsv"


def find_file(folder: Folder, task: Task, split: str) -> Source | None:
    """Returns a split's file in its task's folder, as all tasks use the same file names."""
    source = folder.find(make_file_name(task, split))
    if source is None or (source.member is None and source.path.parent.name != task.folder):
        return None
    return source


def make_reading(files: Sequence[tuple[Task, str, Source]]) -> Reading:
    """Returns the reading of some tasks' files.

    Raises InputError for a file that lacks a column of its task.
    """
    columns = [read_columns(task, split, source) for task, split, source in files]
    return Reading(
        sources=tuple(source for _, _, source in files),
        entries=lambda: chain.from_iterable(
            glue_entries(*file, names) for file, names in zip(files, columns, strict=True)
        ),
        expected={
            make_file_name(task, split): Expected(
                rows=task.rows[split], source="the published files"
            )
            for task, split, _ in files
        },
    )


def read_columns(task: Task, split: str, source: Source) -> tuple[str, ...]:
    """Returns the names of a file's columns. Raises InputError if one is missing."""
    names = get_header(task, split)
    if names is None:
        _, first = next(tsv_rows(source), (0, []))
        names = () if isinstance(first, Drop) else tuple(name.strip() for name in first)
    if missing := [name for name in required_columns(task, split) if name not in names]:
        there = ", ".join(names)[:200] or "none"
        raise InputError(
            f"{source.display_name} has no column {', '.join(missing)} (it has {there}); is it "
            "the task's "
            "file of GLUE?"
        )
    source.remarks.check(names, COLUMNS)
    return names


def glue_entries(task: Task, split: str, source: Source, columns: Sequence[str]) -> Iterator[Entry]:
    """Yields the statements of a file in the order of its lines, numbered without the header."""
    first = 0 if get_header(task, split) else 1
    for line, fields in tsv_rows(source):
        if line < first:
            continue
        row = (
            fields
            if isinstance(fields, Drop)
            else statement_row(task, split, line - first, columns, fields)
        )
        rows = row if isinstance(row, Drop) else ((STATEMENTS, row),)
        name = make_file_name(task, split)
        yield Entry(key=f"{name}:{line}", group=name, rows=rows)


GLUE = DataSet(
    about=(
        f"files: train.tsv, dev.tsv, test.tsv in the folders {', '.join(t.folder for t in TASKS)} "
        "(those that exist, or their zip archives); MNLI's are dev_matched.tsv, "
        "dev_mismatched.tsv, test_matched.tsv and so on, and so are its splits. From "
        "gluebenchmark.com; each task has its own licence. Also the hub's Parquet files "
        "(nyu-mll/glue), in the folders cola, sst2, mrpc, stsb, qqp, mnli, qnli and rte.\n\n"
        "Rows of `statements` without images. label_id follows the names of the classes: "
        "entailment 0, neutral 1, contradiction 2 of MNLI; entailment 0, not_entailment 1 of QNLI "
        "and RTE; STS-B has a score. Tests have no labels (-1)."
    ),
    tables=(STATEMENTS,),
    open=open_glue,
)
