"""Reads VizWiz: questions that blind people asked about their photographs."""

import argparse
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from vlmill.pipelines.manifest.cleaning import validate_text
from vlmill.pipelines.manifest.entries import DataSet, ListedImage, Reading
from vlmill.pipelines.manifest.labels import add_labels
from vlmill.pipelines.manifest.layouts.examples import (
    Example,
    example_entries,
    expect_rows,
    find_splits,
)
from vlmill.pipelines.manifest.layouts.vqa_answers import most_frequent, text_or_none
from vlmill.pipelines.manifest.reading.sources import Folder, Source
from vlmill.pipelines.manifest.reading.streams import JsonLists
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.answers import clean_answer, collect_labels, label_answers
from vlmill.schemas.labels import LABELS_FILE, read_labels
from vlmill.schemas.rejects import Reason
from vlmill.schemas.splits import find_use
from vlmill.schemas.tables import QUESTIONS

MIN_QUESTIONS = 2  # answers of fewer questions are not labels


def question_row(record: Any, split: str, numbers: Mapping[str, int]) -> Example | Drop:
    """Converts an element to a row of ``questions`` with all its answers, and its image."""
    name = record.get("image") if isinstance(record, dict) else None
    if not isinstance(name, str) or not name:
        return Drop(Reason.BAD_ROW, "an element without its image")
    text = validate_text(record.get("question"))
    answers = read_answers(record)
    for part in (text, answers):
        if isinstance(part, Drop):
            return part
    if answers is None and find_use(split) != "test":
        return Drop(Reason.BAD_ROW, f"{name} has no answers")
    stem = PurePosixPath(name).stem
    answerable = record.get("answerable")
    row: dict[str, Any] = {
        "question_id": f"vizwiz/{stem}",
        "image_id": f"vizwiz/{stem}",
        "question": text,
        "answer_type": text_or_none(record.get("answer_type")),
        "answerable": None if answerable is None else answerable in (1, True, "1"),
        "split": split,
        "source": "vizwiz",
    }
    if isinstance(answers, list):
        ids, scores = label_answers("vizwiz", answers, numbers)
        row |= {"answers": answers, "answer": most_frequent(answers)}
        row |= {"label_ids": ids, "label_scores": scores}
    paths = tuple(f"{folder}/{name}" for folder in (split, "images", f"images/{split}"))
    return row, (ListedImage(image_id=f"vizwiz/{stem}", paths=(*paths, name), alone=True),)


def read_answers(record: Mapping[str, Any]) -> list[str] | Drop | None:
    """Returns the annotators' answers, None if they are not public."""
    answers = record.get("answers")
    if not answers:
        return None
    try:
        typed = [entry["answer"] for entry in answers]
    except (KeyError, TypeError):
        typed = []
    if not typed or not all(isinstance(answer, str) for answer in typed):
        return Drop(Reason.BAD_ROW, f"{record.get('image')!a:.80}: answers must have a text each")
    return [clean_answer(answer) for answer in typed]


# The data set

ROWS = {"train": 20_523, "val": 4_319, "test": 8_000}
KEYS = {"": frozenset(("image", "question", "answers", "answer_type", "answerable"))}


def open_vizwiz(folder: Folder, args: argparse.Namespace) -> Reading:
    """Opens the files. Raises InputError."""
    names = {split: (f"{split}.json", f"Annotations/{split}.json") for split in ROWS}
    sources = find_splits(folder, names)
    labels = read_labels(args.labels) if args.labels is not None else list_answers(sources)
    numbers = {label: number for number, label in enumerate(labels)}
    make = partial(question_row, numbers=numbers)
    origin = f"of {args.labels}" if args.labels else f"of {MIN_QUESTIONS} or more questions"
    return Reading(
        sources=tuple(sources.values()),
        entries=lambda: example_entries(sources.items(), _records, make, QUESTIONS),
        expected=expect_rows(sources.items(), ROWS, "second hand, of 2020", verified=False),
        image_folders=(*ROWS, "images"),
        files={LABELS_FILE: labels},
        messages=(f"labels: {len(labels)} answers {origin}, in {LABELS_FILE}",),
    )


def list_answers(sources: Mapping[str, Source]) -> list[str]:
    """Returns the labels: the most frequent answers of training and validation."""
    answers: list[str] = []
    for split, source in sources.items():
        for record in JsonLists(source=source).elements() if find_use(split) != "test" else ():
            typed = read_answers(record) if isinstance(record, dict) else None
            if isinstance(typed, list):
                answers.append(most_frequent(typed))
    return collect_labels(answers, min_questions=MIN_QUESTIONS)


def _records(source: Source) -> Iterator[tuple[int, Any]]:
    return enumerate(JsonLists(source=source, known=KEYS).elements())


VIZWIZ = DataSet(
    about="""\
VizWiz-VQA (Gurari et al. 2018, CC BY 4.0) as `questions`: train.json, val.json and test.json of the
data set's page (vizwiz.org), and the images in train/, val/, test/ or --images. All ten answers are
kept, also unanswerable, with answer_type and answerable as published. The official metric is VQA's
accuracy. question_id is the name of the image, of which a result file for the server consists.
Without --labels the list has the answers of two or more questions of training and validation.""",
    tables=(QUESTIONS,),
    open=open_vizwiz,
    add_arguments=add_labels,
)
