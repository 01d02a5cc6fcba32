"""Fits boosted trees on labelled rows, and measures them by cross-validation.

N labelled rows of F features. scikit-learn grows the trees, which are then plain arrays. It keeps
the nodes of its boosted trees in private attributes; where these are missing or different, trees
are boosted here, from its trees for regression, whose nodes are public (Friedman 2001, sec. 4.5).
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import StratifiedGroupKFold
from sklearn.tree import DecisionTreeRegressor

from vlmill.pipelines.filters.trees import Features, Trees

Labels = npt.NDArray[np.bool_]
FOLDS = 5
SHUFFLES = 3  # one shuffle of 300 labels is 0.03 off by chance
# Label sets are small: few leaves, few rows per leaf, and few trees.
GROWING: dict[str, Any] = {
    "max_iter": 60,
    "max_bins": 63,
    "learning_rate": 0.15,
    "max_leaf_nodes": 8,
    "min_samples_leaf": 5,
    "l2_regularization": 1.0,
    "early_stopping": False,
}
THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True, kw_only=True)
class LabelledRows:
    """Holds features float32 [N, F] with NaN for missing values, labels [N], and units.

    Rows of the same ``unit`` (an image, for pairs) are in the same fold, because one row would
    reveal the other's label. ``groups`` has the names of features by their input.
    """

    features: Features
    labels: Labels
    units: Sequence[str]
    names: tuple[str, ...]
    groups: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Holds the results of cross-validation; trees judge only rows that they were not fitted on."""

    rows: int
    positives: int
    probabilities: Features
    auc: float
    auc_of_folds: tuple[float, ...]
    average_precision: float
    auc_of_shuffled: float  # with shuffled labels: 0.5 unless there is a leak
    importances: dict[str, float]  # loss of AUC if a feature's values are permuted
    alone: dict[str, float]  # AUC with one group of features
    without: dict[str, float]  # AUC with all groups but one

    def table(self, labels: Labels) -> list[tuple[float, float, float, float]]:
        """Returns rows of (threshold, share at or above it, precision, recall)."""
        lines = []
        for threshold in THRESHOLDS:
            above = self.probabilities >= np.float32(threshold)
            hits = int(np.count_nonzero(above & labels))
            precision = hits / max(1, int(above.sum()))
            lines.append((threshold, float(above.mean()), precision, hits / max(1, labels.sum())))
        return lines


def grow(features: Features, labels: Labels, *, seed: int) -> Trees:
    """Fits trees to features [N, F] and labels [N]; the same input gives the same trees."""
    # scikit-learn cannot bin a column without a value; it never splits on a constant.
    present = np.where(np.isnan(features).all(axis=0), np.float32(0), features)
    if not shows_nodes():
        return boost(present, labels, seed=seed)
    booster = HistGradientBoostingClassifier(random_state=seed, **GROWING)
    booster.fit(present, labels)
    return plain_trees(booster)


@functools.cache
def shows_nodes() -> bool:
    """Returns whether the nodes of scikit-learn's boosted trees are where they are read."""
    rows = np.arange(24, dtype=np.float32)[:, None]
    rows[::8] = np.nan
    booster = HistGradientBoostingClassifier(random_state=0, **GROWING)
    booster.fit(rows, np.nan_to_num(rows[:, 0]) > 10)
    try:
        trees = plain_trees(booster)
        return np.allclose(trees.probabilities(rows), booster.predict_proba(rows)[:, 1], atol=1e-5)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return False


def boost(features: Features, labels: Labels, *, seed: int) -> Trees:
    """Boosts trees by Newton steps on the logistic loss, with the settings of `GROWING` except the
    bins: slower than scikit-learn's, and with other splits.
    """
    share = float(np.clip(labels.mean(), 1e-6, 1 - 1e-6))
    bias = float(np.log(share / (1 - share)))
    sums, nodes = np.full(len(labels), bias), list[dict[str, npt.NDArray[Any]]]()
    for _ in range(GROWING["max_iter"]):
        probabilities = 1 / (1 + np.exp(-sums))
        gradients, curvatures = labels - probabilities, probabilities * (1 - probabilities)
        regressor = DecisionTreeRegressor(
            max_leaf_nodes=GROWING["max_leaf_nodes"],
            min_samples_leaf=GROWING["min_samples_leaf"],
            random_state=seed,
        ).fit(features, gradients)
        leaves, tree = regressor.apply(features), regressor.tree_
        slopes = np.bincount(leaves, gradients, tree.node_count)
        bends = np.bincount(leaves, curvatures, tree.node_count)
        values = GROWING["learning_rate"] * slopes / (bends + GROWING["l2_regularization"])
        sums += values[leaves]
        is_leaf = tree.children_left < 0
        nodes.append(
            {
                "is_leaf": is_leaf,
                "feature_idx": tree.feature,
                "num_threshold": tree.threshold,
                "left": tree.children_left,
                "right": tree.children_right,
                "missing_go_to_left": tree.missing_go_to_left,
                "value": values,
            }
        )
    return join_trees(nodes, bias)


def plain_trees(booster: HistGradientBoostingClassifier) -> Trees:
    """Copies scikit-learn's boosted trees into plain arrays."""
    nodes = [predictor.nodes for (predictor,) in booster._predictors]
    (bias,) = np.asarray(booster._baseline_prediction, dtype=np.float64).reshape(-1)
    return join_trees(nodes, bias)


