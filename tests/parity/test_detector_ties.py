"""Numbers that are off by less than half their tolerance: whatever they decide is a near tie.

Off by far more, another decision is none.
"""

import dataclasses
from typing import Any

import pytest
import torch
from tests.models.detector.batches import given
from tests.parity.proposal_ties import proposal_ties
from tests.parity.region_ties import Choice, cut_margins
from torch import Tensor

from vlmill.extract.config import Selection
from vlmill.extract.detect.selection import Frames
from vlmill.models.detector.config import DetectorConfig, airsplay, milvlg
from vlmill.models.detector.faster_rcnn import Detections
from vlmill.models.detector.proposals import ProposalGenerator

pytestmark = pytest.mark.nightly  # of the comparison itself, as test_harness.py

SCORE_BOUND, BOX_BOUND, SEEDS = 2e-3, 0.2, 30
LIMITS = torch.tensor([[199.0, 149.0, 199.0, 149.0]])
FRAMES = Frames(
    min_sides=torch.tensor([16.0]),
    factors=torch.full((1, 4), 1.25),
    network_limits=LIMITS,
    scaled_limits=LIMITS / 1.25,
    image_limits=LIMITS / 1.25,
    content_limits=LIMITS,
    given_factors=torch.full((1, 4), 1.25),
)
SMALL: dict[str, Any] = {
    "num_classes": 5,
    "num_attributes": 0,
    "anchor_scales": (1.0, 2.0, 4.0),
    "pre_nms_top": 150,
    "post_nms_top": 20,
}
RULES = {
    "pairs": (
        airsplay(**SMALL, selection="class-pairs", class_nms_thresholds=(0.2, 0.3, 0.4)),
        Selection(threshold=0.1, min_boxes=0, max_boxes=25),
    ),
    "best": (airsplay(**SMALL), Selection(threshold=0.0, min_boxes=12, max_boxes=12)),
    "confident": (milvlg(**SMALL), Selection(threshold=0.25, min_boxes=3, max_boxes=15)),
    "most confident": (milvlg(**SMALL), Selection(threshold=0.1, min_boxes=8, max_boxes=8)),
}


def drawn_regions(config: DetectorConfig) -> Detections:
    """Forty regions in clusters, so that many overlap."""
    centres = torch.rand(8, 2).repeat(5, 1) * 140 + 5 * torch.randn(40, 2)
    corners = torch.cat([centres, centres + 25 + 20 * torch.rand(40, 2)], dim=1)
    boxes, taken = given(corners.clamp(min=0.0).minimum(LIMITS))
    return Detections(
        boxes=boxes,
        box_mask=taken,
        features=torch.zeros(1, 40, 3),
        class_probs=(2 * torch.randn(1, 40, 6)).softmax(dim=2),
        box_deltas=0.3 * torch.randn(1, 40, 4 * config.num_regressed),
    )


def off(values: Tensor, most: float) -> Tensor:
    return values + (torch.rand_like(values) * 2 - 1) * most


def chosen_otherwise(name: str, share: float) -> list[list[float] | None]:
    """The margins of every draw in which numbers off by a share of what they may choose others."""
    spec, rule = RULES[name]
    choice = Choice(
        spec=spec, frames=FRAMES, rule=rule, box_bound=BOX_BOUND, score_bound=SCORE_BOUND
    )
    margins = []
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        recorded = drawn_regions(spec)
        ours = dataclasses.replace(
            recorded,
            boxes=off(recorded.boxes, share * BOX_BOUND / 4),
            class_probs=off(recorded.class_probs, share * SCORE_BOUND),
        )
        if not choice.choose(ours).same(choice.choose(recorded)):
            margins.append(choice.margins(ours, recorded))
    return margins


@pytest.mark.parametrize("name", RULES)
def test_regions_chosen_by_numbers_within_half_their_tolerance(name: str) -> None:
    margins = chosen_otherwise(name, 0.5)
    assert margins and None not in margins
    assert all(margin is not None and max(margin) <= SCORE_BOUND for margin in margins)


@pytest.mark.parametrize("name", RULES)
def test_regions_chosen_by_other_numbers(name: str) -> None:
    margins = chosen_otherwise(name, 20.0)
    assert len(margins) > SEEDS / 2 and margins.count(None) > 0.8 * len(margins)


def proposals_otherwise(config: DetectorConfig, most: float) -> list[list[float] | None]:
    """The margins of every draw in which a head off by ``most`` proposes others."""
    torch.manual_seed(0)
    generator, margins = ProposalGenerator(config), []
    anchors = config.num_anchors
    for _ in range(SEEDS):
        pairs = 1 + (config.objectness == "softmax")
        head = torch.randn(1, pairs * anchors, 9, 12), 0.3 * torch.randn(1, 4 * anchors, 9, 12)
        ours = off(head[0], most), off(head[1], most / 20)
        rows = [
            generator.propose((logits,), (deltas,), LIMITS, FRAMES.min_sides)
            for logits, deltas in (head, ours)
        ]
        if torch.allclose(rows[0][0], rows[1][0], rtol=0, atol=BOX_BOUND):
            continue
        bounds = (
            lambda boxes: torch.full(boxes.shape, BOX_BOUND, dtype=torch.float64),
            lambda scores: torch.full(scores.shape, SCORE_BOUND, dtype=torch.float64),
        )
        recorded = rows[0][0][0], rows[0][1][0]
        ties = proposal_ties(generator, FRAMES, head, recorded, bounds)
        known = ties.recorded_anchors()
        assert known is not None and not known[1]
        mine, _ = ties.our_anchors(*ours)
        assert mine is not None and not torch.equal(mine, known[0])
        margins.append(ties.margins(mine))
    return margins


@pytest.mark.parametrize("config", [airsplay(**SMALL), milvlg(**SMALL)], ids=["logit", "softmax"])
def test_proposals_of_a_head_within_half_its_tolerance(config: DetectorConfig) -> None:
    """Which drops some at the cuts, and suppresses others."""
    margins = proposals_otherwise(config, SCORE_BOUND / 2)
    assert len(margins) > 3 and None not in margins and [] not in margins
    assert all(own is not None and 0 < max(own) < 0.05 for own in margins)


@pytest.mark.parametrize("config", [airsplay(**SMALL), milvlg(**SMALL)], ids=["logit", "softmax"])
def test_proposals_of_another_head(config: DetectorConfig) -> None:
    margins = proposals_otherwise(config, 50 * SCORE_BOUND)
    assert len(margins) > SEEDS / 2 and margins == [None] * len(margins)


def test_cuts_of_confident_regions() -> None:
    confidence, bound = torch.tensor([0.9, 0.3, 0.501, 0.5, 0.1]), 0.01

    def margins(ids: list[int], least: int, most: int) -> list[float] | None:
        rule = Selection(threshold=0.5, min_boxes=least, max_boxes=most)
        return cut_margins(confidence, torch.tensor(ids), rule, bound)

    assert margins([0, 2, 3], 1, 5) == []
    assert margins([0, 2], 1, 5) == pytest.approx([0.0])  # the next is at the threshold
    assert margins([0, 1, 2, 3], 1, 5) is None
    assert margins([0, 3], 1, 2) == pytest.approx([0.001], abs=1e-6)  # in place of a near one
    assert margins([0, 1], 1, 2) is None
    assert margins([0], 2, 5) is None  # fewer than the least
