"""Reads GQA: generated questions about Visual Genome's images, with the questions they entail."""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vlmill.pipelines.manifest.cleaning import clean_text, validate_text
from vlmill.pipelines.manifest.entries import DataSet, ListedImage, Reading
from vlmill.pipelines.manifest.labels import add_labels
from vlmill.pipelines.manifest.layouts.examples import Example, example_entries, expect_rows
from vlmill.pipelines.manifest.layouts.vqa_answers import text_or_none
from vlmill.pipelines.manifest.reading.sources import Folder, Source
from vlmill.pipelines.manifest.reading.streams import JsonLists
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.answers import label_answers
from vlmill.schemas.labels import LABELS_FILE, read_labels
from vlmill.schemas.rejects import Reason
from vlmill.schemas.splits import find_use
from vlmill.schemas.tables import QUESTIONS

_IMAGE = re.compile(r"n?\d{1,18}", re.ASCII)


def question_row(
    key: str, record: Any, split: str, numbers: Mapping[str, int] | None
) -> Example | Drop:
    """Converts a question to a row of ``questions`` and its image.

    ``entailed_ids`` are without the question's own id, and answer_type is the official scorer's:
    open for questions of the structural type query, else binary.
    """
    image = record.get("imageId") if isinstance(record, dict) else None
    if not key.strip() or not isinstance(image, str) or _IMAGE.fullmatch(image) is None:
        return Drop(Reason.BAD_ROW, f"question {key!a:.80}: imageId {image!a:.80}")
    text, answer = validate_text(record.get("question")), record.get("answer")
    if isinstance(text, Drop):
        return text
    has_answer = isinstance(answer, str) and bool(answer.strip())
    if not has_answer and find_use(split) != "test":
        return Drop(Reason.BAD_ROW, f"question {key} has no answer")
    types, entailed = record.get("types") or {}, record.get("entailed") or []
    structural = text_or_none(types.get("structural")) if isinstance(types, dict) else None
    balanced = record.get("isBalanced")
    image_id = f"vg/{image}" if image.isdecimal() else f"gqa/{image}"
    row: dict[str, Any] = {
        "question_id": f"gqa/{key}",
        "image_id": image_id,
        "question": text,
        "question_type": structural,
        "answer_type": structural and ("open" if structural == "query" else "binary"),
        "split": split,
        "source": "gqa",
        "entailed_ids": [f"gqa/{e}" for e in entailed if isinstance(e, str) and e != key],
        "is_balanced": balanced if isinstance(balanced, bool) else None,
    }
    if has_answer:
        typed = clean_text(str(answer))
        row |= {"answer": typed, "answers": [typed]}
        if numbers is not None:
            ids, scores = label_answers("gqa", [typed], numbers)
            row |= {"label_ids": ids, "label_scores": scores}
    paths = (f"images/{image}.jpg", f"{image}.jpg")
    return row, (ListedImage(image_id=image_id, paths=paths),)


# The data set

SPLITS = ("train", "val", "testdev", "test", "challenge")
TRAIN_PARTS = 10  # of the file of all training questions
ROWS = {
    "balanced": {"train": 943_000, "val": 132_062, "testdev": 12_578, "test": 95_336},
    "all": {"val": 2_011_853, "testdev": 172_174, "test": 1_340_048, "challenge": 713_449},
}
KEYS = frozenset(
    (
        *("imageId", "question", "answer", "fullAnswer", "isBalanced", "groups", "entailed"),
        *("equivalent", "types", "annotations", "semantic", "semanticStr"),
    )
)
Splits = Sequence[tuple[str, Source]]


def _add_arguments(p: argparse.ArgumentParser) -> None:
    add_labels(p)
    p.add_argument(
        "--questions",
        choices=("balanced", "all"),
        default="balanced",
        help="questions to read: balanced, which are enough for accuracy, or all, which "
        "consistency also needs (default: balanced)",
    )


def open_gqa(folder: Folder, args: argparse.Namespace) -> Reading:
    """Opens the files. Raises InputError."""
    splits = find_files(folder, args.questions)
    labels = read_labels(args.labels) if args.labels is not None else list_answers(splits)
    numbers = {label: number for number, label in enumerate(labels)} if labels else None
    origin = f"of {args.labels}" if args.labels else "of training and validation"

    def make(keyed: tuple[str, Any], split: str) -> Example | Drop:
        return question_row(*keyed, split, numbers)

    return Reading(
        sources=tuple(source for _, source in splits),
        entries=lambda: example_entries(splits, _records, make, QUESTIONS),
        expected=expect_rows(splits, ROWS[args.questions], "second hand, of 1.2", verified=False),
        image_folders=("images",),
        files={LABELS_FILE: labels} if labels else {},
        messages=(f"labels: {len(labels)} answers {origin}",),
    )


def find_files(folder: Folder, questions: str) -> Splits:
    """Returns the existing files of each split. Raises InputError for none."""
    splits = []
    for split in SPLITS:
        name = f"{split}_{questions}_questions"
        names = [f"{name}.json"]
        names += [f"{name}/{name}_{part}.json" for part in range(TRAIN_PARTS)]
        for file in names:
            source = folder.find(file, f"questions1.2/{file}", f"questions/{file}")
            splits += [] if source is None else [(split, source)]
    if not splits:
        raise folder.lacks(f"train_{questions}_questions.json or val_{questions}_questions.json")
    return splits


def list_answers(splits: Splits) -> list[str]:
    """Returns the answers to all questions of training and validation, by first occurrence."""
    answers: dict[str, None] = {}
    with Progress(total=None, unit="answer", label="labels") as progress:
        for split, source in splits:
            for _, record in JsonLists(source=source).items() if find_use(split) != "test" else ():
                answer = record.get("answer") if isinstance(record, dict) else None
                if isinstance(answer, str) and answer.strip():
                    answers[clean_text(answer)] = None
                progress.advance(1)
    return list(answers)


def _records(source: Source) -> Iterator[tuple[int, tuple[str, Any]]]:
    for number, (key, record) in enumerate(JsonLists(source=source).items()):
        if isinstance(record, dict):
            source.remarks.check(record, KEYS)
        yield number, (key, record)


GQA = DataSet(
    about="""\
GQA (Hudson and Manning 2019) as `questions`: the files <split>_balanced_questions.json (with
--questions all <split>_all_questions.json, of training in ten parts) of questions1.2 of the data
set's page (cs.stanford.edu/people/dorarad/gqa), for train, val, testdev, test and challenge, and
images/ or --images. question_type is the structural type, answer_type open or binary as in the
official scorer, entailed_ids are the questions that a correct answer entails. Images are
vg/<number>, which Visual Genome shares, and gqa/n<number>. Accuracy is computed over the balanced
questions; consistency also needs the answers to the entailed ones, which are mostly in the files of
all questions. Validity, plausibility and grounding need files that are not read. Without --labels
the list has the answers of training and validation, unchanged.""",
    tables=(QUESTIONS,),
    open=open_gqa,
    add_arguments=_add_arguments,
    options=("questions",),
)
