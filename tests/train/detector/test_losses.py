"""Losses by hand, and the cases in which there is nothing to learn."""

import math

import pytest
import torch

from vlmill.models.detector.config import DetectorConfig, detectron2
from vlmill.train.detector.losses import (
    attribute_loss,
    class_outputs,
    region_losses,
    rpn_losses,
    smooth_l1,
)
from vlmill.train.detector.settings import BoxLoss, Matching, RoiRules, RpnRules

SMALL = detectron2(num_classes=2, anchor_scales=(1.0,), anchor_ratios=(1.0,))


def test_smooth_l1_by_hand() -> None:
    ours, targets = torch.tensor([0.5, 3.0]), torch.zeros(2)
    assert smooth_l1(ours, targets, 1.0).item() == pytest.approx(0.125 + 2.5)
    assert smooth_l1(ours, targets, 0.0).item() == pytest.approx(3.5)


def test_attributes_are_a_mean_of_means() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.4, 0.4], [0.1, 0.1, 0.8]]))
    targets = torch.tensor([[0, 1], [2, -1], [-1, -1]])
    expected = ((math.log(2) + math.log(4)) / 2 + math.log(2.5)) / 2
    assert attribute_loss(logits, targets).item() == pytest.approx(expected, rel=1e-6)


def test_the_last_output_may_be_no_attribute() -> None:
    logits = torch.tensor([[1.0, 1.0, 50.0]])
    loss = attribute_loss(logits, torch.tensor([[0]]), left_out=1)
    assert loss.item() == pytest.approx(math.log(2))


def test_no_attribute_at_all_is_a_loss_of_0_with_a_gradient() -> None:
    logits = torch.randn(2, 3, requires_grad=True)
    attribute_loss(logits, torch.full((2, 1), -1)).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None and not logits.grad.any()
    nobody = torch.randn(0, 3, requires_grad=True)
    assert attribute_loss(nobody, torch.zeros((0, 1), dtype=torch.int64)).item() == 0


def test_background_is_the_first_or_the_last_output() -> None:
    classes = torch.tensor([0, 1, 2])
    assert class_outputs(classes, SMALL).tolist() == [0, 1, 2]
    first = DetectorConfig(num_classes=2)
    assert class_outputs(classes, first).tolist() == [1, 2, 0]


@pytest.mark.parametrize("kind", ["smooth_l1", "giou", "diou", "ciou"])
def test_a_box_that_is_right_costs_nothing_and_background_never(kind: BoxLoss) -> None:
    boxes = torch.tensor([[0.0, 0, 10, 10], [3, 3, 9, 9]])
    deltas = torch.zeros(2, 8)
    deltas[1] = 5.0  # of background
    losses = region_losses(
        torch.zeros(2, 3),
        deltas.requires_grad_(),
        boxes,
        torch.tensor([1, 2]),
        torch.tensor([[0.0, 0, 10, 10], [0, 0, 1, 1]]),
        RoiRules(box_loss=kind),
        SMALL,
    )
    assert losses["box"].item() == pytest.approx(0, abs=1e-6)
    assert losses["class"].item() == pytest.approx(math.log(3))


def test_no_region_is_a_loss_of_0_that_is_connected() -> None:
    logits, deltas = (torch.randn(0, width, requires_grad=True) for width in (3, 8))
    none, nothing = torch.zeros((0, 4)), torch.zeros(0, dtype=torch.int64)
    losses = region_losses(logits, deltas, none, nothing, none, RoiRules(), SMALL)
    total = losses["class"] + losses["box"]
    total.backward()  # type: ignore[no-untyped-call]
    assert total.item() == 0


@pytest.mark.parametrize(("normaliser", "total"), [("wanted", 8), ("sampled", 2)])
def test_the_normaliser_of_anchors(normaliser: str, total: int) -> None:
    matching = Matching(thresholds=(0.3, 0.7), labels=(0, -1, 1), batch=8, positives=0.5)
    rules = RpnRules(matching=matching, normaliser=normaliser)  # type: ignore[arg-type]
    labels = torch.tensor([[1, 0, -1, -1]])
    anchors = torch.tensor([[0.0, 0, 16, 16]] * 4)
    losses = rpn_losses(
        torch.zeros(1, 1, 2, 2),
        torch.ones(1, 4, 2, 2),
        anchors,
        labels,
        anchors[None],
        rules,
        SMALL,
    )
    assert losses["rpn_class"].item() == pytest.approx(2 * math.log(2) / total)
    assert losses["rpn_box"].item() == pytest.approx(4 / total)


def test_two_logits_of_an_anchor_share_a_softmax() -> None:
    config = DetectorConfig(num_classes=2, anchor_scales=(1.0,), anchor_ratios=(1.0,))
    matching = Matching(thresholds=(0.5,), labels=(0, 1), batch=1, positives=1.0)
    logits = torch.tensor([0.0, math.log(3)]).reshape(1, 2, 1, 1)  # background, then foreground
    anchors = torch.tensor([[0.0, 0, 15, 15]])
    losses = rpn_losses(
        logits,
        torch.zeros(1, 4, 1, 1),
        anchors,
        torch.tensor([[1]]),
        anchors[None],
        RpnRules(matching=matching),
        config,
    )
    assert losses["rpn_class"].item() == pytest.approx(math.log(4 / 3), rel=1e-6)
