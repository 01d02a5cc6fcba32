"""Selects examples of an evaluation: each query's nearest candidates, and the right one's rank."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from vlmill.train.tasks.retrieval.candidates import Candidates
from vlmill.train.tasks.retrieval.metrics import Ranks, Scores
from vlmill.train.tasks.retrieval.vectors import BELOW

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """Holds one of the first candidates: its number, score, and whether it is a right answer."""

    candidate: int
    score: float
    right: bool


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Holds a query's outcome: its number, the (pessimistic) rank of its best right answer, that
    answer, by how much it scores above the best wrong one (0 without one), and the first few
    candidates.
    """

    query: int
    rank: int
    right: Neighbour
    margin: float
    neighbours: tuple[Neighbour, ...]


def nearest_images(
    scores: Scores, owners: NDArray[np.int64], ranks: Ranks, k: int
) -> list[Outcome]:
    """Returns the first ``k`` images of each text."""
    return [
        _outcome(text, scores[:, text], np.arange(len(scores)) == owners[text], ranks, k)
        for text in range(scores.shape[1])
    ]


def nearest_texts(scores: Scores, owners: NDArray[np.int64], ranks: Ranks, k: int) -> list[Outcome]:
    """Returns the first ``k`` texts of each image."""
    return [_outcome(i, row, owners == i, ranks, k) for i, row in enumerate(scores)]


def _outcome(
    query: int, scores: NDArray[Any], right: NDArray[np.bool_], ranks: Ranks, k: int
) -> Outcome:
    # Right answers last among equals, as in the ranks: the shown order never flatters either.
    order = np.lexsort((right, -scores))
    is_right = right[order]

    def neighbour(candidate: np.int64) -> Neighbour:
        return Neighbour(
            candidate=int(candidate), score=float(scores[candidate]), right=bool(right[candidate])
        )

    best, wrong = order[is_right][0], order[~is_right]
    return Outcome(
        query=query,
        rank=int(ranks.pessimistic[query]),
        right=neighbour(best),
        margin=float(scores[best] - scores[wrong[0]]) if len(wrong) else 0.0,
        neighbours=tuple(neighbour(candidate) for candidate in order[:k]),
    )


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Holds the queries to show: the most certain right ones, the worst, and some evenly spread."""

    best: tuple[Outcome, ...]
    worst: tuple[Outcome, ...]
    spread: tuple[Outcome, ...]

    @property
    def all(self) -> tuple[Outcome, ...]:
        """Returns every query that is shown."""
        return (*self.best, *self.worst, *self.spread)


def examples(outcomes: Sequence[Outcome], count: int) -> Examples:
    """Returns up to ``count`` of each kind, the same on every run. A right answer ranked first is
    never a worst example; any other answer is never a best one.
    """
    ordered = sorted(outcomes, key=lambda outcome: (outcome.rank, -outcome.margin, outcome.query))
    right = [outcome for outcome in ordered if outcome.rank == 0]
    wrong = [outcome for outcome in ordered if outcome.rank > 0]
    return Examples(
        best=tuple(right[:count]),
        worst=tuple(reversed(wrong[-count:])),
        spread=tuple(evenly(outcomes, count)),
    )


def evenly(items: Sequence[T], count: int) -> list[T]:
    """Returns ``count`` of all, evenly spread: not the best, and the same on every run."""
    indices = np.linspace(0, len(items) - 1, min(count, len(items))).round().astype(int)
    return [items[index] for index in indices]


def original_score(score: float) -> tuple[float, bool]:
    """Returns a score as the model gave it, and whether it is in the shortlist: scores that were
    moved down are not.
    """
    return (score, True) if score > -BELOW / 2 else (score + BELOW, False)


def neighbours_json(
    candidates: Candidates, by_text: Sequence[Outcome], by_image: Sequence[Outcome]
) -> dict[str, list[dict[str, Any]]]:
    """Returns queries with their first few results, under ids; ranks count from 0.

    ``is_shortlisted`` is false for candidates after the shortlist, whose score is the contrast's.
    """

    def text(number: int) -> dict[str, Any]:
        return dataclasses.asdict(candidates.pairs[number])

    def image(number: int) -> dict[str, Any]:
        return {"image_id": candidates.image_ids[number]}

    def record(outcome: Outcome, query: Any, candidate: Any) -> dict[str, Any]:
        def near(n: Neighbour) -> dict[str, Any]:
            score, is_shortlisted = original_score(n.score)
            mark = {} if is_shortlisted else {"listed": False}
            return {**candidate(n.candidate), "score": score, "right": n.right, **mark}

        return {
            **query(outcome.query),
            "rank": outcome.rank,
            "best_right": near(outcome.right),
            "neighbours": [near(n) for n in outcome.neighbours],
        }

    return {
        "image_retrieval": [record(outcome, text, image) for outcome in by_text],
        "text_retrieval": [record(outcome, image, text) for outcome in by_image],
    }
