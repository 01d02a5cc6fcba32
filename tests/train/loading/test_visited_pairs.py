"""A share of the pairs: the same ones whatever stands beside them, smaller ones within larger."""

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmill.schemas.ids import key64
from vlmill.train.loading.arrays import Ids, Keys
from vlmill.train.loading.pairing import StagePairs
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.loading.visited_pairs import select_share

KEYS = np.array([key64(f"pair-{i}") for i in range(4000)], dtype=np.uint64)
ROWS = np.arange(len(KEYS))


def chosen_keys(keys: Keys, rows: Ids, share: float, most: int | None) -> set[int]:
    return set(keys[rows[select_share(keys, rows, share, most)]].tolist())


def test_a_share_is_about_its_size_and_all_is_all() -> None:
    assert select_share(KEYS, ROWS, 1.0, None).tolist() == ROWS.tolist()
    assert len(select_share(KEYS, ROWS, 0.25, None)) == pytest.approx(1000, abs=100)
    assert len(select_share(KEYS, ROWS, 1.0, 300)) == 300
    assert len(select_share(KEYS, ROWS, 1.0, 5000)) == 4000
    assert not len(select_share(KEYS, ROWS[:0], 0.5, 3))


@given(
    shares=st.tuples(st.floats(0.001, 1), st.floats(0.001, 1)),
    most=st.tuples(st.integers(1, 5000), st.integers(1, 5000)),
    order=st.permutations(range(40)),
)
def test_smaller_shares_lie_within_larger_ones_in_any_order_of_rows(
    shares: tuple[float, float], most: tuple[int, int], order: list[int]
) -> None:
    rows = ROWS.reshape(40, 100)[order].ravel()
    larger = chosen_keys(KEYS, ROWS, max(shares), max(most))
    for share, count in zip(shares, most, strict=True):
        places = select_share(KEYS, rows, share, count)
        assert places.tolist() == sorted(places.tolist())
        assert chosen_keys(KEYS, rows, share, count) == chosen_keys(KEYS, ROWS, share, count)
        assert chosen_keys(KEYS, rows, share, count) <= larger


def test_a_pair_is_chosen_whatever_other_pairs_there_are() -> None:
    alone = chosen_keys(KEYS, ROWS[:500], 0.3, None)
    assert alone == chosen_keys(KEYS, ROWS, 0.3, None) & set(KEYS[:500].tolist())


def test_hard_negatives_that_the_stage_does_not_visit_are_left_out() -> None:
    table = SimpleNamespace(
        matches=lambda text, image: text == image, hard_negatives=lambda row: np.array([3, 1, 2])
    )
    visited = np.array([True, True, False, True])
    pairs = StagePairs(table=cast(SampleTable, table), visited=visited)
    assert pairs.hard_negatives(0).tolist() == [3, 1]
    assert pairs.matches(2, 2) and not pairs.matches(1, 2)
