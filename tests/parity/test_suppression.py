"""Sets of boxes that a suppression may leave, by hand: boxes 10 wide, side by side or shifted."""

import math

import pytest
import torch
from tests.parity.suppression import Suppression, above, among_best, matching, order_margins
from torch import Tensor

pytestmark = pytest.mark.nightly  # of the comparison itself, as test_harness.py

NEAR = 0.1  # how far scores may be off; edges may be by a tenth of that


def candidates(
    lefts: list[float], scores: list[float], *, first: int = 9, least: float = 0.0
) -> Suppression:
    """Boxes 10 by 10 with these left edges, of which overlaps above 0.5 suppress."""
    left, score = (torch.tensor(values, dtype=torch.float32) for values in (lefts, scores))
    boxes = torch.stack([left, torch.zeros(len(left)), left + 10, torch.full_like(left, 10)], dim=1)
    bounds = torch.full((len(left),), NEAR, dtype=torch.float64)
    return Suppression(
        boxes=boxes,
        scores=score,
        box_bounds=torch.full((len(left), 4), NEAR / 10, dtype=torch.float64),
        score_bounds=bounds,
        gates=[among_best(score, first, bounds), above(score, least, bounds)],
        threshold=0.5,
        offset=0.0,
        inclusive=False,
    )


def shift_to(overlap: float) -> float:
    """How far apart two boxes 10 wide overlap so much."""
    return 10 * (1 - overlap) / (1 + overlap)


# Of left edges, scores, kept ones, and the margins that make these right; None: they are wrong.
CASES: dict[str, tuple[list[float], list[float], list[int], list[float] | None]] = {
    "the rule's own": ([0, 1, 20], [3, 2, 1], [0, 2], []),
    "a suppressed one instead": ([0, 1, 20], [3, 2, 1], [1, 2], None),
    "nearly tied ones": ([0, 1, 20], [2.05, 2, 1], [1, 2], [0.05]),
    "a free one left out": ([0, 1, 20], [3, 2, 1], [0], None),
    "a suppressed one beside": ([0, 1, 20], [3, 2, 1], [0, 1, 2], None),
    "an overlap at the threshold, kept": (
        [0, shift_to(0.5005)],
        [3, 2],
        [0, 1],
        [0.0005],
    ),
    "an overlap at the threshold, dropped": (
        [0, shift_to(0.4995)],
        [3, 2],
        [0],
        [0.0005],
    ),
    "an overlap near no threshold": ([0, shift_to(0.48)], [3, 2], [0], None),
    # The first suppresses the second by a hair; else the second suppresses the third.
    "what an exchange brings about": (
        [0, shift_to(0.5005), 2 * shift_to(0.55)],
        [3, 2, 1],
        [0, 1],
        [0.0005],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_kept_ones_by_hand(name: str) -> None:
    lefts, scores, kept, margins = CASES[name]
    ours = candidates(lefts, scores).margins(
        torch.isin(torch.arange(len(lefts)), torch.tensor(kept))
    )
    assert ours == (None if margins is None else pytest.approx(margins, abs=1e-6))


def flags(*kept: bool) -> Tensor:
    return torch.tensor(kept)


def test_a_near_tie_at_the_first_cut() -> None:
    """Two take part: the second or, nearly tied, the third; never the fourth."""
    rule = candidates([0, 20, 40, 60], [3, 2, 1.95, 1], first=2)
    assert rule.margins(flags(True, True, False, False)) == []
    assert rule.margins(flags(True, False, True, False)) == pytest.approx([0.05, 0.05])
    assert rule.margins(flags(True, False, False, True)) is None


def test_a_near_tie_at_the_last_cut() -> None:
    """What is left out has to be behind those that are kept."""
    rule = candidates([0, 20, 40, 60], [3, 2, 1.95, 1])
    assert rule.margins(flags(True, True, False, False), floor=2.0) == []
    assert rule.margins(flags(True, False, True, False), floor=1.95) == pytest.approx([0.05])
    assert rule.margins(flags(True, False, False, True), floor=1.0) is None


def test_a_near_tie_with_the_least_score() -> None:
    rule = candidates([0, 20], [3, 1], least=1.04)
    assert rule.margins(flags(True, False)) == []
    assert rule.margins(flags(True, True)) == pytest.approx([0.04])
    assert candidates([0, 20], [3, 1], least=1.2).margins(flags(True, True)) is None


def test_boxes_without_area_suppress_nobody() -> None:
    rule = candidates([0, 0], [3, 2])
    flat = rule.boxes.clone()
    flat[1, 2:] = flat[1, :2]
    empty = Suppression(**{**vars(rule), "boxes": flat, "box_bounds": torch.zeros(2, 4)})
    assert empty.margins(flags(True, True)) == [] and empty.margins(flags(True, False)) is None


def test_the_order_of_rows() -> None:
    bounds = torch.full((3,), NEAR)
    assert order_margins(torch.tensor([3.0, 2.0, 1.0]), bounds) == []
    assert order_margins(torch.tensor([3.0, 1.95, 2.0]), bounds) == pytest.approx([0.05])
    assert order_margins(torch.tensor([2.0, 3.0, 1.0]), bounds) is None


def test_rows_are_the_nearest_candidates_each_once() -> None:
    scores, bounds = torch.tensor([3.0, 3.0, 1.0]), torch.full((2,), NEAR)
    assert places(torch.tensor([3.0, 3.01]), bounds, scores) == [0, 1]
    assert places(torch.tensor([1.0, 3.0]), bounds, scores) == [2, 0]
    assert places(torch.tensor([1.0, 1.0]), bounds, scores) is None
    assert places(torch.tensor([1.2, 3.0]), bounds, scores) is None


def places(rows: Tensor, bounds: Tensor, among: Tensor) -> list[int] | None:
    result = matching([(rows, bounds)], [among])
    return None if result is None else result.tolist()


def test_an_overlap_may_be_off_by_what_its_edges_may() -> None:
    """Against many random moves of the edges."""
    torch.manual_seed(0)
    rule = candidates([0, 3, 3.005], [3, 2, 1])
    rows = torch.arange(3)
    overlap, low, high = rule.overlaps(rows, rows)
    assert ((low <= overlap) & (overlap <= high)).all()
    for _ in range(300):
        moved = rule.boxes + (torch.rand(3, 4) * 2 - 1) * NEAR / 10
        again = Suppression(**{**vars(rule), "boxes": moved}).overlaps(rows, rows)[0]
        off_diagonal = ~torch.eye(3, dtype=torch.bool)
        assert ((low - 1e-6 <= again) & (again <= high + 1e-6))[off_diagonal].all()
    assert math.isclose(float(high[1, 2]), 1.0) and float(low[0, 1]) > 0.5
