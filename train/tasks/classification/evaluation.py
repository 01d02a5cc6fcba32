"""Computes the metrics of each split of a table, and writes the predictions.

N examples, C classes.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

from vlmill.runtime.files.atomic import write_text
from vlmill.schemas.plurals import format_count
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.tasks.classification.examples import Example, ExampleTable, name_some
from vlmill.train.tasks.classification.metrics import compute_figures
from vlmill.train.tasks.classification.settings import ClassificationSettings
from vlmill.train.tasks.report import Case
from vlmill.train.tasks.scores import NO_SPLIT, Figures, shares_by_group
from vlmill.train.tasks.task import EvaluationResult, Prediction

MOST_LISTED = 10  # classes whose probabilities a prediction lists, the likeliest first
HATEFUL_MEMES = "hateful-memes"

Scores = Float[ndarray, "N C"]


def predict_classes(scores: Scores, settings: ClassificationSettings) -> Bool[ndarray, "N C"]:
    """Returns the predicted classes of each example.

    For a single class this is the likeliest one (the first of equal ones), for several classes all
    whose probability reaches the threshold.
    """
    if settings.kind == "multi":
        return scores >= settings.threshold
    chosen = np.zeros(scores.shape, dtype=np.bool_)
    chosen[np.arange(len(scores)), scores.argmax(-1)] = True
    return chosen


def score_rows(
    scores: Sequence[Any],
    right_ids: Sequence[Sequence[int]],
    num_unknown: Sequence[int],
    names: Sequence[str],
    settings: ClassificationSettings,
) -> tuple[Figures, Bool[ndarray, " N"]]:
    """Returns the metrics of examples with public labels, and which are predicted exactly.

    ``right_ids`` are the classes of each, ``num_unknown`` the number of its labels
    that are not classes: such an example is never predicted exactly.
    """
    probabilities = np.array(scores, dtype=np.float64).reshape(len(scores), len(names))
    right = np.zeros(probabilities.shape, dtype=np.bool_)
    for row, ids in enumerate(right_ids):
        right[row, list(ids)] = True
    predicted = predict_classes(probabilities, settings)
    exact = (predicted == right).all(-1) & (np.array(num_unknown, dtype=np.int64) == 0)
    multi = settings.kind == "multi"
    figures = compute_figures(probabilities, right, predicted, exact, names, multi=multi)
    return figures, exact


def row_figures(
    table: SampleTable,
    predicted: Sequence[Prediction],
    names: Sequence[str],
    settings: ClassificationSettings,
) -> Figures:
    """Returns the metrics of those prepared examples whose labels are public."""
    scored = [p for p in predicted if table.value("is_public", p.row)]
    class_ids = [table.value("class_ids", p.row) for p in scored]
    num_unknown = [table.value("num_unknown", p.row) for p in scored]
    return score_rows([p.value for p in scored], class_ids, num_unknown, names, settings)[0]


@dataclass(kw_only=True)
class Split:
    """Holds the examples of a split that were predicted."""

    examples: list[Example] = field(default_factory=list)

    @property
    def labelled(self) -> list[Example]:
        """Returns the examples whose labels are public."""
        return [example for example in self.examples if example.labels is not None]


def read_splits(table: ExampleTable, examples: str, known: Mapping[str, Any]) -> dict[str, Split]:
    """Returns the examples that have been predicted, by their splits."""
    splits: dict[str, Split] = {}
    for example in table.read(examples):
        if example.example_id in known:
            splits.setdefault(example.split or NO_SPLIT, Split()).examples.append(example)
    return splits


@dataclass(frozen=True, kw_only=True)
class Labelling:
    """Holds the head's classes ``names`` of a task, and how they are predicted."""

    task: str
    names: Sequence[str]
    settings: ClassificationSettings

    def predict(self, scores: Any) -> list[str]:
        """Returns the classes predicted for an example's probabilities [C]."""
        chosen = predict_classes(np.array(scores)[None], self.settings)[0]
        return [name for name, is_chosen in zip(self.names, chosen, strict=True) if is_chosen]


