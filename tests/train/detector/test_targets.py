"""Matching and sampling by hand, with the traps of the published code."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vlmill.models.detector.boxes import decode_boxes
from vlmill.train.detector.settings import Matching, RoiRules, RpnRules
from vlmill.train.detector.targets import (
    Regions,
    attribute_targets,
    candidates,
    encode_boxes,
    mask_labels,
    match,
    match_anchors,
    match_regions,
    sample,
    sample_regions,
)

RULE = Matching(thresholds=(0.3, 0.7), labels=(0, -1, 1), batch=4, positives=0.5)
NOTHING = torch.zeros((0, 4))


def in_order(count: int) -> Tensor:
    """A draw that leaves the order as it is."""
    return torch.arange(count)


def test_labels_by_hand() -> None:
    overlaps = torch.tensor([[0.1, 0.3, 0.7, 0.5], [0.2, 0.6, 0.7, 0.1]])
    matches = match(overlaps, RULE)
    assert matches.labels.tolist() == [0, -1, 1, -1]
    assert matches.boxes.tolist() == [1, 1, 0, 0]  # the first among equals


def test_the_best_anchor_of_each_box_is_positive_and_keeps_its_own_box() -> None:
    overlaps = torch.tensor([[0.1, 0.2, 0.0], [0.0, 0.5, 0.1]])
    matches = match(overlaps, RULE, best_of_each=True)
    assert matches.labels.tolist() == [0, 1, 0]  # 0.2 is the best of the first box, too
    assert matches.boxes.tolist() == [0, 1, 1]


def test_a_box_that_overlaps_nothing_promotes_every_anchor() -> None:
    """The trap for which boxes without an area are left out before."""
    overlaps = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.9, 0.4]])
    assert match(overlaps, RULE, best_of_each=True).labels.tolist() == [1, 1, 1]


@pytest.mark.parametrize("first", [0, -1])
def test_without_boxes_everything_has_the_first_label(first: int) -> None:
    rule = dataclasses.replace(RULE, labels=(first, -1, 1))
    assert match(torch.zeros((0, 3)), rule).labels.tolist() == [first] * 3
    regions = match_regions(torch.rand(3, 4), NOTHING, RoiRules(matching=rule), 0.0)
    assert regions.labels.tolist() == [0] * 3


def test_negatives_fill_what_positives_leave() -> None:
    labels = torch.tensor([1, 0, 0, -1, 0, 0, 0])
    chosen = sample(labels, RULE, in_order)
    assert (chosen.positives.tolist(), chosen.negatives.tolist()) == ([0], [1, 2, 4])


@given(st.lists(st.sampled_from((-1, 0, 1)), max_size=30), st.integers(0, 2**31))
def test_a_sample_is_never_too_large_and_of_its_labels(labels: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    given_labels = torch.tensor(labels, dtype=torch.int64)
    chosen = sample(given_labels, RULE, lambda n: torch.randperm(n, generator=generator))
    assert len(chosen.indices) <= RULE.batch and len(chosen.positives) <= RULE.most_positives
    assert len(set(chosen.indices.tolist())) == len(chosen.indices)
    assert (given_labels[chosen.positives] == 1).all()
    assert (given_labels[chosen.negatives] == 0).all()


def test_anchors_over_the_border_are_ignored_or_are_nobodys_best() -> None:
    anchors = torch.tensor([[-10.0, 0, 10, 20], [0, 0, 20, 20], [30, 30, 50, 50]])
    boxes = torch.tensor([[-10.0, 0, 10, 20]])
    after = RpnRules(matching=RULE, border=0.0)
    before = dataclasses.replace(after, inside_first=True)
    assert match_anchors(anchors, boxes, (40, 40), after, 0.0).labels.tolist() == [-1, -1, -1]
    assert match_anchors(anchors, boxes, (40, 40), before, 0.0).labels.tolist() == [-1, 1, -1]
    used = dataclasses.replace(after, border=None)
    assert match_anchors(anchors, boxes, (40, 40), used, 0.0).labels.tolist() == [1, -1, 0]


def test_kept_labels_are_those_of_the_sample() -> None:
    overlaps = torch.tensor([[0.8, 0.9, 0.1, 0.1, 0.75]])
    matches = match(overlaps, RULE)
    chosen = sample(matches.labels, RULE, in_order)
    assert mask_labels(matches, chosen).tolist() == [1, 1, 0, 0, -1]


def test_true_boxes_are_candidates_after_the_proposals() -> None:
    rules = RoiRules(matching=dataclasses.replace(RULE, thresholds=(0.5,), labels=(0, 1)))
    truth = torch.tensor([[0.0, 0, 10, 10], [20, 20, 30, 30]])
    proposals = torch.tensor([[50.0, 50, 60, 60]])
    there = candidates(proposals, truth, rules)
    regions = sample_regions(
        there,
        match_regions(there, truth, rules, 0.0),
        torch.tensor([4, 2]),
        rules,
        background=9,
        draw=in_order,
    )
    assert regions.sources.tolist() == [1, 2, 0]
    assert regions.classes.tolist() == [4, 2, 9]
    assert regions.matched.tolist() == [0, 1, 0]


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_deltas_move_boxes_to_their_targets(offset: float) -> None:
    boxes = torch.tensor([[2.0, 3, 12, 33], [5, 5, 6, 9]])
    targets = torch.tensor([[0.0, 0, 20, 20], [1, 2, 30, 40]])
    weights = (10.0, 10.0, 5.0, 5.0)
    deltas = encode_boxes(boxes, targets, weights, offset)
    moved = decode_boxes(boxes, deltas, weights=weights, offset=offset, max_log_scale=None)
    # decode_boxes leaves the last pixel where the width ends.
    torch.testing.assert_close(moved, targets + torch.tensor([0, 0, offset, offset]))


def test_attributes_of_background_and_of_boxes_without_any() -> None:
    regions = Regions(
        torch.zeros(3, 4), torch.tensor([1, 0, 7]), torch.arange(3), torch.tensor([0, 1, 0])
    )
    attributes = torch.tensor([[3, 5], [-1, -1]])
    plain = attribute_targets(attributes, regions, background=7, shift=False)
    assert plain.tolist() == [[3, 5], [-1, -1], [-1, -1]]
    caffe = attribute_targets(attributes, regions, background=7, shift=True)
    assert caffe.tolist() == [[4, 6], [0, -1], [-1, -1]]


def test_a_image_without_boxes_has_no_attribute_targets() -> None:
    """Where MILVLG's own code raises."""
    regions = Regions(
        torch.zeros(2, 4), torch.tensor([7, 7]), torch.arange(2), torch.tensor([0, 0])
    )
    none = torch.zeros((0, 16), dtype=torch.int64)
    assert (attribute_targets(none, regions, background=7, shift=True) == -1).all()


@pytest.mark.parametrize(
    "changes", [{"labels": (0, 1)}, {"labels": (0, 2, 1)}, {"thresholds": (0.7, 0.3)}, {"batch": 0}]
)
def test_rules_that_contradict_themselves_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="expected"):
        dataclasses.replace(RULE, **changes)  # type: ignore[arg-type]
