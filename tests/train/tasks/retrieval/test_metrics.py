"""Invariants of retrieval metrics, and figures by hand; recordings: tests/parity."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from vlmill.train.tasks.retrieval.metrics import (
    alignment_accuracy,
    chance_text_recall,
    fold_metrics,
    image_to_text_ranks,
    mean_of_folds,
    recall_at_k,
    retrieval_metrics,
    text_to_image_ranks,
)


def test_each_direction_can_have_scores_of_its_own() -> None:
    owners = np.arange(3)
    metrics = retrieval_metrics(np.eye(3), owners, by_image=-np.eye(3))
    assert metrics["image_retrieval/r1"] == 1 and metrics["text_retrieval/r1"] == 0
    assert metrics["text_retrieval/median_rank"] == 3


@st.composite
def matrices(draw: st.DrawFn) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Small scores with many ties, and owners that leave no image without a text."""
    images = draw(st.integers(1, 6))
    extra = draw(st.lists(st.integers(0, images - 1), max_size=8))
    owners = np.array(draw(st.permutations([*range(images), *extra])))
    cell = st.integers(-3, 3)
    size = images * len(owners)
    values = draw(st.lists(cell, min_size=size, max_size=size))
    return np.array(values, np.float32).reshape(images, -1), owners


@settings(max_examples=30, deadline=None)
@given(matrices(), st.randoms(use_true_random=False))
def test_the_order_of_images_and_texts_changes_nothing(case: Any, random: Any) -> None:
    scores, owners = case
    rows = np.array(random.sample(range(len(scores)), len(scores)))
    columns = np.array(random.sample(range(len(owners)), len(owners)))
    place = np.argsort(rows)  # where each image went
    shuffled = retrieval_metrics(scores[rows][:, columns], place[owners[columns]])
    assert shuffled == pytest.approx(retrieval_metrics(scores, owners))


@settings(max_examples=30, deadline=None)
@given(matrices())
def test_increasing_maps_change_nothing(case: Any) -> None:
    scores, owners = case
    mapped = np.exp(scores.astype(np.float64)) * 3 - 7
    assert retrieval_metrics(mapped, owners) == retrieval_metrics(scores, owners)


@settings(max_examples=30, deadline=None)
@given(matrices())
def test_pessimistic_ranks_are_never_better_and_stay_among_the_candidates(case: Any) -> None:
    scores, owners = case
    for ranks, candidates in (
        (image_to_text_ranks(scores, owners), scores.shape[1]),
        (text_to_image_ranks(scores, owners), scores.shape[0]),
    ):
        assert (ranks.optimistic <= ranks.pessimistic).all()
        assert ((ranks.optimistic >= 0) & (ranks.pessimistic < candidates)).all()


@settings(max_examples=30, deadline=None)
@given(matrices())
def test_without_ties_both_ranks_are_the_place_in_the_sorted_order(case: Any) -> None:
    scores, owners = case
    distinct = scores.flatten().argsort(kind="stable").argsort().reshape(scores.shape) * 1.0
    ranks = text_to_image_ranks(distinct, owners)
    order = (-distinct).argsort(axis=0)
    places = [int((order[:, text] == owner).argmax()) for text, owner in enumerate(owners)]
    assert_array_equal(ranks.pessimistic, places)
    assert_array_equal(ranks.optimistic, places)


def test_a_constant_model_recalls_nothing() -> None:
    metrics = retrieval_metrics(np.zeros((4, 8), np.float32), np.arange(8) % 4)
    assert metrics["image_retrieval/r1"] == metrics["text_retrieval/r1"] == 0
    assert metrics["image_retrieval/r1_optimistic"] == 1
    assert metrics["image_retrieval/ties"] == 8
    assert metrics["text_retrieval/ties"] == 4


