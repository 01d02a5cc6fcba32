"""Computes GLUE's official metrics of predictions by split, averages, the server's file.

A prediction is the list of a row's logits by class, or a list of STS-B's score alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from glob import glob
from pathlib import Path
from typing import Any

import numpy as np

from vlmill.runtime.files.atomic import write_text
from vlmill.runtime.files.reading import iter_batches
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json
from vlmill.schemas.tables import STATEMENTS
from vlmill.train.tasks.glue.metrics import INTERBERT, TASKS, glue_averages, glue_metrics
from vlmill.train.tasks.glue.settings import HALVES, GlueSettings
from vlmill.train.tasks.report import Case
from vlmill.train.tasks.scores import NO_SPLIT, Figures, require_same_ids
from vlmill.train.tasks.task import EvaluationResult

COLUMNS = ("example_id", "text_a", "text_b", "label_id", "score", "split")
SUFFIXES = dict(zip(("_matched", "_mismatched"), HALVES, strict=True))  # of MNLI's splits
AVERAGES = ("glue/average_interbert", "glue/average_official8")
METRICS = "metrics.json"


@dataclass(kw_only=True)
class Part:
    """Holds the predictions for a split, of MNLI for one half of it, and its public labels."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    predictions: dict[str, float] = field(default_factory=dict)
    labels: dict[str, float] = field(default_factory=dict)


def decode_logits(value: Sequence[float]) -> float:
    """Returns the class with the highest logit, the first of equal ones; or the score."""
    return value[0] if len(value) == 1 else int(np.argmax(value))


def parse_split(task: str, split: str) -> tuple[str, str]:
    """Returns a split's name and the key of `metrics.TASKS`: ``dev`` and ``mnli-mm``."""
    if task != "mnli":
        return split, task
    for suffix, half in SUFFIXES.items():
        if split.endswith(suffix):
            return split.removesuffix(suffix), half
    return split, HALVES[0]


def evaluate_predictions(
    examples: str, settings: GlueSettings, values: Mapping[str, Sequence[float]]
) -> EvaluationResult:
    """Scores the predictions ``values``, by example_id, and averages them with other tasks'."""
    figures, headline, notes = Figures(), list[str](), list[str]()
    files, cases, published = [], list[Case](), list[str]()
    lacking = dict[str, str]()
    for (split, task), part in read_parts(examples, settings.task, values).items():
        name = f"glue/{split}/{task}"
        files.append(partial(write_predictions, task=task, predictions=part.predictions))
        metrics = [INTERBERT.get(settings.task, "accuracy"), *(TASKS[task].metrics or ())]
        headline += [f"{name}/{metric}" for metric in dict.fromkeys(metrics)]
        if not part.labels:
            figures |= {key: None for key in headline if key.startswith(f"{name}/")}
            continue
        if unscored := len(part.rows) - len(part.labels):
            notes.append(f"{unscored} rows of {split} have no label and are not scored.")
        scored = {key: part.predictions[key] for key in part.labels}
        figures |= glue_metrics(task, scored, part.labels, split)
        same = [key for key in headline if key.startswith(f"{name}/") and figures[key] is None]
        notes += [f"{key} is undefined: predictions or labels are all the same." for key in same]
        lacking |= dict.fromkeys(same, "undefined")
        published += [f"glue/dev/{task}/{metric}" for metric in dict.fromkeys(metrics)]
        labelled = [row for row in part.rows if row["example_id"] in part.labels]
        cases += [make_case(task, row, values[row["example_id"]]) for row in labelled]
    if settings.scores is not None:
        averages, missing = compute_averages(figures, settings.scores)
        figures |= averages
        headline += AVERAGES
        published.append(AVERAGES[0])
        notes += [f"No average without {', '.join(missing)}."] if missing else []
        undefined = [name for name in AVERAGES if averages[name] is None]
        lacking |= dict.fromkeys(undefined, "metrics of other tasks are missing")
    return EvaluationResult(
        figures=figures,
        headline=headline,
        lacking=lacking,
        published=published,
        files=files,
        cases=cases,
        notes=notes,
    )


def read_parts(
    examples: str, task: str, values: Mapping[str, Sequence[float]]
) -> dict[tuple[str, str], Part]:
    """Returns the rows that have been predicted, by their splits."""
    parts: dict[tuple[str, str], Part] = {}
    for batch in iter_batches(examples, STATEMENTS, columns=COLUMNS, flag="--examples"):
        for row in batch.to_pylist():
            key = row["example_id"]
            if key not in values:
                continue
            part = parts.setdefault(parse_split(task, row["split"] or NO_SPLIT), Part())
            part.rows.append(row)
            part.predictions[key] = decode_logits(values[key])
            label = row["score"] if task == "sts-b" else row["label_id"]
            if label is not None and (task == "sts-b" or label >= 0):
                part.labels[key] = label
    return parts


