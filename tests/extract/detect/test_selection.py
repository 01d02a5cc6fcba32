"""Which proposals become regions."""

from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from tests.extract.detect.one_image import Image, Regions, select_one

from vlmill.extract.config import SELECTIONS, InputLimits, Selection, Storage
from vlmill.extract.detect.selection import Frames, SelectedRegions, choose_regions, select
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
    assert chosen_places(CONFIDENCE, rule) == expected


def chosen_places(confidence: torch.Tensor, rule: Selection) -> list[int]:
    """The places that count, of one image."""
    ids, taken = choose_regions(confidence[None], rule)
    places: list[int] = ids[taken].tolist()
    return places


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
    chosen = chosen_places(torch.tensor(scores), rule)
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
        "vinvl": (10, 100, 0.2),
        "pythia": (0, 100, 0.0),
        "coco": (0, 100, 0.05),
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
        (lambda: Storage(images_per_shard=0), "--images-per-shard"),
    ],
)
def test_settings_that_make_no_sense_name_the_flag(make: Callable[[], object], flag: str) -> None:
    with pytest.raises(ValueError, match=flag):
        make()


# Four proposals of 40 x 40, of which the first two overlap by 1/3, and two classes.
BOXES = torch.tensor([[0.0, 0, 40, 40], [20, 0, 60, 40], [100, 0, 140, 40], [150, 50, 190, 90]])
PROBS = torch.tensor([[0.6, 0.3], [0.5, 0.2], [0.1, 0.4], [0.05, 0.04]])


def frames_for(
    height: float,
    width: float,
    factors: Sequence[float],
    sizes: Sequence[tuple[int, int]],
    offset: float,
) -> Frames:
    """Images of ``sizes`` (height and width), resized by ``factors`` to height x width."""
    network = torch.tensor([[width, height] * 2] * len(factors))
    own = torch.tensor([[w, h] * 2 for h, w in sizes], dtype=torch.float32)
    scale = torch.tensor(factors)[:, None].expand(-1, 4)
    return Frames(
        min_sides=torch.zeros(len(factors)),
        factors=scale,
        network_limits=network - offset,
        scaled_limits=network / scale - offset,
        image_limits=own - offset,
        content_limits=network - offset,
        given_factors=scale,
    )


FRAMES = frames_for(100.0, 200.0, [2.0], [(50, 100)], 0.0)


def chosen(rule: Selection, probs: torch.Tensor = PROBS, **spec: object) -> Regions:
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
    return taken_of(select(detections(BOXES[: len(probs)], everything), config, FRAMES, rule))


def detections(boxes: torch.Tensor, probs: torch.Tensor) -> Detections:
    """Of one image with no free place."""
    taken = torch.ones(1, len(boxes), dtype=torch.bool)
    return Detections(
        boxes=boxes[None], box_mask=taken, features=boxes[None], class_probs=probs[None]
    )


def taken_of(chosen: SelectedRegions) -> Regions:
    """The regions of a batch's only image."""
    taken = chosen.box_mask[0]
    return Regions(
        ids=chosen.ids[0, taken],
        boxes=chosen.boxes[0, taken],
        class_ids=chosen.class_ids[0, taken],
        class_scores=chosen.class_scores[0, taken],
        nms_threshold=round(chosen.nms_threshold.item(), 6),
    )


