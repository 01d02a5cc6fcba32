"""Makes examples from rows: captions, questions with answers, statements, and labelled images.

The flags that name columns decide which: ``--question-column`` gives questions,
``--statement-column`` statements, ``--label-column`` alone labels, else captions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

from vlmill.pipelines.manifest.cleaning import clean_text, usable_id
from vlmill.pipelines.manifest.own.cells import (
    is_conversation,
    is_plain,
    read_flag,
    read_image,
    read_label,
    read_list,
    read_text,
    read_turns,
)
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.answers import make_label, number_scores, score_answers
from vlmill.schemas.errors import InputError
from vlmill.schemas.ids import compute_pair_id
from vlmill.schemas.rejects import Reason
from vlmill.schemas.splits import find_use
from vlmill.schemas.tables import LABELS, PAIRS, QUESTIONS, STATEMENTS, Table

WEB = ("http://", "https://")
MAX_STATEMENT_CLASSES = 127  # of a label_id, which is an int8
MAX_IMAGES = 16  # of one row
NUL = "\0"


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Holds the names of the file's columns by their use; ``id`` and ``split`` have at most one.

    ``label_names`` are the classes of a numbered class of Parquet, by its column. ``flags``: each
    label column is a class, and its cells are 0 or 1.
    """

    image: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    question: tuple[str, ...] = ()
    answer: tuple[str, ...] = ()
    statement: tuple[str, ...] = ()
    label: tuple[str, ...] = ()
    id: tuple[str, ...] = ()
    split: tuple[str, ...] = ()
    label_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    flags: bool = False

    USES = ("image", "text", "question", "answer", "statement", "label", "id", "split")

    @property
    def flagged(self) -> list[tuple[str, str]]:
        """Returns each column with the flag that names it, in the order of the rows' values."""
        return [(f"--{use}-column", name) for use in self.USES for name in getattr(self, use)]

    def settings(self) -> dict[str, Any]:
        """Returns the columns by use for the recorded settings: a name, or a list of several."""
        names = {use: list(getattr(self, use)) for use in self.USES if getattr(self, use)}
        return {use: values[0] if len(values) == 1 else values for use, values in names.items()}

    @cached_property
    def spans(self) -> dict[str, slice]:
        """Returns where the values of each use are in a row."""
        ends = list(accumulate(len(getattr(self, use)) for use in self.USES))
        return {
            use: slice(start, end)
            for use, start, end in zip(self.USES, [0, *ends], ends, strict=False)
        }

    def sort(self, values: Sequence[Any]) -> dict[str, Sequence[Any]]:
        """Returns a row's values by use."""
        return {use: values[span] for use, span in self.spans.items()}


