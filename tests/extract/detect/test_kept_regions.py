"""The selections of VinVL and of vqa-maskrcnn, against their code's loops in a few lines."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.extract.detect.test_selection import frames_for, taken_of
from torch import Tensor
from torchvision.ops import nms

from vlmill.extract.config import Selection
from vlmill.extract.detect.selection import select
from vlmill.models.detector.config import DetectorConfig, vinvl, vinvl_fast, vqa_maskrcnn
from vlmill.models.detector.faster_rcnn import Detections

CLASSES, REGIONS, FACTOR = 4, 9, 2.0
FRAMES = frames_for(100.0, 140.0, [FACTOR], [(50, 70)], 1.0)
SIZES: dict[str, Any] = {"num_classes": CLASSES, "num_attributes": 0}


def drawn(seed: int, free: int = 2) -> Detections:
    """Overlapping proposals of one image, the last ``free`` places with rubbish in them."""
    generator = torch.Generator().manual_seed(seed)
    corners = 60 * torch.rand(REGIONS, 2, generator=generator)
    sides = 20 + 30 * torch.rand(REGIONS, 2, generator=generator)
    probs = (3 * torch.randn(REGIONS, CLASSES + 1, generator=generator)).softmax(dim=1)
    deltas = torch.randn(REGIONS, 4 * (CLASSES + 1), generator=generator)
    mask = torch.arange(REGIONS) < REGIONS - free
    return Detections(
        boxes=torch.cat((corners, corners + sides), dim=1)[None],
        box_mask=mask[None],
        features=corners[None],
        class_probs=probs[None],
        box_deltas=deltas[None],
    )


def class_boxes(found: Detections, spec: DetectorConfig) -> Tensor:
    """Boxes [R, K, 4] of the foreground classes: proposals, or decoded as the code does."""
    boxes = found.boxes[0]
    if spec.written_boxes == "proposals":
        return boxes[:, None].expand(-1, CLASSES, 4)
    assert found.box_deltas is not None
    deltas = found.box_deltas[0].view(REGIONS, -1, 4)[:, 1:] / torch.tensor([10.0, 10, 5, 5])
    sides = boxes[:, 2:] - boxes[:, :2] + 1
    centres = (boxes[:, :2] + 0.5 * sides)[:, None] + deltas[..., :2] * sides[:, None]
    half = 0.5 * deltas[..., 2:].exp() * sides[:, None]
    decoded = torch.cat((centres - half, centres + half - 1), dim=2)
    return decoded.clamp(min=0).minimum(torch.tensor([139.0, 99.0, 139.0, 99.0]))


def peter(found: Detections, spec: DetectorConfig, rule: Selection) -> list[tuple[int, int]]:
    """Regions and labels by ``filter_results_peter``."""
    taken = int(found.box_mask.sum())
    probs, boxes = found.class_probs[0, :taken, 1:], class_boxes(found, spec)[:taken]
    kept = torch.zeros_like(probs)
    for c in range(CLASSES):
        rows = nms(boxes[:, c].contiguous(), probs[:, c].contiguous(), 0.3)
        kept[rows, c] = probs[rows, c]
    values, labels = kept.max(dim=1)
    rows = torch.nonzero(values)[:, 0]
    above = int((values[rows] >= rule.threshold).sum())
    count = min(max(above, rule.min_boxes), rule.max_boxes)
    best = rows[values[rows].sort(descending=True).indices][:count]
    return [(int(row), int(labels[row])) for row in best]


@given(
    seed=st.integers(0, 2**16),
    refined=st.booleans(),
    threshold=st.sampled_from([0.0, 0.3, 0.9]),
    bounds=st.tuples(st.integers(0, 6), st.integers(1, 6)),
)
@settings(max_examples=60, deadline=None)
def test_vinvl_keeps_each_region_in_its_best_class(
    seed: int, refined: bool, threshold: float, bounds: tuple[int, int]
) -> None:
    rule = Selection(threshold=threshold, min_boxes=min(bounds), max_boxes=max(bounds))
    spec = vinvl(**SIZES, written_boxes="refined" if refined else "proposals")
    found = drawn(seed)
    chosen = select(found, spec, FRAMES, rule)
    regions = taken_of(chosen)
    expected = peter(found, spec, rule)
    assert list(zip(regions.ids.tolist(), regions.class_ids.tolist(), strict=True)) == expected
    boxes = torch.stack([class_boxes(found, spec)[pair] for pair in expected] or [torch.zeros(4)])
    if expected:
        torch.testing.assert_close(regions.boxes, boxes / FACTOR)
        assert chosen.network_boxes is not None
        torch.testing.assert_close(chosen.network_boxes[chosen.box_mask], boxes)


def test_boxes_are_scaled_and_not_clipped_again() -> None:
    """The last pixel of an enlarged image is more than its own last one."""
    spec, rule = vinvl(**SIZES), Selection(threshold=0.0, min_boxes=1, max_boxes=1)
    found = dataclasses.replace(drawn(0), boxes=torch.full((1, REGIONS, 4), 99.0))
    assert taken_of(select(found, spec, FRAMES, rule)).boxes.tolist() == [[49.5] * 4]


def legacy_overlap(one: Tensor, other: Tensor) -> float:
    """With the last pixels inside."""
    low, high = torch.maximum(one[:2], other[:2]), torch.minimum(one[2:], other[2:])
    shared = float((high - low + 1).clamp(min=0).prod())
    areas = [float((box[2:] - box[:2] + 1).prod()) for box in (one, other)]
    return shared / (sum(areas) - shared)


def pythia(found: Detections, rule: Selection, *, background: bool) -> list[tuple[int, int]]:
    """Regions and objects by MMF's loop; objects without background, or -1."""
    taken, first = int(found.box_mask.sum()), 0 if background else 1
    boxes, probs = found.boxes[0, :taken] / FACTOR, found.class_probs[0, :taken]
    confidence = torch.zeros(taken)
    for c in range(first, CLASSES + 1):
        kept: list[int] = []
        for row in probs[:, c].sort(descending=True).indices.tolist():
            if all(legacy_overlap(boxes[row], boxes[other]) <= 0.5 for other in kept):
                kept.append(row)
        for row in kept:
            if float(probs[row, c]) > max(float(confidence[row]), rule.threshold):
                confidence[row] = probs[row, c]
    rows = confidence.sort(descending=True).indices[: rule.max_boxes]
    return [
        (int(row), int(probs[row, first:].argmax()) - int(background))
        for row in rows
        if confidence[row] > 0
    ]


