"""Overlaps and the accuracy of referring expressions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from vlmill.schemas.errors import InputError
from vlmill.train.tasks.refcoco.metrics import RULES, Grounding, choose, iou, refcoco_metrics

CORNER, SIDE = st.integers(-20, 20), st.integers(0, 30)
BOX = st.builds(
    lambda x, y, w, h: np.array([x, y, x + w, y + h], float), CORNER, CORNER, SIDE, SIDE
)


@settings(max_examples=50, deadline=None)
@given(BOX, BOX, CORNER)
def test_overlap_is_symmetric_and_moves_with_the_boxes(
    a: NDArray[np.float64], b: NDArray[np.float64], by: int
) -> None:
    overlap = iou(a, b[None])[0]
    assert 0 <= overlap <= 1
    assert iou(b, a[None])[0] == overlap
    assert iou(a + by, b[None] + by)[0] == pytest.approx(overlap)
    area = (a[2] - a[0]) * (a[3] - a[1])
    assert iou(a, a[None])[0] == (1 if area else 0)


@pytest.mark.parametrize(
    ("rule", "overlap", "right"),
    [
        # Two boxes of 20 x 20 and one half of them: 200 of 400, and 21 x 11 of 21 x 21.
        ("exact", 0.5, True),
        ("released", 231 / 441, True),
        ("vlbert", 231 / 441, True),
        ("mattnet", 0.5, True),
    ],
)
def test_rules_by_hand(rule: str, overlap: float, right: bool) -> None:
    whole, half = np.array([0.0, 0, 20, 20]), np.array([[0.0, 0, 20, 10]])
    ours = iou(whole, half, RULES[rule])
    assert ours[0] == pytest.approx(overlap)
    assert RULES[rule].is_right(ours)[0] == right


def test_at_one_half_the_released_rule_is_strict() -> None:
    half = np.array([0.5])
    assert [bool(RULES[name].is_right(half)[0]) for name in RULES] == [True, False, True, True]


def test_slivers_and_touching_boxes() -> None:
    box, touching, sliver = np.array([0.0, 0, 9, 9]), [9, 0, 19, 9], [8, 0, 18, 9]
    boxes = np.array([touching, sliver], float)
    assert (iou(box, boxes) > 0).tolist() == [False, True]
    assert (iou(box, boxes, RULES["released"]) > 0).tolist() == [True, True]
    assert (iou(box, boxes, RULES["mattnet"]) > 0).tolist() == [False, False]


def grounding(scores: list[float], reference_index: int | None = None) -> Grounding:
    boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 9], [50, 50, 60, 60]], float)[: len(scores)]
    return Grounding(
        reference=np.array([0.0, 0, 10, 10]),
        candidates=boxes,
        scores=np.array(scores),
        reference_index=reference_index,
    )


def test_the_first_of_equal_scores_is_chosen() -> None:
    choice = choose(grounding([0.0, 2.0, 2.0], reference_index=0))
    assert (choice.chosen, choice.right, choice.reachable, choice.identical) == (
        1,
        True,
        True,
        False,
    )


def test_figures_and_images_without_a_candidate() -> None:
    groundings = {
        "a": grounding([1.0, 0.0, 0.0]),
        "b": grounding([0.0, 0.0, 1.0]),
        "c": grounding([]),
    }
    figures = refcoco_metrics(groundings, "refcoco+/val")
    assert figures["refcoco+/val/accuracy"] == pytest.approx(1 / 3)
    assert figures["refcoco+/val/upper_bound"] == pytest.approx(2 / 3)
    assert figures["refcoco+/val/accuracy_n"] == 3
    assert not any("identity" in name for name in figures)
    annotated = {"a": grounding([1.0, 0.0], 0), "b": grounding([0.0, 1.0], 0)}
    figures = refcoco_metrics(annotated, "refcoco+/val")
    assert figures["refcoco+/val/accuracy"] == 1
    assert figures["refcoco+/val/accuracy_identity"] == 0.5


def test_scores_that_mean_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="x: a with NaN"):
        refcoco_metrics({"a": grounding([np.nan, 0.0])}, "x")
    lacking = Grounding(reference=np.zeros(4), candidates=np.zeros((2, 4)), scores=np.zeros(1))
    with pytest.raises(InputError, match="a has 2 candidates"):
        refcoco_metrics({"a": lacking}, "x")
