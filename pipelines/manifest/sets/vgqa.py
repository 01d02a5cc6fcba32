"""Reads Visual Genome's questions, as more training data for VQA."""

import argparse
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from vlmill.pipelines.manifest.cleaning import Claims, clean_text, whole_number
from vlmill.pipelines.manifest.entries import DataSet, Entry, Expected, Reading, kept_images
from vlmill.pipelines.manifest.labels import add_labels
from vlmill.pipelines.manifest.reading.sources import Folder, Source
from vlmill.pipelines.manifest.reading.streams import JsonLists
from vlmill.pipelines.manifest.sets.visual_genome import FOLDERS, IMAGES, read_images
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.answers import clean_answer, make_label
from vlmill.schemas.labels import LABELS_FILE, read_labels
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import QUESTIONS


def vg_question_row(record: Any, numbers: Mapping[str, int]) -> dict[str, Any] | Drop:
    """Converts an entry of Visual Genome's ``qas`` to a row of ``questions``.

    Its one answer, without the period and processed like VQA's, is the label of score 1. A question
    whose answer is not a label is dropped, because it has no loss.
    """
    try:
        qa_id, image_id = record["qa_id"], record["image_id"]
        text, answer = record["question"], record["answer"]
    except (KeyError, TypeError) as error:
        return Drop(Reason.BAD_ROW, f"a question without {error}")
    if whole_number(qa_id) is None or whole_number(image_id) is None:
        return Drop(Reason.BAD_ROW, "qa_id and image_id must be whole numbers")
    if not isinstance(text, str) or not isinstance(answer, str):
        return Drop(Reason.BAD_ROW, f"question {qa_id}: question and answer must be text")
    question, typed = clean_text(text), clean_answer(answer)
    if not question:
        return Drop(Reason.EMPTY_TEXT, f"question {qa_id} of image {image_id}")
    label = make_label(typed.removesuffix(".").lower())
    if label not in numbers:
        return Drop(Reason.LABEL_UNKNOWN, f"question {qa_id}: {typed!a} is not one of the labels")
    return {
        "question_id": f"vgqa/{qa_id}",
        "image_id": f"vg/{image_id}",
        "question": question,
        "answer": typed,
        "answers": [typed],
        "label_ids": [numbers[label]],
        "label_scores": [1.0],
        "source": "vgqa",
    }


# The data set

QUESTIONS_FILE = "question_answers.json"
ELEMENT_KEYS = frozenset(("id", "image_id", "qas"))
QUESTION_KEYS = frozenset(("qa_id", "image_id", "question", "answer", "q_objects", "a_objects"))
NUM_QUESTIONS = 1_445_322  # of version 1.2, a second-hand figure


def open_vgqa(folder: Folder, args: argparse.Namespace) -> Reading:
    """Opens the files. Raises InputError."""
    images, questions = folder.require(IMAGES), folder.require(QUESTIONS_FILE)
    labels = read_labels(args.labels)
    numbers = {label: number for number, label in enumerate(labels)}
    return Reading(
        sources=(images, questions),
        entries=lambda: vgqa_entries(images, questions, numbers),
        expected={
            questions.name: Expected(rows=NUM_QUESTIONS, source="second hand", verified=False)
        },
        image_folders=FOLDERS,
        files={LABELS_FILE: labels},
        messages=(f"labels: {len(labels)} of {args.labels}",),
    )


def vgqa_entries(
    image_source: Source, questions: Source, numbers: Mapping[str, int]
) -> Iterator[Entry]:
    """Yields the questions in the order of their file."""
    images, claims = kept_images(), Claims()
    yield from read_images(image_source, images)
    for index, element in enumerate(
        JsonLists(source=questions, known={"": ELEMENT_KEYS}).elements()
    ):
        key = f"{questions.name}:{index}"
        records = element.get("qas") if isinstance(element, dict) else None
        if not isinstance(records, list):
            drop = Drop(Reason.BAD_ROW, "an element without its list qas")
            yield Entry(key=key, group=f"{questions.name} ?", rows=drop)
            continue
        for number, record in enumerate(records):
            if isinstance(record, dict):
                questions.remarks.check(record, QUESTION_KEYS)
            row = vg_question_row(record, numbers)
            if isinstance(row, Drop):
                yield Entry(key=f"{key}.{number}", group=questions.name, rows=row)
                continue
            image = images.get(record["image_id"])
            if image is None:
                repeated: Drop | None = Drop(Reason.BAD_REFERENCE, f"its image is not in {IMAGES}")
            else:
                content = f"{row['image_id']} {row['question']}\0{row['answer']}"
                repeated = claims.claim(record["qa_id"], content)
            yield Entry(
                key=f"{key}.{number}",
                group=questions.name,
                rows=repeated or ((QUESTIONS, row),),
                images=(image,) if image is not None else (),
            )


VGQA = DataSet(
    about="""\
Visual Genome's questions and answers: question_answers.json, image_data.json, VG_100K/ and
VG_100K_2/, from visualgenome.org (CC BY 4.0). Rows of `questions`; a question whose answer is not
in --labels is dropped. Before you measure on VQA's validation or test images, exclude those that
Visual Genome shares with them: --exclude (the aliases of both sets are compared).""",
    tables=(QUESTIONS,),
    open=open_vgqa,
    add_arguments=functools.partial(add_labels, required=True),
)
