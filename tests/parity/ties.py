"""Decisions that hang on near ties: two recorded scores that are closer than their tolerance.

Either order of such scores is right. A comparison takes the recorded one, and the report says how
often and how close the scores were; every other decision has to be the recorded one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from tests.parity.results import Results
from torch import Tensor


def settle(
    results: Results,
    key: str,
    mine: Tensor,
    scores_key: str,
    recorded: Tensor,
    choice: Tensor | None = None,
) -> Tensor:
    """Our choices ``mine`` [...] among C scores, near ties as recorded.

    ``recorded`` [..., C] are the reference's scores, made of the tensor ``scores_key`` whose
    tolerance they have, and ``choice`` what it chose: without it, its highest score. ``key`` is the
    decision's name in the report.
    """
    theirs = recorded.argmax(-1) if choice is None else choice.reshape(mine.shape)
    allowed = results.golden.allowed(scores_key, recorded)
    pair = torch.stack([mine, theirs], dim=-1)
    margin = recorded.double().gather(-1, pair).diff(dim=-1).abs().squeeze(-1)
    near = (mine != theirs) & (margin <= allowed.gather(-1, pair).amax(-1))
    results.exchange(key, margin[near].tolist())
    return torch.where(near, theirs, mine)


@dataclass(frozen=True)
class Rows:
    """Columns of rows that a score orders and a cut ends; ``allowed`` of each recorded column."""

    columns: Mapping[str, Tensor]
    allowed: Mapping[str, Tensor]
    score: str

    def __len__(self) -> int:
        return len(self.columns[self.score])

    def same(self, ours: Mapping[str, Tensor], identity: Sequence[str]) -> Tensor:
        """Which of our rows [S] may be which of these [R]: equal in the columns ``identity``."""
        same = torch.ones(len(self), len(ours[identity[0]]), dtype=torch.bool)
        for name in identity:
            theirs, mine = self.columns[name].double(), ours[name].double()
            off = (theirs[:, None] - mine[None]).abs() <= self.allowed[name][:, None]
            same &= off if off.ndim == 2 else off.flatten(2).all(dim=2)
        return same


def places(
    recorded: Rows, ours: Mapping[str, Tensor], identity: Sequence[str], cuts: Sequence[float]
) -> tuple[Tensor, list[float]] | None:
    """The place [R] of our row for each recorded one, and the margins of what was exchanged.

    Rows may stand in another order where their recorded scores are nearly tied, and a row may be
    missing (-1), for another one of ours, where its score and that one's are as near to one of the
    ``cuts``. None where more differs than near ties explain.
    """
    same = recorded.same(ours, identity)
    place = torch.full((len(recorded),), -1)
    for here in (same & torch.eye(*same.shape, dtype=torch.bool), same):
        for row in torch.nonzero(place < 0)[:, 0].tolist():
            free = [p for p in torch.nonzero(here[row])[:, 0].tolist() if p not in place]
            place[row] = free[0] if free else -1
    scores, bounds = recorded.columns[recorded.score].double(), recorded.allowed[recorded.score]
    missing = place < 0
    surplus = [row for row in range(same.shape[1]) if row not in place]
    alone = [*scores[missing].tolist()]
    alone += ours[recorded.score][surplus].tolist() if recorded.score in ours else []
    margins = [min((abs(score - cut) for cut in cuts), default=math.inf) for score in alone]
    if margins and max(margins) > float(bounds.max()):
        return None
    present = torch.nonzero(~missing)[:, 0]
    turned = (place[present, None] > place[None, present]).triu()
    apart = (scores[present, None] - scores[None, present]).abs()
    if (apart > torch.maximum(bounds[present, None], bounds[None, present]))[turned].any():
        return None
    return place, margins + apart[turned].tolist()


def exchanged(ours: Tensor, recorded: Tensor, place: Tensor) -> Tensor:
    """Our rows at their places; a missing one is not ours to compare and is the recorded one."""
    if not len(ours):
        return recorded
    rows, missing = ours[place.clamp(min=0)], place < 0
    rows[missing] = recorded[missing].to(rows.dtype)
    return rows