@pytest.mark.parametrize("background", ["first", "last"])
def test_best_class_by_hand(background: str) -> None:
    """The second proposal is suppressed at 0.3; enough are left at 0.4 if four are asked for."""
    three = Selection(threshold=0.0, min_boxes=3, max_boxes=4)
    found = chosen(three, selection="best-class", background=background)
    assert found.ids.tolist() == [0, 2, 3]
    assert found.class_ids.tolist() == [0, 1, 0]
    assert found.class_scores.tolist() == pytest.approx([0.6, 0.4, 0.05])
    assert found.nms_threshold == 0.3
    assert found.boxes[1].tolist() == [50, 0, 70, 20]  # in the image's own pixels
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
    """A box that is nothing in the image, as Detectron2's postprocessing drops it."""
    config = DetectorConfig(box_offset=0.0, background="last", selection="best-class")
    boxes = torch.tensor([[10.0, 10, 10, 30], [0, 0, 20, 20]])
    probs = torch.tensor([[0.9, 0.1], [0.8, 0.2]])
    rule = Selection(threshold=0.0, min_boxes=0, max_boxes=5)
    kept = taken_of(select(detections(boxes, probs), config, FRAMES, rule))
    assert kept.ids.tolist() == [1] and kept.boxes.tolist() == [[0, 0, 10, 10]]


@given(
    seed=st.integers(0, 2**16),
    selection=st.sampled_from(["class-confidence", "best-class", "class-pairs"]),
    refined=st.booleans(),
    background=st.sampled_from(["first", "last"]),
    offset=st.sampled_from([0.0, 1.0]),
    inclusive=st.booleans(),
    specific=st.booleans(),
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=3),
    bounds=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    threshold=st.sampled_from([0.0, 0.2, 0.5]),
    thresholds=st.sampled_from([(0.3,), (0.3, 0.5, 0.9)]),
)
@settings(max_examples=150, deadline=None)
def test_every_rule_chooses_what_it_does_for_one_image(
    seed: int,
    selection: Any,
    refined: bool,
    background: Any,
    offset: float,
    inclusive: bool,
    specific: bool,
    counts: list[int],
    bounds: tuple[int, int],
    threshold: float,
    thresholds: tuple[float, ...],
) -> None:
    """Against the rules for one image, with rubbish in the places that are not taken."""
    spec = DetectorConfig(
        selection=selection,
        written_boxes="refined" if refined else "proposals",
        background=background,
        box_offset=offset,
        nms_inclusive=inclusive,
        class_specific_boxes=specific,
        class_nms_thresholds=thresholds,
        num_classes=3,
    )
    rule = Selection(
        threshold=threshold, min_boxes=bounds[0], max_boxes=max(1, bounds[0] + bounds[1])
    )
    rng = torch.Generator().manual_seed(seed)
    places = max(counts) + 1
    low = torch.rand(len(counts), places, 2, generator=rng) * torch.tensor([70.0, 50.0])
    boxes = torch.cat((low, low + torch.rand(low.shape, generator=rng) * 40), dim=2)
    probs = (torch.randn(len(counts), places, 4, generator=rng) * 2).softmax(dim=2)
    deltas = torch.randn(len(counts), places, 4 * spec.num_regressed, generator=rng) * 0.2
    factors = [1 / (1 + number / 3) for number in range(len(counts))]
    batch = Detections(
        boxes=boxes,
        box_mask=torch.arange(places) < torch.tensor(counts)[:, None],
        features=boxes,
        class_probs=probs,
        box_deltas=deltas,
    )
    sizes = [(round(80 / factor), round(100 / factor)) for factor in factors]
    chosen = select(batch, spec, frames_for(80, 100, factors, sizes, offset), rule)
    for number, count in enumerate(counts):
        image = Image(
            height=80.0,
            width=100.0,
            own_height=float(sizes[number][0]),
            own_width=float(sizes[number][1]),
            factor=factors[number],
            boxes=boxes[number, :count],
            class_probs=probs[number, :count],
            box_deltas=deltas[number, :count],
        )
        expected = select_one(image, spec, rule)
        taken = chosen.box_mask[number]
        assert chosen.ids[number][taken].tolist() == expected.ids.tolist()
        assert chosen.class_ids[number][taken].tolist() == expected.class_ids.tolist()
        assert chosen.nms_threshold[number].item() == pytest.approx(expected.nms_threshold)
        torch.testing.assert_close(chosen.class_scores[number][taken], expected.class_scores)
        torch.testing.assert_close(
            chosen.boxes[number][taken], expected.boxes, rtol=1e-5, atol=1e-4
        )
