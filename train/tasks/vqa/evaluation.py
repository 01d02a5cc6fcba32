"""Computes the official metrics of answers by split, result files and worst cases."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from vlmill.runtime.files.atomic import write_json
from vlmill.runtime.files.reading import iter_batches
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import QUESTIONS
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.tasks.classification.metrics import average_precision
from vlmill.train.tasks.report import Case
from vlmill.train.tasks.scores import NO_SPLIT, Figures, require_same_ids
from vlmill.train.tasks.task import EvaluationResult, Prediction
from vlmill.train.tasks.vqa.metrics import Annotation, accuracy, soft_score

PUBLISHED = ("vqa/test-dev/accuracy", "vqa/test-std/accuracy")


@dataclass(frozen=True)
class Answer:
    """Holds a prediction: the ``index`` of the answer in the list, and the probability that the
    question has an answer, from a head with the answer "unanswerable".
    """

    index: int
    answerable: float | None = None


@dataclass(kw_only=True)
class Split:
    """Holds the questions of a split that were answered: their images, texts, sources, annotations
    and, of VizWiz, whether they have an answer.
    """

    questions: dict[str, tuple[str, str]] = field(default_factory=dict)  # image and question
    sources: dict[str, str | None] = field(default_factory=dict)
    annotations: dict[str, Annotation] = field(default_factory=dict)
    answerable: dict[str, bool] = field(default_factory=dict)

    def select_sources(self, *names: str | None) -> list[str]:
        """Returns the questions of data sets."""
        return [key for key, source in self.sources.items() if source in names]


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
        files += result_files(name, split, answers, rows)
        headline.append(f"vqa/{name}/accuracy")
        figures |= answerability(name, split, rows)
        if not split.annotations:
            figures |= {f"vqa/{name}/accuracy": None, f"vqa/{name}/soft_score": None}
            continue
        if unscored := len(split.questions) - len(split.annotations):
            notes.append(f"{unscored} questions of {name} have no answers and are not scored.")
        scored = {key: answers[key] for key in split.annotations}
        scores = accuracy(scored, split.annotations)
        figures |= scores.figures(name)
        headline += [f"vqa/{name}/{key}" for key in EXTRA if f"vqa/{name}/{key}" in figures]
        labels = {key: rows[key].value.index for key in split.annotations}
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


EXTRA = ("consistency", "answerability_ap")  # of GQA and VizWiz


def answerability(name: str, split: Split, rows: Mapping[str, Prediction]) -> Figures:
    """Returns ``vqa/SPLIT/answerability_ap``, VizWiz's average precision of the probability that a
    question has an answer; nothing for other data sets, and for a head without "unanswerable".
    """
    known = {k: v for k, v in split.answerable.items() if rows[k].value.answerable is not None}
    if not known:
        return {}
    scores = np.array([rows[key].value.answerable for key in known])
    precision = average_precision(scores, np.array(list(known.values()), dtype=np.bool_))
    return {f"vqa/{name}/answerability_ap": precision}


def result_files(
    name: str, split: Split, answers: Mapping[str, str], rows: Mapping[str, Prediction]
) -> list[Callable[[Path], object]]:
    """Returns what writes the files of a split: one for each data set."""

    def select(keys: Sequence[str]) -> dict[str, str]:
        return {key: answers[key] for key in keys}

    files: list[Callable[[Path], object]] = []
    if official := select(split.select_sources(*OFFICIAL)):
        files.append(
            partial(write_results, split=name, predictions=official, question_ids=official.keys())
        )
    for source, write in (("own", write_own), ("gqa", write_gqa)):
        if chosen := select(split.select_sources(source)):
            files.append(partial(write, split=name, predictions=chosen))
    if chosen := select(split.select_sources("vizwiz")):
        images = {key: split.questions[key][0] for key in chosen}
        scores = {key: rows[key].value.answerable for key in chosen}
        scores = {key: score for key, score in scores.items() if score is not None}
        files.append(
            partial(write_vizwiz, split=name, predictions=chosen, images=images, answerable=scores)
        )
    return files


COLUMNS = (
    *("question_id", "image_id", "question", "question_type", "answer_type", "answers", "split"),
    *("source", "entailed_ids", "is_balanced", "answerable"),
)


def read_splits(examples: str, answers: Mapping[str, str]) -> dict[str, Split]:
    """Returns the questions that have been answered, by their splits."""
    splits: dict[str, Split] = {}
    for batch in iter_batches(examples, QUESTIONS, columns=COLUMNS, flag="--examples"):
        for row in batch.to_pylist():
            key = row["question_id"]
            if key not in answers:
                continue
            split = splits.setdefault(row["split"] or NO_SPLIT, Split())
            split.questions[key] = (row["image_id"], row["question"])
            split.sources[key] = row["source"]
            if row["answerable"] is not None:
                split.answerable[key] = row["answerable"]
            if row["answers"]:
                split.annotations[key] = Annotation(
                    answers=tuple(row["answers"]),
                    question_type=row["question_type"],
                    answer_type=row["answer_type"],
                    source=row["source"],
                    entailed_ids=tuple(row["entailed_ids"] or ()),
                    is_counted=row["is_balanced"] is not False,
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


OFFICIAL = (None, "vqa1", "vqa2", "vgqa", "okvqa")  # questions have numbers


def official_id(question_id: str) -> int:
    """Returns the number that a question has in the published files: 1 of ``vqa2/1``.

    Raises InputError for a question that is not VQA's.
    """
    number = question_id.rpartition("/")[2]
    if not (number.isascii() and number.isdecimal()):
        raise InputError(
            f"question_id {question_id!r}: expected SOURCE/NUMBER as written by `manifest vqa2`; "
            "the server identifies questions by number"
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


def write_own(folder: Path, split: str, predictions: Mapping[str, str]) -> None:
    """Writes ``own_SPLIT_result.json``: question_id, as in the table, and answer."""
    entries = [{"question_id": key, "answer": answer} for key, answer in predictions.items()]
    write_json(folder / f"own_{split}_result.json", entries)


def write_gqa(folder: Path, split: str, predictions: Mapping[str, str]) -> None:
    """Writes ``gqa_SPLIT_result.json``: questionId and prediction, as GQA's scorer reads them."""
    entries = [
        {"questionId": key.rpartition("/")[2], "prediction": answer}
        for key, answer in predictions.items()
    ]
    write_json(folder / f"gqa_{split}_result.json", entries)


def write_vizwiz(
    folder: Path,
    split: str,
    predictions: Mapping[str, str],
    images: Mapping[str, str],
    answerable: Mapping[str, float],
) -> None:
    """Writes VizWiz's files, ``vizwiz_SPLIT_result.json`` (image, answer) and
    ``vizwiz_SPLIT_answerability.json`` (image, answerable: 0..1) for a head with the answer
    "unanswerable".
    """
    names = {key: image_file(images[key]) for key in predictions}
    entries = [{"image": names[key], "answer": answer} for key, answer in predictions.items()]
    write_json(folder / f"vizwiz_{split}_result.json", entries)
    if answerable:
        path = folder / f"vizwiz_{split}_answerability.json"
        write_json(path, [{"image": names[k], "answerable": v} for k, v in answerable.items()])


def image_file(image_id: str) -> str:
    """Returns the name of VizWiz's file: ``VizWiz_val_00000000.jpg``."""
    name = image_id.rpartition("/")[2]
    return name if "." in name else f"{name}.jpg"
