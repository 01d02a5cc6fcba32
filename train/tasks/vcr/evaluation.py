"""Computes VCR's official metrics of choices by split, the leaderboard's file, cases.

VCR has three accuracies: answer, rationale given the right answer, and both.
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from vlmill.runtime.files.atomic import write_json, write_text
from vlmill.runtime.files.reading import iter_batches
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json
from vlmill.schemas.plurals import format_count
from vlmill.schemas.tables import CHOICES
from vlmill.train.tasks.report import Case, DrawnBox
from vlmill.train.tasks.scores import NO_SPLIT, Figures, require_finite, require_same_ids, share
from vlmill.train.tasks.task import EvaluationResult
from vlmill.train.tasks.vcr.examples import NUM_CHOICES, question_key
from vlmill.train.tasks.vcr.texts import MARK

Id = TypeVar("Id", bound=int | str)
Scores = NDArray[np.floating]


@dataclass(frozen=True, kw_only=True)
class VcrHits(Generic[Id]):
    """Holds by question whether its answer and its rationale, given the right answer, are right."""

    answers: Mapping[Id, bool]
    rationales: Mapping[Id, bool]

    def figures(self, split: str) -> Figures:
        """Returns ``vcr/SPLIT/q_a``, ``qa_r`` and ``q_ar`` with their errors and counts.

        ``q_ar`` counts the questions whose answer and rationale are both right: not the product of
        the others.
        """
        answers = np.array(list(self.answers.values()), dtype=np.bool_)
        rationales = np.array([self.rationales[key] for key in self.answers], dtype=np.bool_)
        name = f"vcr/{split}"
        return (
            share(f"{name}/q_a", answers)
            | share(f"{name}/qa_r", rationales)
            | share(f"{name}/q_ar", answers & rationales)
        )


def vcr_hits(
    answer_scores: Mapping[Id, Scores],
    rationale_scores: Mapping[Id, Scores],
    labels: Mapping[Id, tuple[int, int]],
) -> VcrHits[Id]:
    """Joins scores and labels by annot_id. Of equal scores the first choice counts.

    ``answer_scores`` has [4] scores a question, ``rationale_scores`` [4] of the rationales **given
    the right answer**, ``labels`` the indices of the right answer and the right rationale. Raises
    InputError for missing and surplus ids and for scores that are not finite.
    """
    for name, scores in (("answers", answer_scores), ("rationales", rationale_scores)):
        require_same_ids(scores.keys(), labels.keys(), name)
        require_finite(scores, name)
    return VcrHits(
        answers={k: int(answer_scores[k].argmax()) == a for k, (a, _) in labels.items()},
        rationales={k: int(rationale_scores[k].argmax()) == r for k, (_, r) in labels.items()},
    )


FIGURES = ("q_a", "qa_r", "q_ar")
PUBLISHED = tuple(f"vcr/{split}/{figure}" for split in ("val", "test") for figure in FIGURES)
SCORES = "vcr_scores.json"
COLUMNS = ("example_id", "image_id", "task", "label", "split", "question", "choices")


@dataclass(kw_only=True)
class Split:
    """Holds the scores of a split, by question: answers [4], rationales [4] given the right answer,
    or [4, 4] given each, and the right choices.
    """

    answers: dict[str, Scores] = field(default_factory=dict)
    rationales: dict[str, Scores] = field(default_factory=dict)
    given_each: dict[str, dict[int, Scores]] = field(default_factory=dict)
    right: dict[str, dict[str, int]] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)


def evaluate_predictions(
    examples: str,
    scores: Mapping[str, Scores],
    sizes: Mapping[str, tuple[int, int]],
    other: str | None,
) -> EvaluationResult:
    """Scores the logits of each row, by example_id; ``sizes`` are the sizes of their images.

    ``other`` is the folder of the evaluation of the other sub-task's checkpoint.
    """
    both = dict(scores)
    if other is not None:
        both |= read_scores(Path(other), scores)
    figures, headline, notes = Figures(), list[str](), list[str]()
    files: list[Callable[[Path], object]] = [partial(write_scores, scores=scores)]
    cases = list[Case]()
    for name, split in read_splits(examples, both).items():
        split_figures = compute_figures(name, split, notes)
        figures |= split_figures
        headline += [key for key in split_figures if key.rpartition("/")[2] in FIGURES]
        labelled_rows = [
            row for row in split.rows if row["label"] >= 0 and row["example_id"] in sizes
        ]
        cases += [
            make_case(row, both[key], sizes[key])
            for row in labelled_rows
            if (key := row["example_id"])
        ]
        if split.given_each:
            files.append(partial(write_submission, name=name, split=split))
    return EvaluationResult(
        figures=figures,
        headline=headline,
        published=PUBLISHED,
        files=files,
        cases=cases,
        notes=notes,
    )


def read_splits(examples: str, scores: Mapping[str, Scores]) -> dict[str, Split]:
    """Returns the rows that have been scored, by their splits."""
    splits: dict[str, Split] = {}
    columns = (*COLUMNS, "object_names", "boxes")
    for batch in iter_batches(examples, CHOICES, columns=columns, flag="--examples"):
        for row in batch.to_pylist():
            if row["example_id"] in scores:
                split = splits.setdefault(row["split"] or NO_SPLIT, Split())
                add_row(split, row, scores[row["example_id"]])
    return splits


def add_row(split: Split, row: dict[str, Any], logits: Scores) -> None:
    """Adds a row's logits to its split and sub-task."""
    task, key = row["task"], question_key(row["example_id"], row["task"])
    split.rows.append(row)
    if row["label"] >= 0:
        split.right.setdefault(key, {})[task] = row["label"]
    if task == "q2a":
        split.answers[key] = logits
        return
    answer_number = row["example_id"].rpartition(f"/{task}/")[2]
    if row["label"] < 0 and answer_number.isdecimal():
        split.given_each.setdefault(key, {})[int(answer_number)] = logits
    else:
        split.rationales[key] = logits


