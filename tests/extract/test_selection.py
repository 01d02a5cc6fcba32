"""Which proposals become regions."""

from collections.abc import Callable

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from vlmill.extract.config import SELECTIONS, InputLimits, Selection, Storage
from vlmill.extract.selection import choose_regions

CONFIDENCE = torch.tensor([0.3, 0.9, 0.0, 0.5, 0.1])


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Selection(threshold=0.2, min_boxes=0, max_boxes=9), [0, 1, 3]),  # in proposal order
        (Selection(threshold=0.2, min_boxes=4, max_boxes=9), [1, 3, 0, 4]),  # filled up
        (Selection(threshold=0.2, min_boxes=0, max_boxes=2), [1, 3]),  # cut
        (Selection(threshold=0.95, min_boxes=0, max_boxes=9), []),
        (Selection(threshold=0.0, min_boxes=100, max_boxes=100), [1, 3, 0, 4, 2]),  # all there are
    ],
)
def test_selection_by_hand(rule: Selection, expected: list[int]) -> None:
    assert choose_regions(CONFIDENCE, rule).tolist() == expected


@given(
    scores=st.lists(st.sampled_from((0.0, 0.1, 0.2, 0.5, 1.0)), max_size=40),
    low=st.integers(0, 20),
    more=st.integers(0, 20),
    threshold=st.sampled_from((0.0, 0.15, 0.5)),
)
def test_bounds_hold_and_nothing_better_is_left(
    scores: list[float], low: int, more: int, threshold: float
) -> None:
    rule = Selection(threshold=threshold, min_boxes=low, max_boxes=max(1, low + more))
    chosen = choose_regions(torch.tensor(scores), rule).tolist()
    assert len(set(chosen)) == len(chosen)
    assert min(low, len(scores)) <= len(chosen) <= rule.max_boxes
    left = [scores[i] for i in range(len(scores)) if i not in chosen]
    if chosen and left:
        assert min(scores[i] for i in chosen) >= max(left)


def test_presets_are_the_papers() -> None:
    bounds = {name: (s.min_boxes, s.max_boxes, s.threshold) for name, s in SELECTIONS.items()}
    assert bounds == {
        "imagebert": (100, 100, 0.0),
        "vilbert": (10, 36, 0.2),
        "vl-bert": (10, 100, 0.5),
        "interbert": (10, 100, 0.2),
        "tao": (0, 16, 0.1),
    }


@pytest.mark.parametrize(
    ("make", "flag"),
    [
        (lambda: Selection(min_boxes=5, max_boxes=4), "--min-boxes"),
        (lambda: Selection(min_boxes=0, max_boxes=0), "--min-boxes"),
        (lambda: Selection(threshold=1.5), "--threshold"),
        (lambda: InputLimits(short_side=600, long_side=500), "--short-side"),
        (lambda: InputLimits(max_pixels=0), "--max-pixels"),
        (lambda: Storage(pictures_per_shard=0), "--pictures-per-shard"),
    ],
)
def test_settings_that_make_no_sense_name_the_flag(make: Callable[[], object], flag: str) -> None:
    with pytest.raises(ValueError, match=flag):
        make()
