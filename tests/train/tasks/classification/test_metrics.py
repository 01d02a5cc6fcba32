"""Figures of classification beside scikit-learn's, and where they are undefined."""

from __future__ import annotations

import numpy as np
import pytest

from vlmill.train.tasks.classification.metrics import (
    area_under_roc,
    average_precision,
    compute_figures,
    f1_scores,
    one_hot,
)


def test_area_and_precision_by_hand() -> None:
    scores = np.array([0.9, 0.8, 0.7, 0.6])
    positives = np.array([True, False, True, False])
    assert area_under_roc(scores, positives) == 3 / 4  # of four pairs one is in the wrong order
    assert average_precision(scores, positives) == pytest.approx((1 + 2 / 3) / 2)


def test_equal_scores_and_absent_classes() -> None:
    same, none = np.full(5, 0.5), np.zeros(5, dtype=np.bool_)
    some = np.array([True, False, False, True, False])
    assert area_under_roc(same, some) == 0.5
    assert average_precision(same, some) == pytest.approx(2 / 5)  # the share of positives
    assert area_under_roc(same, none) is None and area_under_roc(same, ~none) is None
    assert average_precision(same, none) is None and average_precision(same, ~none) == 1
    assert f1_scores(np.zeros((2, 1), np.bool_), np.zeros((2, 1), np.bool_)) == [None]
    empty = np.empty((0, 2))
    figures = compute_figures(
        empty, empty.astype(bool), empty.astype(bool), np.empty(0, bool), ["a", "b"], multi=True
    )
    assert figures["accuracy_n"] == 0 and {figures[n] for n in ("accuracy", "auroc")} == {None}


@pytest.mark.parametrize("seed", range(4))
def test_figures_are_those_of_scikit_learn(seed: int) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(seed)
    names, count = ["a", "b", "c", "d"], 60
    scores = np.round(rng.random((count, 4)), 1)  # with ties
    right = rng.random((count, 4)) < 0.3
    predicted = scores >= 0.5
    exact = (predicted == right).all(1)
    figures = compute_figures(scores, right, predicted, exact, names, multi=True)
    expected = {
        "accuracy": metrics.accuracy_score(right, predicted),
        "macro_f1": metrics.f1_score(right, predicted, average="macro"),
        "micro_f1": metrics.f1_score(right, predicted, average="micro"),
        "auroc": metrics.roc_auc_score(right, scores, average="macro"),
        "mean_average_precision": metrics.average_precision_score(right, scores, average="macro"),
        "micro_average_precision": metrics.average_precision_score(right, scores, average="micro"),
    }
    assert {name: figures[name] for name in expected} == pytest.approx(expected)

    classes = rng.integers(0, 3, count)  # the fourth class is neither right nor ever predicted
    shares = rng.dirichlet(np.ones(4), count)
    shares[:, 3] = 0
    shares /= shares.sum(1, keepdims=True)
    chosen = one_hot(shares.argmax(1), 4)
    hits = shares.argmax(1) == classes
    figures = compute_figures(shares, one_hot(classes, 4), chosen, hits, names, multi=False)
    one_vs_rest = metrics.roc_auc_score(classes, shares[:, :3], multi_class="ovr")
    assert figures["auroc"] == pytest.approx(one_vs_rest)
    assert figures["macro_f1"] == pytest.approx(
        metrics.f1_score(classes, shares.argmax(1), average="macro")
    )
    assert figures["f1/d"] is None


def test_of_two_classes_the_second_one_is_found() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(7)
    classes, share = rng.integers(0, 2, 40), np.round(rng.random(40), 2)
    scores = np.stack([1 - share, share], axis=1)
    predicted = one_hot(scores.argmax(1), 2)
    hits = scores.argmax(1) == classes
    figures = compute_figures(
        scores, one_hot(classes, 2), predicted, hits, ["no", "yes"], multi=False
    )
    assert figures["auroc"] == pytest.approx(metrics.roc_auc_score(classes, share))
    assert figures["average_precision"] == pytest.approx(
        metrics.average_precision_score(classes, share)
    )
