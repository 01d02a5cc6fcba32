"""Visual Genome's questions, as more training data for VQA."""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from vlmill.pipelines.counting.funnel import Drop
from vlmill.pipelines.manifest.cleaning import clean_text
from vlmill.pipelines.manifest.sets.vqa import one_line
from vlmill.schemas.answers import label_of
from vlmill.schemas.rejects import Reason


def vg_question_row(record: Any, numbers: Mapping[str, int]) -> dict[str, Any] | Drop:
    """Reads an entry of Visual Genome's ``qas`` as a row of ``questions``.

    Its one answer, without the period and processed as VQA's, is the label of score 1; a question
    whose answer is no label is dropped: it could teach nothing.
    """
    try:
        qa_id, image_id = record["qa_id"], record["image_id"]
        text, answer = record["question"], record["answer"]
    except (KeyError, TypeError) as error:
        return Drop(Reason.BAD_ROW, f"a question without {error}")
    if type(qa_id) is not int or type(image_id) is not int:
        return Drop(Reason.BAD_ROW, "qa_id and image_id must be whole numbers")
    if not isinstance(text, str) or not isinstance(answer, str):
        return Drop(Reason.BAD_ROW, f"question {qa_id}: question and answer must be text")
    question, typed = clean_text(text), one_line(answer)
    if not question:
        return Drop(Reason.EMPTY_TEXT, f"question {qa_id} of picture {image_id}")
    label = label_of(typed.removesuffix(".").lower())
    if label not in numbers:
        return Drop(Reason.LABEL_UNKNOWN, f"question {qa_id}: {typed!a} is none of the labels")
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