def evaluate_rows(
    labelling: Labelling, table: ExampleTable, examples: str, values: Mapping[str, Any]
) -> EvaluationResult:
    """Scores the probabilities ``values``, by example_id, in each split of the table.

    Labels that are not among the head's classes are counted in a note: their examples count as
    wrong in the accuracy, and are negative examples of every class in the other figures.
    """
    figures, headline, notes = Figures(), list[str](), list[str]()
    files, cases, lacking = [], list[Case](), dict[str, str]()
    numbers = {name: number for number, name in enumerate(labelling.names)}
    for name, split in read_splits(table, examples, values).items():
        prefix = f"{labelling.task}/{name}"
        headline_keys = [f"{prefix}/{figure}" for figure in headline_figures(labelling)]
        headline += headline_keys
        files += split_files(labelling, name, split, values)
        if not (labelled := split.labelled):
            figures |= dict.fromkeys(headline_keys)
            continue
        if unscored := len(split.examples) - len(labelled):
            counted = format_count(unscored, "example")
            notes.append(f"{counted} of {name} without public labels are not scored.")
        unknown = [[label for label in e.labels or () if label not in numbers] for e in labelled]
        notes += describe_unknown(unknown, name)
        right = [[numbers[label] for label in e.labels or () if label in numbers] for e in labelled]
        scores = [values[example.example_id] for example in labelled]
        split_figures, exact = score_rows(
            scores, right, list(map(len, unknown)), labelling.names, labelling.settings
        )
        figures |= {f"{prefix}/{figure}": value for figure, value in split_figures.items()}
        lacking |= {key: "undefined" for key in headline_keys if figures[key] is None}
        by_id = {e.example_id: float(hit) for e, hit in zip(labelled, exact, strict=True)}
        groups = {example.example_id: example.group for example in labelled}
        figures |= shares_by_group(f"{prefix}/accuracy/subset", by_id, groups)
        cases += [
            make_case(example, labelling, scores[row], right[row])
            for row, example in enumerate(labelled)
        ]
    return EvaluationResult(
        figures=figures,
        headline=headline,
        lacking=lacking,
        files=files,
        cases=cases,
        notes=notes,
    )


def split_files(
    labelling: Labelling, name: str, split: Split, values: Mapping[str, Any]
) -> list[Callable[[Path], object]]:
    """Returns what writes the files of a split."""
    writers = [write_predictions]
    if any(example.source == HATEFUL_MEMES for example in split.examples):
        writers.append(write_memes)
    return [
        partial(write, labelling=labelling, name=name, split=split, values=values)
        for write in writers
    ]


def headline_figures(labelling: Labelling) -> tuple[str, ...]:
    """Returns the metrics of a split that the command prints."""
    if labelling.settings.kind == "multi":
        return ("mean_average_precision", "micro_average_precision", "macro_f1", "accuracy")
    return ("accuracy", "macro_f1", "auroc")


def describe_unknown(unknown: Sequence[Sequence[str]], split: str) -> list[str]:
    """Returns a note on the examples with labels that the head does not have; none without any."""
    num_rows = sum(bool(labels) for labels in unknown)
    if not num_rows:
        return []
    names = name_some(sorted({label for labels in unknown for label in labels}))
    counted = format_count(num_rows, "example")
    return [
        f"{split}: {counted} with a label that the checkpoint does not have count as wrong "
        f"({names})."
    ]


def make_case(example: Example, labelling: Labelling, scores: Any, right: Sequence[int]) -> Case:
    """Returns an example as a report shows it. Its score is the probability of its class, or of the
    least likely of several; without one, one minus the likeliest.
    """
    values = [float(scores[number]) for number in right]
    return Case(
        example_id=example.example_id,
        image_id=example.image_ids[0] if example.image_ids else "",
        score=min(values) if values else 1 - float(np.max(scores)),
        text=example.text,
        prediction=", ".join(labelling.predict(scores)) or "(none)",
        right=", ".join(example.labels or ()) or "(none)",
    )


def list_probabilities(names: Sequence[str], scores: Any) -> dict[str, float]:
    """Returns the probabilities of the likeliest classes, in falling order."""
    order = np.argsort(-np.array(scores), kind="stable")[:MOST_LISTED]
    return {names[number]: round(float(scores[number]), 6) for number in order}


def write_predictions(
    folder: Path,
    *,
    labelling: Labelling,
    name: str,
    split: Split,
    values: Mapping[str, Any],
) -> None:
    """Writes ``TASK_SPLIT.jsonl``: a line for each example with its id, its labels (null: not
    public), the predicted classes and the probabilities of the ten likeliest ones.
    """
    lines = [
        json.dumps(
            {
                "example_id": example.example_id,
                "labels": None if example.labels is None else list(example.labels),
                "predicted": labelling.predict(values[example.example_id]),
                "probabilities": list_probabilities(labelling.names, values[example.example_id]),
            },
            ensure_ascii=False,
        )
        for example in split.examples
    ]
    write_text(folder / f"{labelling.task}_{name}.jsonl", "".join(f"{line}\n" for line in lines))


def write_memes(
    folder: Path,
    *,
    labelling: Labelling,
    name: str,
    split: Split,
    values: Mapping[str, Any],
) -> None:
    """Writes ``hateful_memes_SPLIT.csv``, the file of the challenge: id, the probability of the
    second class, and the predicted class 0 or 1.
    """
    lines = ["id,proba,label"]
    for example in split.examples:
        scores = values[example.example_id]
        number = example.example_id.rpartition("/")[2]
        lines.append(f"{number},{float(scores[1]):.6f},{int(np.argmax(scores))}")
    write_text(folder / f"hateful_memes_{name}.csv", "\n".join(lines) + "\n")
