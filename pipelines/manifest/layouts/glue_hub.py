"""Reads GLUE as the hub has it: a folder of Parquet files for each task, with numbered classes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmill.pipelines.manifest.cleaning import clean_text
from vlmill.pipelines.manifest.entries import Entry
from vlmill.pipelines.manifest.reading.columns import parquet_rows
from vlmill.pipelines.manifest.reading.sources import Folder, Source, file_source
from vlmill.runtime.files.contract import read_parquet_schema
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import STATEMENTS

SPLITS = {  # as in the names of the hub's files -> of the published files
    "train": "train",
    "validation": "dev",
    "validation_matched": "dev_matched",
    "validation_mismatched": "dev_mismatched",
    "test": "test",
    "test_matched": "test_matched",
    "test_mismatched": "test_mismatched",
}


@dataclass(frozen=True, kw_only=True)
class HubTask:
    """Holds a task's folder on the hub and its columns. ``classes`` name its labels in the
    order of their numbers; empty: a score.
    """

    folder: str
    text_a: str
    text_b: str | None
    source: str  # of its statements: glue/sst-2
    classes: tuple[str, ...]


TEXTS: Mapping[str, tuple[str, str, str | None]] = {  # by the last part of the source
    "cola": ("cola", "sentence", None),
    "sst-2": ("sst2", "sentence", None),
    "mrpc": ("mrpc", "sentence1", "sentence2"),
    "sts-b": ("stsb", "sentence1", "sentence2"),
    "qqp": ("qqp", "question1", "question2"),
    "mnli": ("mnli", "premise", "hypothesis"),
    "qnli": ("qnli", "question", "sentence"),
    "rte": ("rte", "sentence1", "sentence2"),
}


def make_hub_task(source: str, classes: tuple[str, ...]) -> HubTask:
    """Returns the task of a source as the hub has it."""
    folder, text_a, text_b = TEXTS[source.removeprefix("glue/")]
    return HubTask(folder=folder, text_a=text_a, text_b=text_b, source=source, classes=classes)


@dataclass(frozen=True, kw_only=True)
class HubFile:
    """Holds the Parquet files of a split of a task."""

    task: HubTask
    split: str  # of the published files
    sources: tuple[Source, ...]

    @property
    def group(self) -> str:
        """Returns the name by which its rows are counted."""
        return f"{self.task.folder}/{self.split}"


def find_hub_files(folder: Folder, tasks: Sequence[HubTask]) -> list[HubFile]:
    """Returns the splits of the tasks that exist. Raises InputError for missing columns."""
    files = []
    for task in tasks:
        paths = _paths(folder.root, task.folder)
        for name, split in SPLITS.items():
            sources = tuple(_source(path, task.folder) for path in paths.get(name, ()))
            if sources:
                _check_columns(task, sources[0])
                files.append(HubFile(task=task, split=split, sources=sources))
    return files


def _paths(root: Path, name: str) -> dict[str, list[Path]]:
    """Returns the files of a task's folder by the split in their names."""
    named = next((p for p in (root / name, root / "data" / name) if p.is_dir()), None)
    folder = root if named is None and root.resolve().name == name else named
    paths: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.parquet")) if folder is not None else ():
        paths.setdefault(path.name.partition("-")[0].removesuffix(".parquet"), []).append(path)
    return paths


def _source(path: Path, folder: str) -> Source:
    return file_source(path, f"{folder}/{path.name}")


def _check_columns(task: HubTask, source: Source) -> None:
    names = read_parquet_schema(source.path).names
    required = [name for name in (task.text_a, task.text_b, "label") if name is not None]
    if missing := [name for name in required if name not in names]:
        raise InputError(
            f"{source.display_name} has no column {', '.join(missing)} (it has "
            f"{', '.join(names)[:200]}); is it the task's file of GLUE?"
        )
    source.remarks.check(names, frozenset((*required, "idx")))


def hub_entries(file: HubFile) -> Iterator[Entry]:
    """Yields the statements of a split in the order of its files, numbered from 0."""
    task, number = file.task, 0
    columns = [name for name in (task.text_a, task.text_b, "label") if name is not None]
    for source in file.sources:
        for record in parquet_rows(source, columns):
            row = _row(file, number, record)
            rows = row if isinstance(row, Drop) else ((STATEMENTS, row),)
            yield Entry(key=f"{source.name}:{number}", group=file.group, rows=rows)
            number += 1


def _row(file: HubFile, number: int, record: Mapping[str, Any]) -> dict[str, Any] | Drop:
    task, is_test = file.task, file.split.startswith("test")
    texts = [record[name] for name in (task.text_a, task.text_b) if name is not None]
    if not all(isinstance(text, str) for text in texts):
        return Drop(Reason.EMPTY_TEXT, f"row {number}")
    text_a, *others = map(clean_text, texts)
    if file.split == "train" and not all((text_a, *others)):  # elsewhere every row is scored
        return Drop(Reason.EMPTY_TEXT, f"row {number}")
    judged = _label_columns(task, record["label"], is_test=is_test)
    if isinstance(judged, Drop):
        return judged
    return {
        "example_id": f"{task.source}/{file.split}/{number}",
        "image_ids": [],
        "text_a": text_a,
        "text_b": others[0] if others else None,
        "split": file.split,
        "source": task.source,
        **judged,
    }


def _label_columns(task: HubTask, label: Any, *, is_test: bool) -> dict[str, Any] | Drop:
    """Returns the columns of a numbered class or score; -1 in tests: not public."""
    if is_test and label in (None, -1):
        return {"label": None, "label_id": -1, "score": None}
    if task.classes:
        if isinstance(label, int) and 0 <= label < len(task.classes):
            return {"label": task.classes[label], "label_id": int(label), "score": None}
        return Drop(Reason.LABEL_UNKNOWN, f"{label!a:.80}, expected 0 to {len(task.classes) - 1}")
    if isinstance(label, int | float) and math.isfinite(label) and 0 <= label <= 5:
        return {"label": f"{label:.3f}", "label_id": -1, "score": float(label)}
    return Drop(Reason.LABEL_UNKNOWN, f"{label!a:.80} is not a score from 0 to 5")
