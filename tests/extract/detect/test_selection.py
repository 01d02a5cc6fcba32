"""Which proposals become regions."""

from collections.abc import Callable

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from vlmill.extract.config import SELECTIONS, InputLimits, Selection, Storage
from vlmill.extract.detect.selection import Chosen, Frame, choose_regions, select
from vlmill.models.detector.config import RISING_THRESHOLDS, DetectorConfig
from vlmill.models.detector.faster_rcnn import Detections

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


# Four proposals of 40 x 40, of which the first two overlap by 1/3, and two classes.
BOXES = torch.tensor([[0.0, 0, 40, 40], [20, 0, 60, 40], [100, 0, 140, 40], [150, 50, 190, 90]])
PROBS = torch.tensor([[0.6, 0.3], [0.5, 0.2], [0.1, 0.4], [0.05, 0.04]])
FRAME = Frame(height=100.0, width=200.0, own_height=50.0, own_width=100.0, factors=(2.0, 2.0))


def chosen(rule: Selection, probs: torch.Tensor = PROBS, **spec: object) -> Chosen:
    """With proposals as boxes, in the conventions of Detectron2."""
    conventions = {
        "box_offset": 0.0,
        "nms_inclusive": False,
        "background": "last",
        "written_boxes": "proposals",
        "class_nms_thresholds": RISING_THRESHOLDS,
    }
    config = DetectorConfig(**{**conventions, **spec})  # type: ignore[arg-type]
    background = 1 - probs.sum(dim=1, keepdim=True)
    everything = torch.cat((probs, background), dim=1)
    if config.background == "first":
        everything = everything.roll(1, dims=1)
    boxes = BOXES[: len(probs)]
    found = Detections(boxes=boxes, features=boxes, class_probs=everything)
    return select(found, config, FRAME, rule)


@pytest.mark.parametrize("background", ["first", "last"])
def test_best_class_by_hand(background: str) -> None:
    """The second proposal is suppressed at 0.3; enough are left at 0.4 if four are asked for."""
    three = Selection(threshold=0.0, min_boxes=3, max_boxes=4)
    found = chosen(three, selection="best-class", background=background)
    assert found.ids.tolist() == [0, 2, 3]
    assert found.class_ids.tolist() == [0, 1, 0]
    assert found.class_scores.tolist() == pytest.approx([0.6, 0.4, 0.05])
    assert found.nms_threshold == 0.3
    assert found.boxes[1].tolist() == [50, 0, 70, 20]  # in the picture's own pixels
    four = Selection(threshold=0.0, min_boxes=4, max_boxes=4)
    found = chosen(four, selection="best-class", background=background)
    assert found.ids.tolist() == [0, 1, 2, 3] and found.nms_threshold == 0.4


def test_best_class_above_a_threshold() -> None:
    above = Selection(threshold=0.3, min_boxes=0, max_boxes=16)
    assert chosen(above, selection="best-class").ids.tolist() == [0, 2]
    at_least = Selection(threshold=0.3, min_boxes=3, max_boxes=16)
    assert chosen(at_least, selection="best-class").ids.tolist() == [0, 2, 3]


def test_class_pairs_by_hand() -> None:
    """A proposal counts for each of its classes, and suppresses within them only."""
    rule = Selection(threshold=0.15, min_boxes=0, max_boxes=9)
    found = chosen(rule, selection="class-pairs", class_nms_thresholds=(0.3,))
    assert list(zip(found.ids.tolist(), found.class_ids.tolist(), strict=True)) == [
        (0, 0),
        (2, 1),
        (0, 1),
    ]
    raised = chosen(rule, selection="class-pairs", class_nms_thresholds=(0.3, 0.5))
    assert raised.ids.tolist() == [0, 1, 2, 0, 1] and raised.nms_threshold == 0.5
    few = Selection(threshold=0.55, min_boxes=2, max_boxes=9)
    filled = chosen(few, selection="class-pairs", class_nms_thresholds=(0.3,))
    assert filled.ids.tolist() == [0, 2]


@pytest.mark.parametrize("selection", ["class-confidence", "best-class", "class-pairs"])
def test_no_proposals_give_no_regions(selection: str) -> None:
    rule = Selection(threshold=0.0, min_boxes=3, max_boxes=4)
    found = chosen(rule, torch.zeros(0, 2), selection=selection)
    assert found.ids.shape == (0,) and found.boxes.shape == (0, 4)


def test_boxes_without_extent_are_dropped_with_their_rows() -> None:
    """A box that is nothing in the picture, as Detectron2's postprocessing drops it."""
    config = DetectorConfig(box_offset=0.0, background="last", selection="best-class")
    boxes = torch.tensor([[10.0, 10, 10, 30], [0, 0, 20, 20]])
    probs = torch.tensor([[0.9, 0.1], [0.8, 0.2]])
    found = Detections(boxes=boxes, features=boxes, class_probs=probs)
    kept = select(found, config, FRAME, Selection(threshold=0.0, min_boxes=0, max_boxes=5))
    assert kept.ids.tolist() == [1] and kept.boxes.tolist() == [[0, 0, 10, 10]]