def write_predictions(folder: Path, *, task: str, predictions: Mapping[str, float]) -> None:
    """Writes the server's file. Raises InputError for ids that do not end in the row's number."""
    numbers = {key.rpartition("/")[2]: value for key, value in predictions.items()}
    if other := [number for number in numbers if not number.isdecimal()]:
        raise InputError(
            f"{TASKS[task].file}.tsv needs ids that end in a row number, such as "
            f"glue/rte/test/0; got {other[0]!r}"
        )
    write_prediction_file(folder, task, {int(number): value for number, value in numbers.items()})


def make_case(task: str, row: Mapping[str, Any], value: Sequence[float]) -> Case:
    """Returns a row as a report shows it. Its score is the right class's probability, or for STS-B
    one minus a fifth of the error.
    """
    classes = TASKS[task].classes
    if classes:
        logits = np.array(value, dtype=np.float64)
        odds = np.exp(logits - logits.max())
        score = float(odds[row["label_id"]] / odds.sum())
        prediction, right = classes[int(decode_logits(value))], classes[row["label_id"]]
    else:
        score = 1 - abs(value[0] - row["score"]) / 5
        prediction, right = f"{value[0]:.2f}", f"{row['score']:.2f}"
    text = row["text_a"] if row["text_b"] is None else f"{row['text_a']} | {row['text_b']}"
    return Case(
        example_id=row["example_id"],
        image_id="",
        score=score,
        text=text,
        prediction=prediction,
        right=right,
    )


def compute_averages(figures: Figures, pattern: str) -> tuple[Figures, list[str]]:
    """Returns the averages over all eight tasks with the metrics of other evaluations, and the
    names of the missing ones.

    Raises InputError if a pattern matches no evaluation, or two evaluations have the same metric.
    """
    together, homes = dict(figures), dict[str, str]()
    for path in find_evaluations(pattern):
        for name, value in read_json(path).items():
            if not name.startswith("glue/dev/") or (name in together and name not in homes):
                continue
            if name in homes:
                raise InputError(
                    f"--scores {pattern}: {homes[name]} and {path.parent} both contain "
                    f"{name}; give one evaluation per task"
                )
            together[name], homes[name] = value, str(path.parent)
    required_names = [f"glue/dev/{task}/{metric}" for task, metric in INTERBERT.items()]
    required_names += [f"glue/dev/{half}/accuracy" for half in HALVES]
    lacking = [name for name in required_names if together.get(name) is None]
    return glue_averages(together), lacking


def find_evaluations(pattern: str) -> list[Path]:
    """Returns the metrics of the evaluations in a pattern's folders. Raises InputError for none."""
    files = [Path(folder) / METRICS for folder in sorted(glob(pattern))]
    files = [path for path in files if path.is_file()]
    if not files:
        raise InputError(
            f"--scores {pattern}: no matching folder has a {METRICS}; give what `train-vl "
            "evaluate glue` wrote"
        )
    return files


BEST_SCORE = 5.0  # of STS-B


def prediction_file(task: str, predictions: Mapping[int, int | float]) -> str:
    """Returns the text of a task's file: ``index`` and ``prediction``, by rising index from 0.

    Classes are written by their names, STS-B's scores clipped to 0..5 with three decimals. Raises
    InputError unless the indices are 0, 1, ... without a gap.
    """
    rows = range(max(predictions, default=-1) + 1)
    require_same_ids(predictions.keys(), set(rows), f"predictions of {task}")
    classes = TASKS[task].classes
    written = [
        classes[int(predictions[row])]
        if classes
        else f"{min(max(predictions[row], 0.0), BEST_SCORE):.3f}"
        for row in rows
    ]
    lines = ["index\tprediction", *(f"{row}\t{text}" for row, text in enumerate(written))]
    return "\n".join(lines) + "\n"


def write_prediction_file(folder: Path, task: str, predictions: Mapping[int, int | float]) -> Path:
    """Writes a task's file under the name that the server expects: ``SST-2.tsv``."""
    path = folder / f"{TASKS[task].file}.tsv"
    write_text(path, prediction_file(task, predictions))
    return path