@dataclass(kw_only=True, slots=True)
class Example:
    """Holds a row of the table without its id, split and source.

    ``content`` identifies the example; ``value`` is what else two rows of one content may differ
    in. ``labels`` are the names that the list of labels numbers. ``images`` are the contents of
    the images that the file has, by image_id.
    """

    row: dict[str, Any]
    image_ids: tuple[str, ...]
    content: str
    value: str = ""
    labels: tuple[str, ...] | None = None
    images: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Describes a kind of example: its table, the column of its id, and how a row is read."""

    table: Table
    id: str
    unit: str  # of the last line
    read: Callable[["RowReader", dict[str, Sequence[Any]]], list[Example | Drop]]
    number: Callable[[Example, Mapping[str, int]], dict[str, Any] | Drop] | None = None


@dataclass(frozen=True, kw_only=True)
class RowReader:
    """Reads rows by the columns of a file. ``split`` is that of rows without one."""

    kind: Kind
    columns: Columns
    separator: str | None = None
    split: str | None = None

    def read(self, values: Sequence[Any]) -> list[Example | Drop]:
        """Returns the examples of a row: one for each caption or question, or the reason."""
        sorted_values = self.columns.sort(values)
        images = self._read_images(sorted_values["image"])
        if isinstance(images, Drop):
            return [images]
        examples = self.kind.read(self, sorted_values)
        split = self.find_split(sorted_values)
        contents = {name: content for name, content in images.items() if content is not None}
        names, image_ids = NUL.join(images), tuple(images)
        for example in examples:
            if isinstance(example, Drop):
                continue
            example.image_ids = image_ids
            example.images = contents
            example.content = compute_pair_id(names, example.content)
            example.row["split"] = split
        return examples

    def count(self, values: Sequence[Any]) -> int | None:
        """Returns the number of examples of a row, None if only :meth:`read` finds it."""
        if self.kind.number is not None or len(self.columns.text) != 1:
            return None
        return 1 if is_plain(values[self.columns.spans["text"].start]) else None

    def find_split(self, values: Mapping[str, Sequence[Any]]) -> str | None:
        """Returns the split of a row."""
        for value in values["split"]:
            if isinstance(value, int):
                names = self.columns.label_names.get(self.columns.split[0], ())
                if 0 <= value < len(names):
                    return names[value]
            if value is not None and str(value).strip():
                return str(value).strip()
        return self.split

    def is_test(self, values: Mapping[str, Sequence[Any]]) -> bool:
        """Returns whether a row is of a test split, whose labels may be missing."""
        return find_use(self.find_split(values)) == "test"

    def _read_images(self, cells: Sequence[Any]) -> dict[str, bytes | None] | Drop:
        if len(cells) == 1 and is_plain(cells[0]):
            only = usable_id(cells[0], self.columns.image[0])
            return only if isinstance(only, Drop) else {only: None}
        images: dict[str, bytes | None] = {}
        for column, cell in zip(self.columns.image, cells, strict=True):
            for item in read_list(cell) or [None]:
                name, content = read_image(item)
                image_id = usable_id(name, column)
                if isinstance(image_id, Drop):
                    return image_id
                images[image_id] = content
        if len(images) > MAX_IMAGES or (self.kind.id == "pair_id" and len(images) > 1):
            limit = 1 if self.kind.id == "pair_id" else MAX_IMAGES
            return Drop(Reason.TOO_MANY, f"{len(images)} images, at most {limit} in a row")
        return images


# Captions


def read_captions(reader: RowReader, values: dict[str, Sequence[Any]]) -> list[Example | Drop]:
    """Returns an example for each caption: of several columns, of a list, of a conversation."""
    cells = values["text"]
    if len(cells) == 1 and is_plain(cells[0]):
        return [_caption(cells[0], reader.columns.text[0])]
    return [
        _caption(item, column)
        for column, cell in zip(reader.columns.text, cells, strict=True)
        for item in _caption_items(cell)
    ]


def _caption_items(cell: Any) -> list[Any]:
    if is_conversation(cell):
        return [answer for _, answer in read_turns(cell)] or [None]
    return read_list(cell) or [None]


def _caption(item: Any, column: str) -> Example | Drop:
    text = read_text(item, column)
    if isinstance(text, Drop):
        return text
    if not text:
        return Drop(Reason.NO_TEXT, f"the column {column} is empty")
    return Example(row={"text": text}, image_ids=(), content=text)


# Questions


def read_questions(reader: RowReader, values: dict[str, Sequence[Any]]) -> list[Example | Drop]:
    """Returns an example for each question: one, or each of a conversation."""
    cell = values["question"][0]
    if is_conversation(cell):
        turns = read_turns(cell)
        empty = Drop(Reason.NO_TEXT, "a conversation without a question and its answer")
        return [_question(q, [a]) for q, a in turns] or [empty]
    question = read_text(cell, reader.columns.question[0])
    answers: list[str] = []
    for column, answer_cell in zip(reader.columns.answer, values["answer"], strict=True):
        for item in read_list(answer_cell, reader.separator):
            answer = read_text(item, column)
            if isinstance(answer, Drop):
                return [answer]
            answers += [answer] if answer else []
    if isinstance(question, Drop):
        return [question]
    if not answers and reader.columns.answer and not reader.is_test(values):
        return [Drop(Reason.NO_TEXT, f"no answer in {', '.join(reader.columns.answer)}")]
    return [_question(question, answers)]


def _question(question: str, answers: list[str]) -> Example | Drop:
    if not question:
        return Drop(Reason.NO_TEXT, "the question is empty")
    scores = score_answers(answers)
    best = max(answers, key=lambda answer: scores[make_label(answer)], default=None)
    row = {"question": question, "answer": best, "answers": answers or None}
    labels = tuple(scores) if answers else None
    return Example(row=row, image_ids=(), content=NUL.join([question, *answers]), labels=labels)


def number_answers(example: Example, numbers: Mapping[str, int]) -> dict[str, Any] | Drop:
    """Returns the columns of a question's labels; a question may have none in the list."""
    answers = example.row["answers"]
    if answers is None:
        return {"label_ids": None, "label_scores": None}
    ids, scores = number_scores(score_answers(answers), numbers)
    return {"label_ids": ids, "label_scores": scores}


# Statements and labels


def read_statements(reader: RowReader, values: dict[str, Sequence[Any]]) -> list[Example | Drop]:
    """Returns the statement of a row, with its one label."""
    column = reader.columns.statement[0]
    text = read_text(values["statement"][0], column)
    labels = _labels(reader, values)
    if isinstance(text, Drop) or isinstance(labels, Drop):
        return [text if isinstance(text, Drop) else labels]  # type: ignore[list-item]
    if not text:
        return [Drop(Reason.NO_TEXT, f"the column {column} is empty")]
    if labels is not None and len(labels) != 1:
        return [Drop(Reason.LABEL_UNKNOWN, f"{len(labels)} labels; a statement has one")]
    label = None if labels is None else labels[0]
    row = {"text_a": text, "label": label}
    return [Example(row=row, image_ids=(), content=text, value=label or "", labels=labels)]


