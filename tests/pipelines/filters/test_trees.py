from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

from vlmill.pipelines.filters.fitting import GROWING, plain_trees
from vlmill.pipelines.filters.trees import BadTrees, Trees, build_trees


def stump() -> Trees:
    """One tree of one question: is feature 1 at most 0.5?"""
    return Trees(
        feature=np.array([1, 0, 0], dtype=np.int32),
        threshold=np.array([0.5, 0, 0]),
        left=np.array([1, 1, 2], dtype=np.int32),
        right=np.array([2, 1, 2], dtype=np.int32),
        missing_left=np.array([True, False, False]),
        value=np.array([0, -1.0, 2.0]),
        roots=np.array([0], dtype=np.int32),
        bias=np.array([0.25]),
    )


def test_a_stump_by_hand() -> None:
    features = np.array([[9, 0.5], [9, 0.6], [9, np.nan]], dtype=np.float32)
    expected = 1 / (1 + np.exp(-np.array([-0.75, 2.25, -0.75])))
    np.testing.assert_allclose(stump().probabilities(features), expected, atol=1e-6)
    assert stump().probabilities(features[:0]).shape == (0,)
    assert stump().used() == [1]


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_trees_say_what_scikit_learn_says(missing: float) -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(300, 5)).astype(np.float32)
    labels = features[:, 0] * features[:, 1] > 0
    features[rng.random(features.shape) < missing] = np.nan
    booster = HistGradientBoostingClassifier(random_state=0, **GROWING).fit(features, labels)
    probabilities = plain_trees(booster).probabilities(features)
    expected = booster.predict_proba(features)[:, 1]
    np.testing.assert_allclose(probabilities, expected, atol=1e-6)
    trees = plain_trees(booster)
    assert build_trees(trees.arrays(), num_features=5).roots.size == GROWING["max_iter"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"left": np.array([0, 1, 2], dtype=np.int32)}, "one child"),
        ({"left": np.array([1, 0, 2], dtype=np.int32)}, "not after"),
        ({"right": np.array([3, 1, 2], dtype=np.int32)}, "not after"),
        ({"feature": np.array([2, 0, 0], dtype=np.int32)}, "beyond 2"),
        ({"roots": np.array([3], dtype=np.int32)}, "root"),
        ({"value": np.array([0, np.nan, 2])}, "finite"),
        ({"threshold": np.array([np.nan, 0, 0])}, "finite"),
        ({"bias": np.array([0.25, 1])}, "bias"),
        ({"value": np.array([0, 1, 2])}, "value is int64"),
        ({"threshold": np.array([0.5])}, "threshold is"),
    ],
)
def test_arrays_that_are_no_trees(change: dict[str, Any], said: str) -> None:
    with pytest.raises(BadTrees, match=said):
        build_trees(replace(stump(), **change).arrays(), num_features=2)


def test_arrays_of_something_else() -> None:
    with pytest.raises(BadTrees, match="its arrays are weight"):
        build_trees({"weight": np.zeros(3)}, num_features=2)
