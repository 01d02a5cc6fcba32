"""Applies gradient-boosted trees as plain arrays, with numpy only and without running any code.

scikit-learn grows them (:mod:`~vlmill.pipelines.filters.fitting`). M nodes of all trees, T trees, N
rows of F features; a leaf is its own child, so a row stays at its leaf.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

ROWS_AT_ONCE = 2_048  # N x T node numbers fit in the cache
MOST_NODES = 4_000_000
DEEPEST = 64

Features = npt.NDArray[np.float32]


class BadTrees(ValueError):
    """Raised for arrays that are not trees."""


@dataclass(frozen=True, kw_only=True)
class Trees:
    """Holds a sum of T regression trees; its logistic function is a probability.

    A row moves to ``left`` if its ``feature`` is at most ``threshold``, or is NaN and
    ``missing_left`` is true. Arrays are int32, float64 or bool [M], except ``roots`` int32 [T] and
    ``bias`` float64 [1].
    """

    feature: npt.NDArray[np.int32]
    threshold: npt.NDArray[np.float64]
    left: npt.NDArray[np.int32]
    right: npt.NDArray[np.int32]
    missing_left: npt.NDArray[np.bool_]
    value: npt.NDArray[np.float64]
    roots: npt.NDArray[np.int32]
    bias: npt.NDArray[np.float64]

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Returns the arrays by their names."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def used(self) -> list[int]:
        """Returns the indices of features that nodes use, in order."""
        return sorted(set(self.feature[self.left != np.arange(len(self.left))].tolist()))

    def probabilities(self, features: Features) -> Features:
        """Returns float32 [N] in 0..1 for features [N, F], rounded to 6 digits.

        Rounding gives the same order of rows on platforms whose exp differs in the last bit.
        """
        parts = [
            self._sums(features[start : start + ROWS_AT_ONCE])
            for start in range(0, len(features), ROWS_AT_ONCE)
        ]
        sums = np.concatenate(parts) if parts else np.zeros(0)
        logistic = 1 / (1 + np.exp(-np.clip(sums, -50, 50)))
        return np.round(logistic, 6).astype(np.float32)

    def _sums(self, features: Features) -> npt.NDArray[np.float64]:
        nodes = np.repeat(self.roots[None, :], len(features), axis=0)
        for _ in range(DEEPEST):
            values = np.take_along_axis(features, self.feature[nodes], axis=1)
            go_left = values <= self.threshold[nodes]
            go_left |= np.isnan(values) & self.missing_left[nodes]
            after = np.where(go_left, self.left[nodes], self.right[nodes])
            if np.array_equal(after, nodes):
                break
            nodes = after
        sums: npt.NDArray[np.float64] = self.value[nodes].sum(axis=1) + self.bias[0]
        return sums


def build_trees(arrays: Mapping[str, npt.NDArray[Any]], *, num_features: int) -> Trees:
    """Builds trees from a file's arrays. Raises BadTrees for invalid trees over ``num_features``.

    Children come after their node, so every path ends.
    """
    expected = {field.name for field in fields(Trees)}
    if arrays.keys() != expected:
        raise BadTrees(f"its arrays are {', '.join(sorted(arrays))[:200]}")
    trees = Trees(**arrays)
    count = len(trees.feature)
    if not 0 < count <= MOST_NODES:
        raise BadTrees(f"{count} nodes")
    for name, array in arrays.items():
        shape = {"roots": (len(trees.roots),), "bias": (1,)}.get(name, (count,))
        kind = "b" if name == "missing_left" else "f" if name in FLOATS else "i"
        if array.shape != shape or array.dtype.kind != kind:
            raise BadTrees(f"{name} is {array.dtype}{list(array.shape)}")
    node_indices = np.arange(count)
    for child in (trees.left, trees.right):
        if (child < node_indices).any() or (child >= count).any():
            raise BadTrees("a node's child is not after it")
    if ((trees.left == node_indices) != (trees.right == node_indices)).any():
        raise BadTrees("a node has one child")
    if (trees.feature < 0).any() or (trees.feature >= num_features).any():
        raise BadTrees(f"a node asks for a feature beyond {num_features}")
    if (trees.roots < 0).any() or (trees.roots >= count).any():
        raise BadTrees("a root is not a node")
    finite = np.isfinite(trees.value).all() and np.isfinite(trees.bias).all()
    if not finite or np.isnan(trees.threshold).any():
        raise BadTrees("a number is not finite")
    return trees


FLOATS = ("threshold", "value", "bias")