def compute_figures(name: str, split: Split, notes: list[str]) -> Figures:
    """Returns ``vcr/SPLIT/q_a``, ``qa_r`` and ``q_ar``, as far as scored; None without labels."""
    if not split.right:
        names = ["q_a"] * bool(split.answers) + ["qa_r"] * bool(split.given_each)
        return {f"vcr/{name}/{metric}": None for metric in names}
    figures = Figures()
    for task, short, scores in (
        ("q2a", "q_a", split.answers),
        ("qa2r", "qa_r", split.rationales),
    ):
        task_labels = {key: labels[task] for key, labels in split.right.items() if task in labels}
        if task_labels:
            hits = [int(scores[key].argmax()) == label for key, label in task_labels.items()]
            figures |= share(f"vcr/{name}/{short}", hits)
    pairs = {k: (v["q2a"], v["qa2r"]) for k, v in split.right.items() if len(v) == 2}
    if not pairs:
        return figures
    hits_of_both = vcr_hits(
        {key: split.answers[key] for key in pairs},
        {key: split.rationales[key] for key in pairs},
        pairs,
    )
    if alone := len(split.right) - len(pairs):
        notes.append(
            f"{alone} questions of {name} have only one sub-task and are not counted in q_ar."
        )
    joint_figures = hits_of_both.figures(name)
    return figures | {k: v for k, v in joint_figures.items() if k.startswith(f"vcr/{name}/q_ar")}


def write_submission(folder: Path, *, name: str, split: Split) -> None:
    """Writes ``vcr_SPLIT.csv``. Raises InputError where the leaderboard would not take it."""
    rationales = {
        key: np.stack([by_answer[n] for n in range(NUM_CHOICES)])
        for key, by_answer in split.given_each.items()
        if by_answer.keys() == set(range(NUM_CHOICES))
    }
    keys = sorted(split.answers.keys() | split.given_each.keys())
    rows = leaderboard_rows(split.answers, rationales, keys)
    official_rows = [(str(row[0]).rpartition("/")[2], *row[1:]) for row in rows]
    write_leaderboard(folder / f"vcr_{name}.csv", official_rows)


def write_scores(folder: Path, *, scores: Mapping[str, Scores]) -> None:
    """Writes the logits of every row, for an evaluation of the other sub-task."""
    write_json(folder / SCORES, {key: values.tolist() for key, values in sorted(scores.items())})


