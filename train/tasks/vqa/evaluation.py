"""Computes VQA's official metrics of answers: figures by split, result files and worst cases.

VQA's server and its official scorer read the result files.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from vlmill.runtime.files.atomic import write_json
from vlmill.runtime.files.reading import iter_batches
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import QUESTIONS
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.tasks.report import Case
from vlmill.train.tasks.scores import Figures, require_same_ids
from vlmill.train.tasks.task import EvaluationResult, Prediction
from vlmill.train.tasks.vqa.metrics import Annotation, accuracy, soft_score


def official_id(question_id: str) -> int:
    """Returns the number that a question has in the published files: 1 of ``vqa2/1``.

    Raises InputError for a question that is not VQA's.
    """
    number = question_id.rpartition("/")[2]
    if not (number.isascii() and number.isdecimal()):
        raise InputError(
            f"question_id {question_id!r}: expected SOURCE/NUMBER as written by "
            "`manifest vqa2`; the server identifies questions by number"
        )
    return int(number)


def write_results(
    folder: Path, split: str, predictions: Mapping[str, str], question_ids: Set[str]
) -> Path:
    """Writes ``vqa_SPLIT_result.json``: question_id and answer of each question, by rising ids.

    Raises InputError unless the predictions are of exactly these questions, and for two questions
    with the same number.
    """
    path = folder / f"vqa_{split}_result.json"
    require_same_ids(predictions.keys(), question_ids, path.name)
    answers = {official_id(key): answer for key, answer in predictions.items()}
    if len(answers) < len(predictions):
        raise InputError(
            f"{path.name}: questions of several sources share numbers; evaluate one source"
        )
    entries = [{"question_id": key, "answer": answers[key]} for key in sorted(answers)]
    write_json(path, entries)
    return path


PUBLISHED = ("vqa/test-dev/accuracy", "vqa/test-std/accuracy")
NO_SPLIT = "train"  # of rows that name none


@dataclass(kw_only=True)
class Split:
    """Holds the questions of a split that were answered: their images, texts and annotations."""

    questions: dict[str, tuple[str, str]] = field(default_factory=dict)  # image and question
    annotations: dict[str, Annotation] = field(default_factory=dict)


def evaluate_predictions(
    examples: str,
    table: SampleTable,
    predicted: Sequence[Prediction],
    answers: Mapping[str, str],
) -> EvaluationResult:
    """Scores the ``answers`` to each split's questions, by question_id."""
    rows = {table.pair_id(prediction.row): prediction for prediction in predicted}
    figures, headline, notes = Figures(), list[str](), list[str]()
    files, cases = [], list[Case]()
    for name, split in read_splits(examples, answers).items():
        split_answers = {key: answers[key] for key in split.questions}
        files.append(
            partial(
                write_results,
                split=name,
                predictions=split_answers,
                question_ids=split.questions.keys(),
            )
        )
        headline.append(f"vqa/{name}/accuracy")
        if not split.annotations:
            figures |= {f"vqa/{name}/accuracy": None, f"vqa/{name}/soft_score": None}
            continue
        if unscored := len(split.questions) - len(split.annotations):
            notes.append(f"{unscored} questions of {name} have no answers and are not scored.")
        scored = {key: answers[key] for key in split.annotations}
        scores = accuracy(scored, split.annotations)
        figures |= scores.figures(name)
        labels = {key: int(rows[key].value) for key in split.annotations}
        targets = {key: targets_of_row(table, rows[key].row) for key in split.annotations}
        figures |= soft_score(labels, targets, name)
        by_question = scores.by_question.items()
        cases += [
            make_case(str(key), split, answers[str(key)], score) for key, score in by_question
        ]
    return EvaluationResult(
        figures=figures,
        headline=headline,
        published=PUBLISHED,
        files=files,
        cases=cases,
        notes=notes,
    )


def read_splits(examples: str, answers: Mapping[str, str]) -> dict[str, Split]:
    """Returns the questions that have been answered, by their splits."""
    splits: dict[str, Split] = {}
    columns = ("question_id", "image_id", "question", "question_type", "answer_type", "answers")
    for batch in iter_batches(examples, QUESTIONS, columns=(*columns, "split"), flag="--examples"):
        for row in batch.to_pylist():
            key = row["question_id"]
            if key not in answers:
                continue
            split = splits.setdefault(row["split"] or NO_SPLIT, Split())
            split.questions[key] = (row["image_id"], row["question"])
            if row["answers"]:
                split.annotations[key] = Annotation(
                    answers=tuple(row["answers"]),
                    question_type=row["question_type"],
                    answer_type=row["answer_type"],
                )
    return splits


def make_case(key: str, split: Split, answer: str, score: float) -> Case:
    """Returns a question as a report shows it."""
    image_id, question = split.questions[key]
    return Case(
        example_id=key,
        image_id=image_id,
        score=score,
        text=question,
        prediction=answer or "(empty)",
        right=", ".join(dict.fromkeys(split.annotations[key].answers)),
    )


def targets_of_row(table: SampleTable, row: int) -> dict[int, float]:
    """Returns the soft scores of a question's labels."""
    ids, scores = table.value("label_ids", row), table.value("label_scores", row)
    return dict(zip(ids, scores, strict=True))
