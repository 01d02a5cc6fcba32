"""Reads VCR: questions about tagged people and things, four answers and four rationales each.

A text names an object by its number; the token is ``[0]``, or ``[0,1]`` for several. The trainer
inserts names for it, which are random in some papers. Wrong choices are right answers to other
questions of the same fold, so a new split must not divide a fold.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from vlmill.pipelines.manifest.cleaning import NamedClaims, clean_text
from vlmill.pipelines.manifest.entries import DataSet, Entry, Expected, Reading
from vlmill.pipelines.manifest.layouts.vcr_objects import (
    IMAGES_FOLDER,
    Objects,
    image_named,
    read_objects,
)
from vlmill.pipelines.manifest.reading.lines import json_lines
from vlmill.pipelines.manifest.reading.sources import Folder, Source
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import CHOICES

NUM_CHOICES = 4
NO_TAG = -1
MARK = "[MARK]"  # between a question and the answer that a rationale is for
SPLITS = ("train", "val", "test")


@dataclass(frozen=True, kw_only=True)
class Text:
    """Holds words with the objects that each names, [-1] for a plain word."""

    words: tuple[str, ...]
    tags: tuple[tuple[int, ...], ...]

    def __add__(self, other: "Text") -> "Text":
        return Text(words=self.words + other.words, tags=self.tags + other.tags)

    def __str__(self) -> str:
        return " ".join(self.words)


class BadRow(ValueError):
    """Raised for a row that is not as published, with the reason."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


def choice_rows(record: Any, objects: Objects) -> list[dict[str, Any]] | Drop:
    """Converts a line of VCR to rows of ``choices``.

    One row asks for the answer (q2a), and one, given the right answer, for its rationale (qa2r). If
    labels are not public, the line gives four qa2r rows, one for each answer.
    """
    try:
        return _rows(record, objects)
    except BadRow as error:
        return Drop(error.reason, error.detail)
    except (KeyError, TypeError) as error:
        return Drop(Reason.BAD_ROW, f"a question without {error}")