def number_statement(example: Example, numbers: Mapping[str, int]) -> dict[str, Any] | Drop:
    """Returns the class's number, -1 if the label is not public."""
    ids = _numbers(example, numbers)
    return ids if isinstance(ids, Drop) else {"label_id": -1 if ids is None else ids[0]}


def read_labels(reader: RowReader, values: dict[str, Sequence[Any]]) -> list[Example | Drop]:
    """Returns the labelled image of a row, with its text if there is one."""
    texts = [
        read_text(cell, column)
        for column, cell in zip(reader.columns.text, values["text"], strict=True)
    ]
    labels = _labels(reader, values)
    for part in (*texts, labels):
        if isinstance(part, Drop):
            return [part]
    text = clean_text(" ".join(part for part in texts if isinstance(part, str))) or None
    assert not isinstance(labels, Drop)
    names = None if labels is None else list(labels)
    row = {"text": text, "labels": names}
    value = NUL.join(names or ())
    return [Example(row=row, image_ids=(), content=text or "", value=value, labels=labels)]


def number_labels(example: Example, numbers: Mapping[str, int]) -> dict[str, Any] | Drop:
    """Returns the rising numbers of the labels, null if they are not public."""
    ids = _numbers(example, numbers)
    return ids if isinstance(ids, Drop) else {"label_ids": ids}


def _numbers(example: Example, numbers: Mapping[str, int]) -> list[int] | Drop | None:
    if example.labels is None:
        return None
    if unknown := [name for name in example.labels if name not in numbers]:
        return Drop(Reason.LABEL_UNKNOWN, f"{unknown[0]!a:.200} is not in the list of labels")
    return sorted(numbers[name] for name in example.labels)


def _labels(
    reader: RowReader, values: Mapping[str, Sequence[Any]]
) -> tuple[str, ...] | Drop | None:
    """Returns the labels of a row; None if they are not public, as in a test split."""
    columns, cells = reader.columns, values["label"]
    if columns.flags:
        flags = {name: read_flag(c) for name, c in zip(columns.label, cells, strict=True)}
        for (name, flag), cell in zip(flags.items(), cells, strict=True):
            if flag is None:
                return Drop(Reason.LABEL_UNKNOWN, f"{name}: {cell!a:.80}, expected 0 or 1")
        return tuple(name for name, flag in flags.items() if flag)
    labels: dict[str, None] = {}
    for column, cell in zip(columns.label, cells, strict=True):
        if isinstance(cell, list) and not cell:
            return ()
        for item in read_list(cell, reader.separator):
            label = read_label(item, columns.label_names.get(column, ()), column)
            if isinstance(label, Drop):
                return label
            if label:
                labels[label] = None
    if labels:
        return tuple(labels)
    if not columns.label or reader.is_test(values):
        return None
    return Drop(Reason.LABEL_UNKNOWN, f"the column {', '.join(columns.label)} is empty")


CAPTIONS = Kind(table=PAIRS, id="pair_id", unit="pairs", read=read_captions)
QUESTION = Kind(
    table=QUESTIONS, id="question_id", unit="questions", read=read_questions, number=number_answers
)
STATEMENT = Kind(
    table=STATEMENTS,
    id="example_id",
    unit="statements",
    read=read_statements,
    number=number_statement,
)
LABELLED = Kind(
    table=LABELS, id="example_id", unit="labelled images", read=read_labels, number=number_labels
)
KINDS = {kind.table.name: kind for kind in (CAPTIONS, QUESTION, STATEMENT, LABELLED)}


def choose_kind(columns: Columns) -> Kind:
    """Returns the kind of the named columns. Raises InputError for columns that do not fit it."""
    fitting: tuple[str, ...]
    if columns.question:
        kind, fitting = QUESTION, ("question", "answer")
    elif columns.statement:
        kind, fitting = STATEMENT, ("statement", "label")
    elif columns.label:
        kind, fitting = LABELLED, ("label", "text")
    elif columns.text:
        kind, fitting = CAPTIONS, ("text",)
    else:
        raise InputError(
            "name the column of captions, --text-column C, of questions, --question-column C, of "
            "statements, --statement-column C, or of classes, --label-column C"
        )
    for use in ("text", "question", "answer", "statement", "label"):
        if getattr(columns, use) and use not in fitting:
            raise InputError(f"--{use}-column does not go with --{fitting[0]}-column; remove it")
    for use in ("question", "statement"):
        if len(getattr(columns, use)) > 1:
            raise InputError(f"--{use}-column: a row has one; leave out the others")
    if len(columns.image) > 1 and kind in (CAPTIONS, QUESTION):
        raise InputError(
            f"--image-column: a row of {kind.table.name} has one image; several go with "
            "--statement-column and --label-column"
        )
    return kind
