"""Checks of the arrays of one record."""

import numpy as np
import pytest

from vlmill.extract.formats.records import (
    PROBABILITIES,
    PROBABILITY_TOLERANCE,
    BadRecord,
    check_probabilities,
    reshape_payload,
)
from vlmill.schemas.rejects import Reason


@pytest.mark.parametrize("name", PROBABILITIES)
@pytest.mark.parametrize("number", [0.0, -0.0, 1e-45, 1.0, 1 + PROBABILITY_TOLERANCE])
def test_numbers_from_0_to_1_are_probabilities(name: str, number: float) -> None:
    check_probabilities(name, np.array([[0.5, number]], np.float32))
    check_probabilities(name, np.empty((0, 2), np.float32))


@pytest.mark.parametrize("name", PROBABILITIES)
@pytest.mark.parametrize("number", [-1e-6, 1.001, -3.0, 1e30])
def test_other_numbers_are_no_probabilities(name: str, number: float) -> None:
    with pytest.raises(BadRecord, match=f"{name} has a number outside 0..1") as caught:
        check_probabilities(name, np.array([0.5, number], np.float32))
    assert caught.value.reason is Reason.BAD_RECORD


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_distributions_are_finite_and_scores_are_checked_when_they_are_stored(
    number: float,
) -> None:
    array = np.array([0.5, number], np.float32)
    with pytest.raises(BadRecord) as caught:
        check_probabilities("cls_prob", array)
    assert caught.value.reason is Reason.NOT_FINITE
    check_probabilities("objects_conf", array)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("features", (3,), (3, 1)),  # of width 1
        ("features", (3, 1), (3, 1)),
        ("features", (5, 3), (3, 5)),
        ("features", (3, 5, 1, 1), (3, 5)),
        ("boxes", (12,), (3, 4)),
        ("objects_conf", (3, 1), (3,)),
    ],
)
def test_arrays_get_their_sides(
    name: str, shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    numbers = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    found = reshape_payload(name, numbers, 3)
    assert found.shape == expected
    if shape == (5, 3):
        assert (found == numbers.T).all()
    else:
        assert (found.reshape(-1) == numbers.reshape(-1)).all()
