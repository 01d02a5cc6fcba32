"""VQA v1 and v2: questions on COCO's pictures, with what ten annotators answered.

Questions and annotations are in different orders in places and are joined by question_id. The ids
of the two versions overlap, so each has its version in front.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vlmill.pipelines.counting.funnel import Drop
from vlmill.pipelines.manifest.own import clean_text
from vlmill.schemas.answers import label_of, soft_labels
from vlmill.schemas.rejects import Reason


@dataclass(frozen=True, kw_only=True, slots=True)
class Annotation:
    """What was answered to a question; ``answers`` as the annotators typed them."""

    question_type: str | None
    answer_type: str | None
    answer: str
    answers: tuple[str, ...]


def annotation_of(record: Any) -> tuple[int, Annotation] | Drop:
    """Reads an entry of ``*_annotations.json`` as a question_id and its annotation."""
    try:
        question_id, answer = record["question_id"], record["multiple_choice_answer"]
        answers = tuple(one["answer"] for one in record["answers"])
    except (KeyError, TypeError) as error:
        return Drop(Reason.BAD_ROW, f"an annotation without {error}")
    if type(question_id) is not int or not all(isinstance(a, str) for a in (answer, *answers)):
        return Drop(Reason.BAD_ROW, "question_id must be a whole number and answers text")
    if not answers:
        return Drop(Reason.BAD_ROW, f"question {question_id} has no answers")
    return question_id, Annotation(
        question_type=text_or_none(record.get("question_type")),
        answer_type=text_or_none(record.get("answer_type")),
        answer=one_line(answer),
        answers=tuple(map(one_line, answers)),
    )


def one_line(answer: str) -> str:
    """Returns an answer as the official scorer cleans it: line breaks and tabs become blanks."""
    return answer.replace("\n", " ").replace("\t", " ").strip()


def text_or_none(value: Any) -> str | None:
    """Returns a text, None for anything else."""
    return value if isinstance(value, str) else None


def question_row(
    record: Any,
    annotations: Mapping[int, Annotation] | None,
    numbers: Mapping[str, int] | None,
    *,
    split: str,
    source: str,
) -> dict[str, Any] | Drop:
    """Reads an entry of ``*_questions.json`` as a row of ``questions``.

    Without ``annotations`` (test sets) its answers are null, without ``numbers`` of labels (their
    places in the list) its labels. A question whose answers are no labels has empty lists.
    """
    try:
        question_id, image_id, text = record["question_id"], record["image_id"], record["question"]
    except (KeyError, TypeError) as error:
        return Drop(Reason.BAD_ROW, f"a question without {error}")
    if type(question_id) is not int or type(image_id) is not int or not isinstance(text, str):
        return Drop(Reason.BAD_ROW, "question_id and image_id must be whole numbers, question text")
    question = clean_text(text)
    if not question:
        return Drop(Reason.EMPTY_TEXT, f"question {question_id} of picture {image_id}")
    row: dict[str, Any] = {
        "question_id": f"{source}/{question_id}",
        "image_id": f"coco/{image_id:012d}",
        "question": question,
        "split": split,
        "source": source,
    }
    if annotations is None:
        return row
    annotation = annotations.get(question_id)
    if annotation is None:
        return Drop(Reason.BAD_ROW, f"question {question_id} has no annotation")
    return row | answered(annotation, numbers)


def answered(annotation: Annotation, numbers: Mapping[str, int] | None) -> dict[str, Any]:
    """Returns the columns of a question's answers and, where labels are ``numbers``, of these."""
    columns: dict[str, Any] = {
        "question_type": annotation.question_type,
        "answer_type": annotation.answer_type,
        "answer": annotation.answer,
        "answers": list(annotation.answers),
    }
    if numbers is not None:
        label_ids, label_scores = soft_labels(annotation.answers, numbers)
        columns |= {"label_ids": label_ids, "label_scores": label_scores}
    return columns


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
