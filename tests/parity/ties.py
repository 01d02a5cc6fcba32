"""Decisions that hang on near ties: two recorded scores that are closer than their tolerance.

Either order of such scores is right. A comparison takes the recorded one, and the report says how
often and how close the scores were; every other decision has to be the recorded one.
"""

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
    """Columns of rows that a score orders; ``allowed`` of each recorded column."""

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
    recorded: Rows, ours: Mapping[str, Tensor], identity: Sequence[str]
) -> tuple[Tensor, list[float]] | None:
    """The place [R] of our row for each recorded one, and the margins of what was exchanged.

    Rows may stand in another order where their recorded scores are nearly tied. None where more
    differs than that explains.
    """
    same = recorded.same(ours, identity)
    place = torch.full((len(recorded),), -1)
    for here in (same & torch.eye(*same.shape, dtype=torch.bool), same):
        for row in torch.nonzero(place < 0)[:, 0].tolist():
            free = [p for p in torch.nonzero(here[row])[:, 0].tolist() if p not in place]
            place[row] = free[0] if free else -1
    if same.shape[0] != same.shape[1] or (place < 0).any():
        return None
    scores, bounds = recorded.columns[recorded.score].double(), recorded.allowed[recorded.score]
    turned = (place[:, None] > place[None]).triu()
    apart = (scores[:, None] - scores[None]).abs()
    if (apart > torch.maximum(bounds[:, None], bounds[None]))[turned].any():
        return None
    return place, apart[turned].tolist()