def test_chance_by_hand() -> None:
    owners = np.array([0, 0, 1, 2])
    # Image 0 owns 2 of 4 texts, the others 1: (1/2 + 1/4 + 1/4) / 3.
    assert chance_text_recall(owners, 1) == pytest.approx(1 / 3)
    # Two draws: 1 - (2/4)(1/3) = 5/6 for image 0, 1/2 for the others.
    assert chance_text_recall(owners, 2) == pytest.approx((5 / 6 + 1 / 2 + 1 / 2) / 3)
    assert chance_text_recall(owners, 10) == 1.0
    metrics = retrieval_metrics(np.eye(4, dtype=np.float32), np.arange(4))
    assert metrics["image_retrieval/r1_chance"] == 0.25
    assert metrics["image_retrieval/r5_chance"] == 1.0


def test_chance_is_the_mean_over_random_scores() -> None:
    generator = np.random.default_rng(0)
    owners = np.array([0, 1, 1, 2, 2, 2, 3, 3])
    drawn = [
        recall_at_k(image_to_text_ranks(generator.random((4, 8)), owners).pessimistic, 2)
        for _ in range(2000)
    ]
    assert np.mean(drawn) == pytest.approx(chance_text_recall(owners, 2), abs=0.02)


@pytest.mark.parametrize(
    ("scores", "owners", "message"),
    [
        (np.array([[np.nan]]), np.array([0]), "1 NaN or infinite"),
        (np.array([[np.inf, 0.0]]), np.array([0, 0]), "1 NaN or infinite"),
        (np.zeros((2, 2)), np.array([0, 0]), r"wrong: \[1\]"),
        (np.zeros((2, 2)), np.array([0, 2]), r"wrong: \[1, 2\]"),
        (np.zeros((2, 2)), np.array([0, 1, 1]), "shape"),
        (np.zeros(3), np.array([0, 1, 2]), "shape"),
    ],
)
def test_scores_that_mean_nothing_are_refused(scores: Any, owners: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        retrieval_metrics(scores, owners)


def test_a_tie_is_no_alignment() -> None:
    scores = np.array([[2.0, 1, 0, 0], [1, 1, 0, 0], [0, 1, 2, 3], [0, 0, 0, 0]])
    assert alignment_accuracy(scores) == 0.25
    for bad in (np.full((1, 4), np.nan), np.zeros((0, 4))):
        with pytest.raises(ValueError, match="expected finite"):
            alignment_accuracy(bad)


def test_recall_of_no_query_is_refused() -> None:
    with pytest.raises(ValueError, match="without queries"):
        recall_at_k(np.array([], np.int64), 1)


def test_folds_must_be_whole() -> None:
    with pytest.raises(ValueError, match="fold_images=3 does not divide the 4 images"):
        mean_of_folds(np.eye(4), np.arange(4), 3)


def test_folds_are_means_with_the_error_of_the_mean() -> None:
    """Two blocks of two images, one of which is right throughout and one half."""
    scores = np.array([[4.0, 0, 9, 0], [0, 4, 0, 0], [0, 9, 4, 0], [0, 0, 5, 0]])
    scores[2:, 2:] = [[4, 5], [0, 4]]
    folds = fold_metrics(scores, np.arange(4), 2)
    assert [fold["image_retrieval/r1"] for fold in folds] == [1.0, 0.5]
    mean = mean_of_folds(scores, np.arange(4), 2)
    assert mean["image_retrieval/r1"] == 0.75 and mean["image_retrieval/n"] == 4
    assert mean["image_retrieval/r1_stderr"] == pytest.approx(np.sqrt(0.25 / 2) / 2)
    assert mean["image_retrieval/mean_rank"] == pytest.approx((1 + 1.5) / 2)


def test_means_and_sum_of_recalls() -> None:
    metrics = retrieval_metrics(np.eye(6), np.arange(6), ks=(1, 5), by_image=-np.eye(6))
    assert metrics["image_retrieval/mean_recall"] == 1 and metrics["rsum"] == 2
    assert metrics["text_retrieval/mean_recall"] == 0 and metrics["mean_recall"] == 0.5