@given(
    seed=st.integers(0, 2**16),
    threshold=st.sampled_from([0.0, 0.3, 0.9]),
    most=st.integers(1, 8),
    background=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_pythia_counts_the_last_pixels(
    seed: int, threshold: float, most: int, background: bool
) -> None:
    rule = Selection(threshold=threshold, min_boxes=0, max_boxes=most)
    spec = vqa_maskrcnn(**SIZES, background_counts=background)
    found = drawn(seed)
    regions = taken_of(select(found, spec, FRAMES, rule))
    pairs = list(zip(regions.ids.tolist(), regions.class_ids.tolist(), strict=True))
    assert pairs == pythia(found, rule, background=background)
    torch.testing.assert_close(regions.boxes, found.boxes[0, regions.ids] / FACTOR)


def two(one: list[float], other: list[float]) -> Detections:
    """Two regions of the same class, the first one surer."""
    probs = torch.tensor([[0.1, 0.7, 0.1, 0.05, 0.05], [0.2, 0.6, 0.1, 0.05, 0.05]])
    boxes, mask = torch.tensor([[one, other]]), torch.ones(1, 2, dtype=torch.bool)
    return Detections(boxes=boxes, box_mask=mask, features=boxes, class_probs=probs[None])


@pytest.mark.parametrize(("spec", "ids"), [(vqa_maskrcnn(**SIZES), [0]), (vinvl(**SIZES), [0, 1])])
def test_an_overlap_between_the_two_ways_of_counting(spec: DetectorConfig, ids: list[int]) -> None:
    """Two boxes share a third of their area, and more of their pixels with the last ones."""
    found = two([0.0, 0, 4, 4], [2.0, 0, 6, 4])  # 0.33 of the area, 0.43 with the last pixels
    spec = dataclasses.replace(spec, class_nms_thresholds=(0.4,))
    rule = Selection(threshold=0.5, min_boxes=0, max_boxes=2)
    one = frames_for(100.0, 140.0, [1.0], [(100, 140)], 1.0)
    assert taken_of(select(found, spec, one, rule)).ids.tolist() == ids


def test_the_fast_selection_has_a_floor_and_one_suppression() -> None:
    spec = vinvl_fast(**SIZES)
    found = two([0.0, 0, 40, 40], [5.0, 0, 45, 40])
    every = Selection(threshold=0.0, min_boxes=2, max_boxes=2)
    assert taken_of(select(found, spec, FRAMES, every)).ids.tolist() == [0]
    apart = two([0.0, 0, 40, 40], [50.0, 0, 90, 40])
    assert taken_of(select(apart, spec, FRAMES, every)).ids.tolist() == [0, 1]
    floor = dataclasses.replace(spec, candidate_share=0.65)
    rule = Selection(threshold=1.0, min_boxes=2, max_boxes=2)
    assert taken_of(select(apart, floor, FRAMES, rule)).ids.tolist() == [0]
    turned = two([0.0, 0, 40, 40], [50.0, 0, 49, 40])  # x2 before x1
    assert taken_of(select(turned, spec, FRAMES, every)).ids.tolist() == [0]


def test_pairs_class_by_class() -> None:
    spec = vinvl(**SIZES, selection="class-pairs", pair_order="class", class_nms_thresholds=(0.5,))
    found = drawn(7)
    rule = Selection(threshold=0.05, min_boxes=0, max_boxes=6)
    regions = taken_of(select(found, spec, FRAMES, rule))
    best_first = taken_of(
        select(found, dataclasses.replace(spec, pair_order="score"), FRAMES, rule)
    )
    pairs = list(zip(regions.class_ids.tolist(), (-regions.class_scores).tolist(), strict=True))
    assert pairs == sorted(pairs) and len(pairs) == 6
    assert sorted(regions.class_scores.tolist()) == sorted(best_first.class_scores.tolist())


@pytest.mark.parametrize(("least", "halvings"), [(0, 0), (4, 1), (5, 2), (100, 10)])
def test_vinvl_halves_the_threshold_until_there_are_enough(least: int, halvings: int) -> None:
    spec = vinvl(**SIZES, selection="class-pairs", pair_order="class", class_nms_thresholds=(1.0,))
    probs = torch.tensor([[0.4, 0.3, 0.2, 0.06, 0.04], [0.3, 0.35, 0.34, 0.007, 0.003]])
    boxes = torch.tensor([[[0.0, 0, 9, 9], [50, 50, 60, 60]]])
    mask = torch.ones(1, 2, dtype=torch.bool)
    found = Detections(boxes=boxes, box_mask=mask, features=boxes, class_probs=probs[None])
    rule = Selection(threshold=0.21, min_boxes=least, max_boxes=100)
    scores = taken_of(select(found, spec, FRAMES, rule)).class_scores
    above = probs[:, 1:][probs[:, 1:] > 0.21 / 2**halvings]
    assert sorted(scores.tolist()) == sorted(above.tolist())


@pytest.mark.parametrize("spec", [vinvl(**SIZES), vqa_maskrcnn(**SIZES)])
def test_no_proposals(spec: DetectorConfig) -> None:
    found = drawn(1, free=REGIONS)
    rule = Selection(threshold=0.0, min_boxes=3, max_boxes=5)
    assert taken_of(select(found, spec, FRAMES, rule)).ids.shape == (0,)
