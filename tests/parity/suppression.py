"""Which sets of boxes a suppression may leave, where decisions hang on near ties.

C candidates, all of one class or without classes. A set is right when every single decision in it
is: who takes part, who overlaps whom by more than the threshold, and who is cut off. So nothing has
to be known of what an exchange brings about further down.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ROWS = 256  # of overlaps at a time: sets of full size have thousands of candidates


@dataclass(frozen=True)
class Gate:
    """A condition of taking part: who meets it, how far [C] from the other side, and its bound."""

    met: Tensor
    distance: Tensor
    allowed: Tensor

    @property
    def near(self) -> Tensor:
        return self.distance <= self.allowed


def above(values: Tensor, limit: float, allowed: Tensor, *, inclusive: bool = False) -> Gate:
    """Only values above a limit, or also those at it."""
    met = values >= limit if inclusive else values > limit
    return Gate(met, (values - limit).abs(), allowed)


def among_best(scores: Tensor, count: int, allowed: Tensor) -> Gate:
    """Only the ``count`` highest scores, equal ones in their order."""
    values, order = scores.sort(descending=True, stable=True)
    met = torch.zeros_like(scores, dtype=torch.bool)
    met[order[:count]] = True
    if count >= len(scores):
        return Gate(met, torch.full_like(scores, torch.inf), allowed)
    distance = torch.where(met, scores - values[count], values[count - 1] - scores)
    return Gate(met, distance, allowed)


@dataclass(frozen=True, kw_only=True)
class Suppression:
    """Candidates by recorded numbers, how far these may be off, and the rule."""

    boxes: Tensor  # [C, 4]
    scores: Tensor  # [C]
    box_bounds: Tensor  # [C, 4]
    score_bounds: Tensor  # [C]
    gates: Sequence[Gate]
    threshold: float
    offset: float
    inclusive: bool

    def margins(self, survivors: Tensor, floor: float = -torch.inf) -> list[float] | None:
        """How narrow the decisions are in which ``survivors`` [C] (flags) are not the rule's own.

        None where one of them is no near tie. Candidates of a score up to ``floor`` may have been
        cut off afterwards.
        """
        entered = self.entered(survivors)
        together = self.kept_together(survivors)
        if entered is None or together is None:
            return None
        margins = entered + together
        for margin in self.left_out(survivors, floor):
            if margin is None:
                return None
            margins += margin
        return margins

    def entered(self, survivors: Tensor) -> list[float] | None:
        """Margins of survivors that should not have taken part."""
        margins = []
        for gate in self.gates:
            wrong = survivors & ~gate.met
            if (wrong & ~gate.near).any():
                return None
            margins += gate.distance[wrong].tolist()
        return margins

    def kept_together(self, survivors: Tensor) -> list[float] | None:
        """Margins of survivors of which one should have suppressed the other."""
        rows = torch.nonzero(survivors)[:, 0]
        overlap, low, _ = self.overlaps(rows, rows)
        wrong = self.suppresses(overlap).triu(1)
        if (low[wrong] > self.threshold).any():
            return None
        return (overlap[wrong] - self.threshold).tolist()

    def left_out(self, survivors: Tensor, floor: float) -> list[list[float] | None]:
        """Margins of each candidate that is left out without a plain reason."""
        met = torch.ones_like(survivors)
        for gate in self.gates:
            met &= gate.met
        rows = torch.nonzero(met & ~survivors & (self.scores > floor))[:, 0]
        columns = torch.nonzero(survivors)[:, 0]
        overlap, _, high = self.overlaps(rows, columns)
        behind = (self.scores[rows][:, None] - self.scores[columns][None]).double()
        plain = (self.suppresses(overlap) & (behind <= 0)).any(dim=1)
        bounds = torch.maximum(self.score_bounds[rows][:, None], self.score_bounds[columns][None])
        possible = (high >= self.threshold) & (behind <= bounds)
        return [
            self.excuse(int(rows[i]), floor, overlap[i][possible[i]], behind[i][possible[i]])
            for i in torch.nonzero(~plain)[:, 0].tolist()
        ]

    def excuse(self, row: int, floor: float, overlap: Tensor, behind: Tensor) -> list[float] | None:
        """The near ties that leave a candidate out, as few as will do.

        ``overlap`` and ``behind`` are with the survivors that may have suppressed it: how far
        their scores are behind its own.
        """
        reasons = [[float(g.distance[row])] for g in self.gates if g.near[row]]
        past = float(self.scores[row]) - floor
        if past <= self.score_bounds[row]:
            reasons.append([past])
        lacking = torch.stack([self.threshold - overlap, behind], dim=1).clamp(min=0.0)
        reasons += [[lack for lack in pair if lack] or [0.0] for pair in lacking.tolist()]
        return min(reasons, key=lambda reason: (len(reason), sum(reason)), default=None)

    def suppresses(self, overlap: Tensor) -> Tensor:
        return overlap >= self.threshold if self.inclusive else overlap > self.threshold

    def overlaps(self, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Overlaps of candidates [R, S]: as they are, the least and the most that they may be."""
        parts = [self.few_overlaps(some, columns) for some in torch.split(rows, ROWS)]
        overlap, low, high = (torch.cat(part) for part in zip(*parts, strict=True))
        return overlap, low, high

    def few_overlaps(self, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Edges that come together raise an overlap, and the other way round."""
        end = torch.tensor([0.0, 0.0, self.offset, self.offset], dtype=torch.float64)
        first, second = (self.boxes.double()[part] + end for part in (rows, columns))
        apart = first[:, None] - second[None]
        side = torch.where(apart < 0, -1.0, 1.0)
        mine, theirs = self.box_bounds[rows][:, None] * side, self.box_bounds[columns][None] * side
        # Edges that may meet do so half way.
        meet = apart.abs() <= (mine + theirs).abs()
        middle = (first[:, None] + second[None]) / 2
        nearest = (
            torch.where(meet, middle, first[:, None] - mine),
            torch.where(meet, middle, second[None] + theirs),
        )
        farthest = first[:, None] + mine, second[None] - theirs
        return (
            overlap_of(first[:, None], second[None]),
            overlap_of(*farthest),
            overlap_of(*nearest),
        )


def overlap_of(first: Tensor, second: Tensor) -> Tensor:
    """Intersection over union, 0 of boxes without area; far corners are the first outside."""
    low = torch.maximum(first[..., :2], second[..., :2])
    high = torch.minimum(first[..., 2:], second[..., 2:])
    shared = (high - low).clamp(min=0.0).prod(dim=-1)
    areas = [(box[..., 2:] - box[..., :2]).clamp(min=0.0).prod(dim=-1) for box in (first, second)]
    union = areas[0] + areas[1] - shared
    return torch.where(union > 0, shared / union, 0.0)


def flags(places: Tensor, like: Tensor) -> Tensor:
    """Which of as many as ``like`` has [C] are at these places."""
    at_places = torch.zeros(len(like), dtype=torch.bool)
    at_places[places] = True
    return at_places


def order_margins(scores: Tensor, allowed: Tensor) -> list[float] | None:
    """Margins of rows [R] that stand before one with a higher score; None where one is no tie."""
    rise = (scores[None].double() - scores[:, None].double()).triu(1)
    turned = rise > 0
    if (rise > torch.maximum(allowed[:, None], allowed[None]))[turned].any():
        return None
    return rise[turned].tolist()


def matching(rows: Sequence[tuple[Tensor, Tensor]], among: Sequence[Tensor]) -> Tensor | None:
    """The candidate [R] that each row is, by several columns; None where one is no candidate.

    ``rows`` are columns [R, ...] with how far they may be off, ``among`` the same columns of the
    candidates [C, ...]. The nearest counts, and each candidate is at most one row.
    """
    free = torch.zeros(len(among[0]), dtype=torch.float64)
    places = []
    for number in range(len(rows[0][0])):
        off = free.clone()
        for (column, allowed), values in zip(rows, among, strict=True):
            apart = (values.double() - column[number].double()).abs()
            ratio = torch.where(apart > 0, apart / allowed[number], 0.0)
            off = torch.maximum(off, ratio if ratio.ndim == 1 else ratio.amax(dim=1))
        if not len(off) or float(off.min()) > 1:
            return None
        places.append(int(off.argmin()))
        free[places[-1]] = torch.inf
    return torch.tensor(places, dtype=torch.long)
