"""Computes the official metrics of GLUE's eight tasks and the averages over them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.stats import pearsonr, spearmanr

from vlmill.train.tasks.scores import Figures, require_finite, require_same_ids, share

Id = TypeVar("Id", bound=int | str)
Numbers = NDArray[np.generic]
Metric = Callable[[Numbers, Numbers], float | None]

POSITIVE = 1  # the class whose F1 is computed


def matthews(predictions: Numbers, labels: Numbers) -> float:
    """Returns the correlation of two sets of classes 0 and 1; 0 where either is constant."""
    both, predicted, labelled = _counts(predictions, labels)
    n = len(labels)
    spread = predicted * (n - predicted) * labelled * (n - labelled)
    return float((n * both - predicted * labelled) / spread**0.5) if spread else 0.0


def f1(predictions: Numbers, labels: Numbers) -> float:
    """Returns the F1 of class 1; 0 if it is never predicted or never labelled."""
    both, predicted, labelled = _counts(predictions, labels)
    return 2 * both / (predicted + labelled) if predicted + labelled else 0.0


def _counts(predictions: Numbers, labels: Numbers) -> tuple[int, int, int]:
    """Returns three counts of class 1: both predicted and labelled, predicted, and labelled."""
    predicted, labelled = predictions == POSITIVE, labels == POSITIVE
    return int((predicted & labelled).sum()), int(predicted.sum()), int(labelled.sum())


def pearson(predictions: Numbers, labels: Numbers) -> float | None:
    """Returns the linear correlation; None where either is constant."""
    return _correlation(pearsonr, predictions, labels)


def spearman(predictions: Numbers, labels: Numbers) -> float | None:
    """Returns the correlation of ranks, equal values at their mean rank; None where either is
    constant.
    """
    return _correlation(spearmanr, predictions, labels)


def _correlation(
    correlate: Callable[..., Any], predictions: Numbers, labels: Numbers
) -> float | None:
    if min(len(np.unique(predictions)), len(np.unique(labels))) < 2:
        return None
    return float(correlate(predictions, labels).statistic)


def mean(values: Sequence[float | None]) -> float | None:
    """Returns the mean; None if a value is None."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if values and len(known) == len(values) else None


@dataclass(frozen=True, kw_only=True)
class GlueTask:
    """Describes a task: its classes in the order of their numbers (none: a score 0..5), its metrics
    in addition to accuracy, and the file of its predictions.
    """

    file: str
    classes: tuple[str, ...] = ("0", "1")
    metrics: Mapping[str, Metric] | None = None
    accuracy: bool = True


_MNLI = ("entailment", "neutral", "contradiction")
_ENTAILMENT = ("entailment", "not_entailment")
TASKS = {
    "cola": GlueTask(file="CoLA", metrics={"matthews": matthews}, accuracy=False),
    "sst-2": GlueTask(file="SST-2"),
    "mrpc": GlueTask(file="MRPC", metrics={"f1": f1}),
    "qqp": GlueTask(file="QQP", metrics={"f1": f1}),
    "sts-b": GlueTask(
        file="STS-B",
        classes=(),
        metrics={"pearson": pearson, "spearman": spearman},
        accuracy=False,
    ),
    "mnli-m": GlueTask(file="MNLI-m", classes=_MNLI),
    "mnli-mm": GlueTask(file="MNLI-mm", classes=_MNLI),
    "qnli": GlueTask(file="QNLI", classes=_ENTAILMENT),
    "rte": GlueTask(file="RTE", classes=_ENTAILMENT),
}


def glue_metrics(
    task: str,
    predictions: Mapping[Id, int | float],
    labels: Mapping[Id, int | float],
    split: str = "dev",
) -> Figures:
    """Returns ``glue/SPLIT/TASK/METRIC``, and ``mean`` where the task has two.

    Predictions and labels are numbers of classes, of STS-B scores, joined by id. Raises InputError
    for missing and surplus ids and for scores that are not finite.
    """
    require_same_ids(predictions.keys(), labels.keys(), f"predictions of {task}")
    require_finite({key: np.array(value, np.float64) for key, value in predictions.items()}, task)
    predicted_values = np.array([predictions[key] for key in labels])
    label_values = np.array(list(labels.values()))
    name, rules = f"glue/{split}/{task}", TASKS[task]
    figures: Figures = (
        share(f"{name}/accuracy", predicted_values == label_values) if rules.accuracy else {}
    )
    for metric, compute in (rules.metrics or {}).items():
        figures[f"{name}/{metric}"] = compute(predicted_values, label_values)
    figure_names = [f"{name}/accuracy"] * rules.accuracy + [
        f"{name}/{m}" for m in rules.metrics or ()
    ]
    if len(figure_names) > 1:
        figures[f"{name}/mean"] = mean([figures[metric] for metric in figure_names])
    return figures | {f"{name}/n": len(label_values)}


# The metrics that InterBERT's table prints of each task (its text names accuracy for CoLA).
INTERBERT = {
    "qnli": "accuracy",
    "cola": "matthews",
    "sst-2": "accuracy",
    "sts-b": "spearman",
    "rte": "accuracy",
    "qqp": "f1",
    "mrpc": "f1",
}
OFFICIAL = INTERBERT | {"sts-b": "mean", "qqp": "mean", "mrpc": "mean"}


def glue_averages(figures: Figures, split: str = "dev") -> Figures:
    """Returns ``glue/average_interbert`` and ``glue/average_official8``: means of eight tasks.

    MNLI is the mean of its two halves. The official one takes the mean of a task's two metrics
    (without WNLI, which nobody trains). None where a task is missing or undefined.
    """
    halves = [figures.get(f"glue/{split}/{half}/accuracy") for half in ("mnli-m", "mnli-mm")]

    def average(metrics: Mapping[str, str]) -> float | None:
        tasks = [figures.get(f"glue/{split}/{task}/{metric}") for task, metric in metrics.items()]
        return mean([*tasks, mean(halves)])

    return {
        "glue/average_interbert": average(INTERBERT),
        "glue/average_official8": average(OFFICIAL),
    }
