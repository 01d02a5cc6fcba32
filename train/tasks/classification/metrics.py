"""Computes accuracy, F1, the area under the ROC curve and average precision.

N examples, C classes. The definitions are scikit-learn's (``accuracy_score``, ``f1_score``,
``roc_auc_score``, ``average_precision_score``), against which a test compares them. A figure that
is undefined is None: the area of a class that all examples have or none has, and the average
precision of a class that none has.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from vlmill.train.tasks.scores import Figures, standard_error

CLASSES_LISTED = 50  # classes whose F1 is reported separately


def area_under_roc(scores: Float[ndarray, " N"], positives: Bool[ndarray, " N"]) -> float | None:
    """Returns the probability that a positive example has a higher score than a negative one, where
    a tie counts half; None without a positive or without a negative example.
    """
    num_positive = int(positives.sum())
    num_negative = len(positives) - num_positive
    if not num_positive or not num_negative:
        return None
    _, indices, counts = np.unique(scores, return_inverse=True, return_counts=True)
    # The mean rank, from 1, of equal scores.
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[indices]
    wins = float(ranks[positives].sum()) - num_positive * (num_positive + 1) / 2
    return wins / (num_positive * num_negative)


def average_precision(scores: Float[ndarray, " N"], positives: Bool[ndarray, " N"]) -> float | None:
    """Returns the sum over falling thresholds of precision times the increase of recall; equal
    scores are one threshold. None without a positive example.
    """
    if not (num_positive := int(positives.sum())):
        return None
    order = np.argsort(-scores, kind="stable")
    sorted_scores, hits = scores[order], np.cumsum(positives[order])
    ends = np.append(np.flatnonzero(np.diff(sorted_scores)), len(scores) - 1)
    precision, recall = hits[ends] / (ends + 1), hits[ends] / num_positive
    return float(np.sum(np.diff(recall, prepend=0.0) * precision))


def f1_scores(predicted: Bool[ndarray, "N C"], right: Bool[ndarray, "N C"]) -> list[float | None]:
    """Returns the F1 of each class; None for a class that is neither predicted nor right."""
    hits = (predicted & right).sum(0)
    total = predicted.sum(0) + right.sum(0)
    return [
        2 * float(hit) / float(count) if count else None
        for hit, count in zip(hits, total, strict=True)
    ]


def mean_defined(values: Sequence[float | None]) -> float | None:
    """Returns the mean of the values that are not None; None without one."""
    defined = [value for value in values if value is not None]
    return float(np.mean(defined)) if defined else None


def one_hot(classes: Int[ndarray, " N"], num_classes: int) -> Bool[ndarray, "N C"]:
    """Returns a row for each example, with its class marked; no mark for -1."""
    marked: Bool[ndarray, "N C"] = classes[:, None] == np.arange(num_classes)
    return marked


def compute_figures(
    scores: Float[ndarray, "N C"],
    right: Bool[ndarray, "N C"],
    predicted: Bool[ndarray, "N C"],
    exact: Bool[ndarray, " N"],
    names: Sequence[str],
    *,
    multi: bool,
) -> Figures:
    """Returns the figures of examples by name.

    ``exact`` marks the examples whose classes are predicted exactly: its share is ``accuracy``. Of
    two classes ``auroc`` and ``average_precision`` are the second one's; of more, and with several
    classes an example, ``auroc`` is the mean over the classes that have both kinds of examples and
    there is no ``average_precision``. With several classes an
    example also ``micro_f1``, ``mean_average_precision`` over the classes with an example, and
    ``micro_average_precision`` over all decisions.
    """
    count = len(exact)
    accuracy = float(exact.mean()) if count else None
    figures: Figures = {
        "accuracy": accuracy,
        "accuracy_stderr": None if accuracy is None else standard_error(accuracy, count),
        "accuracy_n": count,
    }
    by_class = f1_scores(predicted, right)
    figures["macro_f1"] = mean_defined(by_class)
    counted = range(len(names))
    if not multi and len(names) == 2:
        counted = range(1, 2)
        figures["average_precision"] = average_precision(scores[:, 1], right[:, 1])
    figures["auroc"] = mean_defined([area_under_roc(scores[:, c], right[:, c]) for c in counted])
    if multi:
        (figures["micro_f1"],) = f1_scores(predicted.reshape(-1, 1), right.reshape(-1, 1))
        figures["mean_average_precision"] = mean_defined(
            [average_precision(scores[:, c], right[:, c]) for c in counted]
        )
        flat = (scores.reshape(-1), right.reshape(-1))
        figures["micro_average_precision"] = average_precision(*flat) if count else None
    if len(names) <= CLASSES_LISTED:
        figures |= {f"f1/{name}": value for name, value in zip(names, by_class, strict=True)}
    return figures
