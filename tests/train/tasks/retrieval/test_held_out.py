"""Retrieval's validation by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vlmill.train.tasks.retrieval.base import (
    measure_recalls,
    one_row_each,
    sample_alignment_scores,
    scores_of_candidates,
    scores_of_vectors,
    select_image_rows,
)
from vlmill.train.tasks.task import Prediction


class Table:
    """Captions 0 to 5 of images whose keys are in another order than the captions."""

    image_keys = np.array([30, 30, 10, 20, 10, 10], dtype=np.uint64)


def predicted(values: dict[int, list[float]]) -> list[Prediction]:
    return [Prediction(row=row, value=np.array(value)) for row, value in values.items()]


def test_images_are_held_out_with_all_of_their_captions() -> None:
    table: Any = Table()
    rows = np.array([0, 1, 2, 3, 4, 5])
    assert select_image_rows(table, rows, 6) == [0, 1, 2, 3, 4, 5]
    assert select_image_rows(table, rows, 5) == [2, 3, 4, 5]
    assert select_image_rows(table, rows, 3) == [2, 4, 5]
    assert select_image_rows(table, rows, 1) == [2, 4, 5]  # of one image at least
    assert one_row_each(table, rows).tolist() == [2, 3, 0]


def test_a_matrix_is_made_of_texts_that_met_their_own_image_first() -> None:
    table: Any = Table()
    given = {0: [0.9, 0.1, 0.2], 2: [0.8, 0.3, 0.4], 3: [0.7, 0.5, 0.6]}
    scores, owners = scores_of_candidates(table, predicted(given))
    assert owners.tolist() == [2, 0, 1]
    assert scores.T.tolist() == [[0.1, 0.2, 0.9], [0.8, 0.3, 0.4], [0.5, 0.7, 0.6]]


def test_vectors_give_the_same_matrix_as_their_products() -> None:
    table: Any = Table()
    vectors = {0: [[1.0, 0], [0, 2.0]], 1: [[0, 1.0], [0, 2.0]], 3: [[3.0, 1.0], [1.0, 0]]}
    pairs = [Prediction(row=row, value=np.array(value)) for row, value in vectors.items()]
    scores, owners = scores_of_vectors(table, pairs)
    assert owners.tolist() == [1, 1, 0]  # images 20, 30
    assert scores.tolist() == [[1.0, 0, 3.0], [0, 2.0, 2.0]]


def test_recalls_by_hand() -> None:
    scores = np.array([[0.9, 0.1, 0.3], [0.2, 0.8, 0.7]])  # two images, three texts
    numbers = measure_recalls(scores, np.array([0, 1, 0]), alignment=True)
    assert numbers["image_retrieval/r1"] == pytest.approx(2 / 3)
    assert numbers["text_retrieval/r1"] == 1 and numbers["text_retrieval/r5"] == 1
    assert numbers["mean_recall"] == pytest.approx((2 / 3 + 5) / 6)
    # The third text scores the other image higher: wrong whatever the captions are.
    assert numbers["alignment4/accuracy"] == pytest.approx(2 / 3)


def test_four_are_the_pair_two_captions_and_a_image() -> None:
    scores = np.arange(12.0).reshape(3, 4)  # image p, text t: 4 p + t
    owners = np.array([0, 1, 2, 2])
    for text, (own, one, other, image) in enumerate(
        sample_alignment_scores(scores, owners).tolist()
    ):
        owner = int(owners[text])
        assert own == 4 * owner + text
        for caption in (one, other):
            assert caption // 4 == owner and owners[int(caption) % 4] != owner
        assert image % 4 == text and image // 4 != owner
