"""Reads the file once before the run: counts its rows, and lists the labels by which it numbers."""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from vlmill.pipelines.manifest.layouts.hub_columns import read_label_names
from vlmill.pipelines.manifest.own import kinds
from vlmill.pipelines.manifest.own.cells import read_flag, read_label
from vlmill.pipelines.manifest.own.job import OwnJob, make_candidates
from vlmill.pipelines.manifest.reading.parquet_files import BATCH_ROWS
from vlmill.pipelines.manifest.reading.rows import TableFile, read_values
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.paths import readable
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.answers import NUM_ANNOTATORS, make_label
from vlmill.schemas.errors import InputError
from vlmill.schemas.labels import read_labels
from vlmill.schemas.plurals import format_count
from vlmill.schemas.splits import find_use

FIRST_ROWS = 1_000  # rows that show whether label columns are flags
ORDERS = (("False", "True"), ("entailment", "neutral", "contradiction"))
SEPARATORS = (";", "|", ",")


@dataclass(kw_only=True)
class Scan:
    """Holds the counts of a file: of its rows, of each label and of each number of labels."""

    rows: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    sizes: Counter[int] = field(default_factory=Counter)


def scan_file(job: OwnJob) -> Scan:
    """Reads all rows: names of shards contain their total, and labels are numbered by their list.

    Answers of test rows are not counted: a classifier cannot learn them.
    """
    scan = Scan()
    with Progress(total=None, unit="row", label="counting") as progress:
        reported = 0
        for number, values in read_values(job.table, job.column_indices):
            count = 1 if isinstance(values, Drop) else job.reader.count(values)
            if count is None:
                count = 0
                for _, candidate in make_candidates(job, number, values):
                    count += 1
                    if not isinstance(candidate, Drop):
                        _count(scan, job, candidate.example)
            scan.rows += count
            if scan.rows - reported >= BATCH_ROWS:
                progress.advance(scan.rows - reported)
                reported = scan.rows
        progress.advance(scan.rows - reported)
    return scan


def _count(scan: Scan, job: OwnJob, example: kinds.Example) -> None:
    if example.labels is None:
        return
    if job.example_kind is kinds.QUESTION:
        if find_use(example.row["split"]) != "test":
            # Of ten annotators the most frequent answer, as in VQA; else each accepted answer.
            votes = len(example.row["answers"]) == NUM_ANNOTATORS
            scan.labels.update([make_label(example.row["answer"])] if votes else example.labels)
        return
    scan.labels.update(example.labels)
    scan.sizes[len(example.labels)] += 1


def list_labels(
    job: OwnJob, scan: Scan, path: Path | None, min_questions: int
) -> tuple[tuple[str, ...] | None, str]:
    """Returns the list of labels, None for captions, and a line about it. Raises InputError.

    Labels come from ``path``, else from a numbered class of Parquet, else from the file:
    answers in the order of their first occurrence, classes in a fixed order.
    """
    kind = job.example_kind
    if kind is kinds.CAPTIONS:
        return None, ""
    if path is not None:
        labels = read_labels(path)
        if kind is not kinds.QUESTION:
            spelled = [read_label(label, (), "--labels") for label in labels]
            labels = [str(name) for name in spelled if not isinstance(name, Drop)]
        source = str(path)
    elif kind is kinds.QUESTION:
        labels = [label for label, count in scan.labels.items() if count >= min_questions]
        source = f"{format_count(min_questions, 'question')} or more"
    else:
        labels = _all_classes(job.columns, scan.labels)
        source = "the file"
    if kind is kinds.STATEMENT and len(labels) > kinds.MAX_STATEMENT_CLASSES:
        raise InputError(
            f"--label-column {', '.join(job.columns.label)}: {len(labels)} classes, at most "
            f"{kinds.MAX_STATEMENT_CLASSES} for statements; use --label-column without "
            "--statement-column"
        )
    return tuple(labels), _format_labels(labels, scan, source, is_answers=kind is kinds.QUESTION)


def _all_classes(columns: kinds.Columns, counts: Counter[str]) -> list[str]:
    classes = (columns.label_names.get(column, ()) for column in columns.label)
    named = dict.fromkeys(name for names in classes for name in names)
    if columns.flags:
        return list(columns.label)
    if named and set(counts) <= set(named):
        return list(named)
    return order_classes(counts)


def order_classes(names: Iterable[str]) -> list[str]:
    """Returns classes in a fixed order: False, True; entailment, neutral, contradiction; numbers by
    value; others by code point.
    """
    classes = set(names)
    for order in ORDERS:
        if classes and classes <= set(order):
            return list(order)
    if all(name.lstrip("-").isdecimal() and name.isascii() for name in classes):
        return sorted(classes, key=lambda name: (int(name), name))
    return sorted(classes)


def _format_labels(labels: Sequence[str], scan: Scan, source: str, *, is_answers: bool) -> str:
    several = any(size != 1 for size in scan.sizes)
    count = format_count(len(labels), "answer" if is_answers else "label")
    kind = " (multi-label)" if several else ""
    first = ", ".join(label[:40] for label in labels[:6]) + (", ..." if len(labels) > 6 else "")
    return f"labels.json: {count}{kind} of {source}: {first or 'none'}"


def find_remarks(job: OwnJob, scan: Scan) -> list[str]:
    """Returns warnings about labels that look like lists, or like two spellings of one class."""
    if job.labels is None or job.example_kind is kinds.QUESTION:
        return []
    remarks = []
    for separator in SEPARATORS if job.separator is None and not job.columns.flags else ():
        joined = [name for name in scan.labels if separator in name.strip(separator)]
        if joined and any(part.strip() in scan.labels for part in joined[0].split(separator)):
            remarks.append(
                f"warning: the label {joined[0][:80]!r} looks like a list; if so, give "
                f"--list-separator {separator!r}"
            )
            break
    spellings: dict[str, list[str]] = {}
    for name in scan.labels:
        spellings.setdefault(name.casefold(), []).append(name)
    for names in spellings.values():
        if len(names) > 1:
            written = ", ".join(map(repr, sorted(names)))
            remarks.append(f"warning: classes that differ only in case: {written[:200]}")
    return remarks[:5]


def complete_columns(
    table: TableFile, columns: kinds.Columns, column_indices: Sequence[int]
) -> kinds.Columns:
    """Returns the columns with what the file's first rows and metadata show of their labels.

    Raises InputError for several label columns of numbers that are not 0 and 1.
    """
    columns = replace(columns, label_names=_parquet_names(table, columns))
    if len(columns.label) < 2:
        return columns
    rows = read_values(table, column_indices)
    cells = [
        columns.sort(values)["label"]
        for _, values in itertools.islice(rows, FIRST_ROWS)
        if not isinstance(values, Drop)
    ]
    flags = [read_flag(cell) for row in cells for cell in row]
    if cells and None not in flags and any(flags):
        return replace(columns, flags=True)
    for row in cells:
        for name, cell in zip(columns.label, row, strict=True):
            if read_flag(cell) is None and _is_number(cell) and any(flags):
                raise InputError(
                    f"--label-column {name}: the value {cell}; several columns have 0 and 1, or "
                    "the names of classes"
                )
    return columns


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    return True


def _parquet_names(table: TableFile, columns: kinds.Columns) -> dict[str, tuple[str, ...]]:
    if table.format != "parquet":
        return {}
    schema = pq.read_schema(readable(table.files[0]))
    names = {name: read_label_names(schema, name) for name in (*columns.label, *columns.split)}
    return {name: classes for name, classes in names.items() if classes}
