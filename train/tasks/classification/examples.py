"""Reads the classes of a table of examples: which there are, and which each row has."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from vlmill.runtime.console.command import print_status
from vlmill.runtime.files.reading import iter_batches
from vlmill.schemas.errors import InputError
from vlmill.schemas.labels import read_labels
from vlmill.schemas.plurals import format_count
from vlmill.schemas.splits import find_use, split_name
from vlmill.schemas.tables import LABELS, STATEMENTS, Table

NAMED = 5  # classes that a message names
PREPARED = pa.schema(
    [
        ("class_ids", pa.list_(pa.int32())),  # of the labels that are classes of the head
        ("num_unknown", pa.int32()),  # labels that are not
        ("is_public", pa.int8()),  # 0: the labels are not public
    ]
)


@dataclass(frozen=True, kw_only=True)
class Example:
    """Holds a row of a table. ``labels`` are names, None if they are not public; ``label_ids`` are
    their numbers in the table's list.
    """

    example_id: str
    image_ids: Sequence[str]
    text: str
    labels: Sequence[str] | None
    label_ids: Sequence[int] | None
    split: str | None
    source: str | None
    group: str | None  # its subset of the data set


@dataclass(frozen=True, kw_only=True)
class ExampleTable:
    """Describes a table of examples; ``parse`` reads a row of its ``columns``."""

    table: Table
    columns: tuple[str, ...]
    parse: Callable[[Mapping[str, Any]], Example]
    needs_text: bool

    def read(self, path: str) -> Iterator[Example]:
        """Yields the rows of a table."""
        for batch in iter_batches(path, self.table, columns=self.columns, flag="--examples"):
            yield from map(self.parse, batch.to_pylist())


def parse_labelled(row: Mapping[str, Any]) -> Example:
    """Reads a row of ``labels``; a row without a text has the image alone."""
    return Example(
        example_id=row["example_id"],
        image_ids=row["image_ids"],
        text=row["text"] or "",
        labels=row["labels"],
        label_ids=row["label_ids"],
        split=row["split"],
        source=row["source"],
        group=None,
    )


def parse_statement(row: Mapping[str, Any]) -> Example:
    """Reads a row of ``statements``; a class without a name is called by its number."""
    number = row["label_id"]
    label = str(number) if row["label"] is None else row["label"]
    return Example(
        example_id=row["example_id"],
        image_ids=row["image_ids"],
        text=row["text_a"],
        labels=None if number < 0 else [label],
        label_ids=None if number < 0 else [number],
        split=row["split"],
        source=row["source"],
        group=row["subset"],
    )


LABELLED = ExampleTable(
    table=LABELS,
    columns=("example_id", "image_ids", "text", "labels", "label_ids", "split", "source"),
    parse=parse_labelled,
    needs_text=False,
)
STATED = ExampleTable(
    table=STATEMENTS,
    columns=(
        *("example_id", "image_ids", "text_a", "label", "label_id", "split", "source", "subset"),
    ),
    parse=parse_statement,
    needs_text=True,
)


@dataclass(frozen=True, kw_only=True)
class ClassCounts:
    """Holds the classes of the rows to train on, in the order of the head's outputs: how many of
    ``num_rows`` rows have each, and whether a row may have several or none (``multi``).
    """

    counts: Mapping[str, int]
    num_rows: int
    multi: bool


def count_classes(
    table: ExampleTable, path: str, train_splits: Sequence[str], labels: Path | None
) -> ClassCounts:
    """Counts the classes of the rows to train on: those of ``train_splits`` or, if it is empty, of
    the splits that are known to be for training.

    The classes are those of ``--labels``, in its order; else those of the rows, in the order of the
    table's numbers, else of the names. Raises InputError if no row to train on has a label and no
    list is given.
    """
    named = {split_name(split) for split in train_splits}
    counts, numbers = Counter[str](), dict[str, int]()
    num_rows, multi = 0, False
    for example in table.read(path):
        if example.labels is None:
            continue
        multi = multi or len(example.labels) != 1
        is_trained = (
            split_name(example.split) in named if named else is_training_split(example.split)
        )
        if not is_trained:
            continue
        num_rows += 1
        counts.update(example.labels)
        if example.label_ids is not None:
            numbers.update(zip(example.labels, example.label_ids, strict=True))
    if not counts and labels is None:
        raise InputError(
            f"--examples {path}: no row to train on has a label; give labels to rows of split "
            "train, or name the splits: train_splits=[...]"
        )
    last = len(numbers)
    order = sorted(counts, key=lambda name: (numbers.get(name, last), name))
    if labels is not None:
        order = read_labels(labels)
        report_unlisted(counts, order, labels)
    return ClassCounts(
        counts={name: counts[name] for name in order}, num_rows=num_rows, multi=multi
    )


def is_training_split(split: str | None) -> bool:
    """Returns whether rows of a split are trained on unless a recipe names other splits."""
    return find_use(split) == "train"


def report_unlisted(counts: Mapping[str, int], order: Sequence[str], labels: Path) -> None:
    """Prints how many labels of rows to train on are not in the list of ``--labels``."""
    unlisted = [name for name in counts if name not in set(order)]
    if unlisted:
        total = sum(counts[name] for name in unlisted)
        print_status(
            f"note: --labels {labels} lacks {format_count(total, 'label')} of the rows to train "
            f"on, from which nothing is learnt: {name_some(unlisted)}"
        )


def name_some(names: Sequence[str]) -> str:
    """Returns the first names, and the number of the others."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(map(repr, names[:NAMED]))}{more}"


def pairs_of_batch(
    table: ExampleTable, numbers: Mapping[str, int], batch: pa.RecordBatch
) -> pa.RecordBatch:
    """Reads examples as pairs with the columns of ``PREPARED``; without an image if a row has
    another number of images than one.
    """
    examples = [table.parse(row) for row in batch.select(list(table.columns)).to_pylist()]
    known = [
        sorted({numbers[name] for name in example.labels or () if name in numbers})
        for example in examples
    ]
    columns = {
        "pair_id": pa.array([example.example_id for example in examples], pa.string()),
        "image_id": pa.array(
            [e.image_ids[0] if len(e.image_ids) == 1 else None for e in examples], pa.string()
        ),
        "text": pa.array([example.text for example in examples], pa.string()),
        "source": pa.array([example.source for example in examples], pa.string()),
        "split": pa.array([example.split for example in examples], pa.string()),
        "class_ids": pa.array(known, PREPARED.field("class_ids").type),
        "num_unknown": pa.array(
            [
                sum(name not in numbers for name in dict.fromkeys(example.labels or ()))
                for example in examples
            ],
            pa.int32(),
        ),
        "is_public": pa.array([int(e.labels is not None) for e in examples], pa.int8()),
    }
    return pa.RecordBatch.from_pydict(columns)