def _rows(record: Any, objects: Objects) -> list[dict[str, Any]]:
    names = record["objects"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadRow(Reason.BAD_ROW, "objects must be a list of names")
    if len(names) != len(objects.boxes):
        raise BadRow(Reason.BAD_ROW, f"{len(names)} objects and {len(objects.boxes)} boxes")
    question = parse_text(record["question"], len(names))
    answers = _choices(record, "answer_choices", len(names))
    rationales = _choices(record, "rationale_choices", len(names))
    answer, rationale = _label(record, "answer_label"), _label(record, "rationale_label")
    if (answer < 0) != (rationale < 0):
        raise BadRow(Reason.BAD_ROW, "one of answer_label and rationale_label is missing")
    annot_id, img_id = record["annot_id"], record["img_id"]
    if not isinstance(annot_id, str) or not isinstance(img_id, str):
        raise BadRow(Reason.BAD_ROW, "annot_id and img_id must be text")
    shared = {
        "image_id": f"vcr/{img_id}",
        "object_names": names,
        "boxes": [value for box in objects.boxes for value in box],
        "box_scores": list(objects.scores),
        "segms": None if objects.segms is None else json.dumps(objects.segms),
        "split": annot_id.partition("-")[0],
        "source": "vcr",
    }
    if None in objects.scores:
        shared["box_scores"] = None
    rows = [_row(f"vcr/{annot_id}/q2a", "q2a", question, answers, answer) | shared]
    mark = Text(words=(MARK,), tags=((NO_TAG,),))
    if answer >= 0:
        with_answer = question + mark + answers[answer]
        rows.append(
            _row(f"vcr/{annot_id}/qa2r", "qa2r", with_answer, rationales, rationale) | shared
        )
        return rows
    for number, text in enumerate(answers):
        example_id = f"vcr/{annot_id}/qa2r/{number}"
        rows.append(_row(example_id, "qa2r", question + mark + text, rationales, -1) | shared)
    return rows


def _row(
    example_id: str, task: str, question: Text, choices: Sequence[Text], label: int
) -> dict[str, Any]:
    return {
        "example_id": example_id,
        "task": task,
        "question": str(question),
        "choices": [str(choice) for choice in choices],
        "label": label,
        "question_tags": [list(tags) for tags in question.tags],
        "choice_tags": [[list(tags) for tags in choice.tags] for choice in choices],
    }


def parse_text(tokens: Any, num_objects: int) -> Text:
    """Reads a list of words and lists of object numbers. Raises BadRow."""
    if not isinstance(tokens, list) or not tokens:
        raise BadRow(Reason.EMPTY_TEXT, "a text must be a list of words and object numbers")
    words: list[str] = []
    tags: list[tuple[int, ...]] = []
    for token in tokens:
        if isinstance(token, str):
            parts = clean_text(token).split()
            words += parts
            tags += [(NO_TAG,)] * len(parts)
            continue
        if not isinstance(token, list) or not token or any(type(t) is not int for t in token):
            raise BadRow(Reason.BAD_ROW, f"{token!r} is neither a word nor object numbers"[:200])
        if beyond := [number for number in token if not 0 <= number < num_objects]:
            detail = f"object {beyond[0]} of {num_objects}"
            raise BadRow(Reason.BAD_REFERENCE, detail)
        words.append(f"[{','.join(map(str, token))}]")
        tags.append(tuple(token))
    if not words:
        raise BadRow(Reason.EMPTY_TEXT, "a text without words")
    return Text(words=tuple(words), tags=tuple(tags))


def _choices(record: Any, key: str, num_objects: int) -> list[Text]:
    choices = record[key]
    if not isinstance(choices, list) or len(choices) != NUM_CHOICES:
        count = len(choices) if isinstance(choices, list) else "no"
        raise BadRow(Reason.BAD_ROW, f"{count} {key}, expected {NUM_CHOICES}")
    return [parse_text(choice, num_objects) for choice in choices]


def _label(record: Any, key: str) -> int:
    label = record.get(key, NO_TAG)
    if type(label) is not int or not -1 <= label < NUM_CHOICES:
        raise BadRow(Reason.LABEL_UNKNOWN, f"{key} is {label!r}, expected 0 to {NUM_CHOICES - 1}")
    return label


# The data set

ROWS = {"train": 212_923, "val": 26_534, "test": 25_263}
LINE_KEYS = frozenset(
    (
        *("annot_id", "img_id", "movie", "img_fn", "metadata_fn", "objects", "question"),
        *("answer_choices", "rationale_choices", "answer_label", "rationale_label"),
        *("question_orig", "answer_orig", "rationale_orig", "match_fold", "match_index"),
        *("answer_sources", "rationale_sources", "answer_match_iter", "rationale_match_iter"),
        *("interesting_scores", "answer_likelihood", "question_number"),
    )
)
REMEMBERED = 64  # number of cached metadata files: the questions of an image are adjacent


def open_vcr(folder: Folder, args: argparse.Namespace) -> Reading:
    """Opens VCR's files. Raises InputError."""
    files = {split: folder.find(f"{split}.jsonl") for split in SPLITS}
    sources = {split: source for split, source in files.items() if source is not None}
    if not sources:
        raise folder.lacks("train.jsonl, val.jsonl or test.jsonl")
    if not folder.has_images((IMAGES_FOLDER,)):
        raise folder.lacks(f"{IMAGES_FOLDER}/, whose .json files have the boxes")
    return Reading(
        sources=tuple(sources.values()),
        entries=lambda: vcr_entries(folder, sources),
        expected={
            source.name: Expected(rows=ROWS[split], source="second hand", verified=False)
            for split, source in sources.items()
        },
        image_folders=(IMAGES_FOLDER,),
    )


def vcr_entries(folder: Folder, sources: Mapping[str, Source]) -> Iterator[Entry]:
    """Yields a line's rows, in the order of the files' lines."""
    read = lru_cache(REMEMBERED)(partial(read_objects, folder))
    claims = NamedClaims()
    for split, source in sources.items():
        for line_number, line in json_lines(source, LINE_KEYS):
            key = f"{source.name}:{line_number}"
            if isinstance(line, Drop):
                yield Entry(key=key, group=source.name, rows=line)
                continue
            objects = line_objects(line, split, read)
            rows = objects if isinstance(objects, Drop) else choice_rows(line, objects)
            if isinstance(objects, Drop) or isinstance(rows, Drop):
                assert isinstance(rows, Drop)
                yield Entry(key=key, group=source.name, rows=rows)
                continue
            image = image_named(rows[0]["image_id"], line["img_fn"], objects)
            drop = claims.claim(rows[0]["example_id"], repr(rows))
            table_rows = tuple((CHOICES, row) for row in rows)
            yield Entry(
                key=key,
                group=source.name,
                rows=drop or table_rows,
                images=(image,),
                notes=objects.notes,
            )


def line_objects(
    line: Mapping[str, Any], split: str, read: Callable[[str, str], Objects | Drop]
) -> Objects | Drop:
    """Returns the objects of a line of ``split``; ``read`` reads them from its two files."""
    file, image, annot_id = (line.get(key) for key in ("metadata_fn", "img_fn", "annot_id"))
    if not isinstance(file, str) or not isinstance(image, str):
        return Drop(Reason.BAD_ROW, "metadata_fn and img_fn must be names of files")
    if not isinstance(annot_id, str) or annot_id.partition("-")[0] != split:
        return Drop(Reason.BAD_ROW, f"annot_id {annot_id!a:.80} is not one of {split}")
    return read(file, image)


VCR = DataSet(
    title="VCR: questions with four answers, and their rationales",
    about=(
        "files: train.jsonl, val.jsonl, test.jsonl (or vcr1annots.zip) and vcr1images/ (or its "
        "zip) with a .jpg and a .json for each image. From visualcommonsense.com, after signing "
        "its "
        "form: research only.\n\n"
        "Two rows of `choices` for each question, one that asks for the answer (task q2a) and one "
        "for its rationale (qa2r); five for test, whose labels are not public."
    ),
    tables=(CHOICES,),
    open=open_vcr,
)
