"""What all metrics share, by hand."""

import numpy as np
import pytest

from vlmill.schemas.errors import InputError
from vlmill.train.tasks.scores import (
    by_id,
    percent,
    require_finite,
    require_same_ids,
    share,
    shares_by_group,
    standard_error,
)


@pytest.mark.parametrize(
    ("fraction", "decimals", "shown"),
    [
        (0.68125, 2, "68.13"),
        (0.55625, 2, "55.63"),
        (0.6805, 1, "68.1"),
        (0.68049999, 1, "68.0"),
        (0.1235, 1, "12.4"),
        (1.0, 1, "100.0"),
        (0.0, 2, "0.00"),
        (-0.0465, 1, "-4.7"),
    ],
)
def test_halves_are_rounded_away_from_zero(fraction: float, decimals: int, shown: str) -> None:
    assert percent(fraction, decimals) == shown


def test_an_id_twice_is_named() -> None:
    assert by_id([("a", 1), ("b", 2)], "FILE") == {"a": 1, "b": 2}
    with pytest.raises(InputError, match=r"^FILE: b, d more than once"):
        by_id([("a", 1), ("b", 2), ("b", 2), ("d", 1), ("d", 3)], "FILE")


def test_the_first_five_ids_at_fault_are_named() -> None:
    require_same_ids({1, 2}, {2, 1}, "FILE")
    with pytest.raises(InputError, match=r"FILE: 3, 4, 5, 6, 7 and 3 more missing; 20 not among"):
        require_same_ids({1, 2, 20}, set(range(1, 11)), "FILE")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite_are_refused(bad: float) -> None:
    require_finite({"a": np.zeros(2)}, "FILE")
    with pytest.raises(InputError, match="FILE: b with NaN or infinite scores"):
        require_finite({"a": np.zeros(2), "b": np.array([0.0, bad])}, "FILE")


def test_shares_by_hand() -> None:
    assert standard_error(0.5, 1000) == pytest.approx(0.0158114)
    assert standard_error(1.0, 7) == 0.0
    figures = share("x", [1.0, 0.0, 0.0, 1.0])
    assert figures == {"x": 0.5, "x_stderr": 0.25, "x_n": 4}
    groups = shares_by_group("x", {1: 1.0, 2: 0.0, 3: 0.5}, {1: "b", 2: "b", 3: None})
    assert groups == {
        "x/b": 0.5,
        "x/b_stderr": pytest.approx(standard_error(0.5, 2)),
        "x/b_n": 2,
    }


def test_a_share_of_nothing_is_undefined() -> None:
    figures = share("x", [])
    assert figures == {"x": None, "x_stderr": None, "x_n": 0}