def read_scores(folder: Path, own_scores: Mapping[str, Scores]) -> dict[str, Scores]:
    """Reads the logits of another evaluation. Raises InputError if it is not of the other
    sub-task.
    """
    path = folder / SCORES
    try:
        content = read_json(path)
        scores: dict[str, Scores] = {
            str(key): np.array(values, dtype=np.float64) for key, values in content.items()
        }
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(
            f"--scores {folder}: {SCORES} cannot be read ({error}); give the folder of an "
            "evaluation of vcr"
        ) from None
    if wrong := [key for key, values in scores.items() if values.shape != (NUM_CHOICES,)]:
        raise InputError(f"--scores {folder}: {wrong[0]} does not have {NUM_CHOICES} logits")
    if both := sorted(scores.keys() & own_scores.keys()):
        raise InputError(
            f"--scores {folder}: {both[0]} has scores in both evaluations; give an "
            "evaluation of the other sub-task"
        )
    return scores


def format_question(question: str) -> str:
    """Returns a question, and after it the answer that a rationale is asked for, if any."""
    question_text, mark, answer = question.partition(MARK)
    return f"{question_text.strip()} Given: {answer.strip()}" if mark else question


def mark_choices(choices: Sequence[str], *, right: int, chosen: int) -> tuple[str, ...]:
    """Returns choices, with the right and the chosen one marked."""
    marks = {number: ["right"] * (number == right) for number in range(len(choices))}
    marks[chosen].append("chosen")
    return tuple(
        f"{choice} ({' and '.join(marks[number])})" if marks[number] else choice
        for number, choice in enumerate(choices)
    )


def make_case(row: dict[str, Any], logits: Scores, size: tuple[int, int]) -> Case:
    """Returns a question as a report shows it, with its choices and its objects' boxes."""
    shares = np.exp(logits - logits.max())
    score = float(shares[row["label"]] / shares.sum())
    chosen, boxes = int(logits.argmax()), np.array(row["boxes"], dtype=np.float64).reshape(-1, 4)
    return Case(
        example_id=row["example_id"],
        image_id=row["image_id"],
        score=score,
        text=format_question(row["question"]),
        prediction=f"choice {chosen}",
        right=f"choice {row['label']}",
        choices=mark_choices(row["choices"], right=row["label"], chosen=chosen),
        boxes=tuple(
            DrawnBox(box=box, label=f"[{number}] {name}")
            for number, (box, name) in enumerate(zip(boxes, row["object_names"], strict=True))
        ),
        size=size,
    )


TEST_QUESTIONS = 25_263  # of the official test set
HEADER = (
    "annot_id",
    *(f"answer_{i}" for i in range(NUM_CHOICES)),
    *(f"rationale_conditioned_on_a{a}_{r}" for a in range(NUM_CHOICES) for r in range(NUM_CHOICES)),
)


def leaderboard_rows(
    answer_logits: Mapping[str, NDArray[np.floating]],
    rationale_logits: Mapping[str, NDArray[np.floating]],
    annot_ids: Sequence[str],
) -> list[tuple[str | float, ...]]:
    """Returns a row of :data:`HEADER` for each question, in the order of ``annot_ids``.

    ``answer_logits`` [4] and ``rationale_logits`` [4 answers, 4 rationales] become probabilities,
    each softmax over four. The test set has no labels, so every answer's rationales are scored.
    Raises InputError for missing and surplus ids and for logits that are not finite.
    """
    for name, logits in (("answers", answer_logits), ("rationales", rationale_logits)):
        require_same_ids(logits.keys(), set(annot_ids), name)
        require_finite(logits, name)
    return [
        (key, *map(float, _softmax(answer_logits[key])), *map(float, _flat(rationale_logits[key])))
        for key in annot_ids
    ]


def _flat(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    return _softmax(logits.reshape(NUM_CHOICES, NUM_CHOICES)).ravel()


def _softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    exponentials = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    probabilities: NDArray[np.float64] = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return probabilities


def write_leaderboard(
    path: Path, rows: Sequence[Sequence[str | float]], *, official: Set[str] | None = None
) -> None:
    """Writes rows as CSV with nine digits. ``official`` are the ids that the file must have.

    Without them it has to have as many as the official test set. Raises InputError otherwise.
    """
    if official is not None:
        require_same_ids({str(row[0]) for row in rows}, official, path.name)
    elif len(rows) != TEST_QUESTIONS:
        raise InputError(
            f"{path.name}: {format_count(len(rows), 'question')}; the leaderboard "
            f"expects the {TEST_QUESTIONS} of "
            "the test set"
        )
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows([key, *(f"{value:.9g}" for value in values)] for key, *values in rows)
    write_text(path, out.getvalue())