def join_trees(trees: Sequence[Mapping[str, npt.NDArray[Any]]], bias: float) -> Trees:
    """Concatenates trees' nodes, by scikit-learn's fields; a leaf becomes its own child."""
    arrays: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in NODE_FIELDS}
    roots, start = [], 0
    for nodes in trees:
        leaf = nodes["is_leaf"].astype(bool)
        node_indices = np.arange(start, start + len(leaf), dtype=np.int32)
        arrays["feature"].append(np.where(leaf, 0, nodes["feature_idx"]).astype(np.int32))
        arrays["threshold"].append(np.where(leaf, 0.0, nodes["num_threshold"]))
        for side in ("left", "right"):
            arrays[side].append(
                np.where(leaf, node_indices, nodes[side].astype(np.int64) + start).astype(np.int32)
            )
        arrays["missing_left"].append(nodes["missing_go_to_left"].astype(bool))
        arrays["value"].append(np.where(leaf, nodes["value"], 0.0))
        roots.append(start)
        start += len(leaf)
    joined = {name: np.concatenate(parts) for name, parts in arrays.items()}
    return Trees(
        **joined, roots=np.array(roots, dtype=np.int32), bias=np.array([bias], dtype=np.float64)
    )


NODE_FIELDS = ("feature", "threshold", "left", "right", "missing_left", "value")


def validate(rows: LabelledRows, *, seed: int) -> Validation:
    """Cross-validates in FOLDS folds, with importances and the contribution of each group."""
    folds = split_folds(rows.labels, rows.units, seed)
    probabilities, importances = _judge(rows, folds, seed)
    rng = np.random.default_rng(seed)
    shuffles = [rng.permutation(rows.labels) for _ in range(SHUFFLES)]
    auc_of_shuffles = [
        _auc_over(rows.features, labels, split_folds(labels, rows.units, seed), seed)
        for labels in shuffles
    ]
    return Validation(
        rows=len(rows.labels),
        positives=int(rows.labels.sum()),
        probabilities=probabilities,
        auc=_mean_auc(rows.labels, probabilities, folds),
        auc_of_folds=tuple(auc(rows.labels[fold], probabilities[fold]) for fold in folds),
        average_precision=float(average_precision_score(rows.labels, probabilities)),
        auc_of_shuffled=float(np.mean(auc_of_shuffles)),
        importances=importances,
        alone={name: _auc_of_group(rows, folds, name, True, seed) for name in rows.groups},
        without={
            name: _auc_of_group(rows, folds, name, False, seed)
            for name in (rows.groups if len(rows.groups) > 1 else ())
        },
    )


def auc(labels: Labels, probabilities: Features) -> float:
    """Returns the area under the ROC curve; 0.5 if there is only one class."""
    if labels.all() or not labels.any():
        return 0.5
    return float(roc_auc_score(labels, probabilities))


def split_folds(labels: Labels, units: Sequence[str], seed: int) -> list[npt.NDArray[np.int64]]:
    """Returns the rows of each fold: classes spread evenly, units whole, and no fold empty."""
    splitter = StratifiedGroupKFold(n_splits=FOLDS, shuffle=True, random_state=seed)
    numbers = np.unique(np.asarray(units), return_inverse=True)[1]
    splits = splitter.split(np.zeros((len(labels), 1)), labels, numbers)
    return [fold for _, fold in splits if len(fold)]


def _judge(
    rows: LabelledRows, folds: Sequence[npt.NDArray[np.int64]], seed: int
) -> tuple[Features, dict[str, float]]:
    """Returns the rows' probabilities by the other folds' trees, and the features' importances."""
    probabilities = np.zeros(len(rows.labels), dtype=np.float32)
    lost = np.zeros(len(rows.names))
    rng = np.random.default_rng(seed)
    for fold in folds:
        trees = grow(*_others(rows.features, rows.labels, fold), seed=seed)
        fold_features, labels = rows.features[fold], rows.labels[fold]
        probabilities[fold] = trees.probabilities(fold_features)
        before = auc(labels, probabilities[fold])
        for number in trees.used():
            permuted = fold_features.copy()
            permuted[:, number] = rng.permutation(fold_features[:, number])
            lost[number] += before - auc(labels, trees.probabilities(permuted))
    means = (lost / len(folds)).tolist()
    ranked = sorted(zip(rows.names, means, strict=True), key=lambda one: (-one[1], one[0]))
    return probabilities, dict(ranked)


def _others(
    features: Features, labels: Labels, fold: npt.NDArray[np.int64]
) -> tuple[Features, Labels]:
    mask = np.ones(len(labels), dtype=np.bool_)
    mask[fold] = False
    return features[mask], labels[mask]


def _auc_of_group(
    rows: LabelledRows, folds: Sequence[npt.NDArray[np.int64]], group: str, inside: bool, seed: int
) -> float:
    """Returns the AUC with the features of one group alone, or with all others."""
    names = set(rows.groups[group])
    columns = [n for n, name in enumerate(rows.names) if (name in names) == inside]
    return _auc_over(rows.features[:, columns], rows.labels, folds, seed)


def _auc_over(
    features: Features, labels: Labels, folds: Sequence[npt.NDArray[np.int64]], seed: int
) -> float:
    probabilities = np.zeros(len(labels), dtype=np.float32)
    for fold in folds:
        trees = grow(*_others(features, labels, fold), seed=seed)
        probabilities[fold] = trees.probabilities(features[fold])
    return _mean_auc(labels, probabilities, folds)


def _mean_auc(
    labels: Labels, probabilities: Features, folds: Sequence[npt.NDArray[np.int64]]
) -> float:
    """Returns the folds' mean AUC; the AUC over all rows is below 0.5 for random labels."""
    return float(np.mean([auc(labels[fold], probabilities[fold]) for fold in folds]))
