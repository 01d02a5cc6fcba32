from types import SimpleNamespace
from typing import cast

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from vlmill.schemas.ids import key64
from vlmill.train.loading.pairing import StagePairs, choose_pairing
from vlmill.train.loading.random import Uniforms, mix
from vlmill.train.loading.store.table import SampleTable

Ids = npt.NDArray[np.int64]


class Captions:
    """Row ``i`` is caption ``texts[i]`` of image ``images[i]``."""

    def __init__(self, pairs: list[tuple[int, int]], hard: dict[int, list[int]] | None = None):
        self.pairs, self.hard = pairs, hard or {}

    def matches(self, text_row: int, image_row: int) -> bool:
        return (self.pairs[text_row][0], self.pairs[image_row][1]) in self.pairs

    def hard_negatives(self, row: int) -> Ids:
        return np.array(self.hard.get(row, []), dtype=np.int64)


def draw(
    table: Captions, row: int, count: int, hard_share: float = 0.0
) -> list[tuple[int, int, bool]]:
    rows = np.arange(len(table.pairs))
    return [
        choose_pairing(row, rows, table, Uniforms(i), negative_share=0.5, hard_share=hard_share)
        for i in range(count)
    ]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=8))
def test_a_negative_is_never_a_caption_of_the_image(pairs: list[tuple[int, int]]) -> None:
    table = Captions(pairs)
    for text_row, image_row, matching in draw(table, 0, 10):
        assert table.matches(text_row, image_row) == matching
        assert 0 in (text_row, image_row)


def test_half_are_negative_and_either_side_is_replaced() -> None:
    table = Captions([(i, i) for i in range(50)])
    drawn = draw(table, 3, 10_000)
    negative = [(t, i) for t, i, matching in drawn if not matching]
    assert abs(len(negative) - 5000) < 3 * 50
    assert abs(sum(t != 3 for t, _ in negative) - len(negative) / 2) < 3 * 36
    assert len({t for t, _ in negative}) == 50  # every text is drawn


def test_hard_negatives_have_their_share() -> None:
    table = Captions([(i, i) for i in range(1000)], hard={3: [7, 8]})
    negative = [(t, i) for t, i, matching in draw(table, 3, 10_000, 0.2) if not matching]
    hard = sum({t, i} & {7, 8} != set() for t, i in negative)
    share = 0.2 + 0.8 * 2 / 1000
    spread = np.sqrt(len(negative) * share * (1 - share))
    assert abs(hard - share * len(negative)) < 3 * spread


def test_a_hard_negative_that_matches_after_all_is_not_taken() -> None:
    table = Captions([(0, 0), (0, 1), (1, 2)], hard={0: [1]})  # images 0 and 1: the same text
    assert {(t, i) for t, i, matching in draw(table, 0, 200, 1.0) if not matching} == {
        (2, 0),
        (0, 2),
    }


def test_without_any_negative_pairs_stay() -> None:
    table = Captions([(0, 0), (1, 0)])
    assert set(draw(table, 0, 50)) == {(0, 0, True)}


def test_keys_are_the_same_everywhere() -> None:
    assert key64("a dog") == 14364831733120369406
    assert key64("\ud800") != key64("")


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_mixing_depends_on_which_is_which(text: int, image: int) -> None:
    assert (mix(text, image) == mix(image, text)) == (text == image)


def test_hard_negatives_that_the_stage_does_not_visit_are_left_out() -> None:
    table = SimpleNamespace(
        matches=lambda text, image: text == image, hard_negatives=lambda row: np.array([3, 1, 2])
    )
    visited = np.array([True, True, False, True])
    pairs = StagePairs(table=cast(SampleTable, table), visited=visited)
    assert pairs.hard_negatives(0).tolist() == [3, 1]
    assert pairs.matches(2, 2) and not pairs.matches(1, 2)
