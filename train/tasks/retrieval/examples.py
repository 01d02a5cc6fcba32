"""What each query of a retrieval found: its first candidates, and where the right one stands."""

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
    """A candidate among the first: its number, score, and whether it is a right answer."""

    candidate: int
    score: float
    right: bool


@dataclass(frozen=True, kw_only=True)
class Found:
    """A query's outcome: its number, the (pessimistic) rank of its best right answer, that answer,
    by how much it scores above the best wrong one (0 without one), and the first few candidates.
    """

    query: int
    rank: int
    right: Neighbour
    margin: float
    neighbours: tuple[Neighbour, ...]


def found_images(scores: Scores, owners: NDArray[np.int64], ranks: Ranks, k: int) -> list[Found]:
    """The first ``k`` pictures of each text."""
    return [
        _found(text, scores[:, text], np.arange(len(scores)) == owners[text], ranks, k)
        for text in range(scores.shape[1])
    ]


def found_texts(scores: Scores, owners: NDArray[np.int64], ranks: Ranks, k: int) -> list[Found]:
    """The first ``k`` texts of each picture."""
    return [_found(i, row, owners == i, ranks, k) for i, row in enumerate(scores)]


def _found(
    query: int, scores: NDArray[Any], right: NDArray[np.bool_], ranks: Ranks, k: int
) -> Found:
    # Right answers last among equals, as in the ranks: the shown order never flatters either.
    order = np.lexsort((right, -scores))
    is_right = right[order]

    def neighbour(candidate: np.int64) -> Neighbour:
        return Neighbour(
            candidate=int(candidate), score=float(scores[candidate]), right=bool(right[candidate])
        )

    best, wrong = order[is_right][0], order[~is_right]
    return Found(
        query=query,
        rank=int(ranks.pessimistic[query]),
        right=neighbour(best),
        margin=float(scores[best] - scores[wrong[0]]) if len(wrong) else 0.0,
        neighbours=tuple(neighbour(candidate) for candidate in order[:k]),
    )


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Queries to show: the surest right ones, the furthest off of the wrong ones, and some evenly
    spread.
    """

    best: tuple[Found, ...]
    worst: tuple[Found, ...]
    spread: tuple[Found, ...]

    @property
    def all(self) -> tuple[Found, ...]:
        """Every one that is shown."""
        return (*self.best, *self.worst, *self.spread)


def examples(found: Sequence[Found], count: int) -> Examples:
    """Up to ``count`` of each kind, the same on every run; a right answer in first place is no
    worst, anything else no best.
    """
    ordered = sorted(found, key=lambda one: (one.rank, -one.margin, one.query))
    right = [one for one in ordered if one.rank == 0]
    wrong = [one for one in ordered if one.rank > 0]
    return Examples(
        best=tuple(right[:count]),
        worst=tuple(reversed(wrong[-count:])),
        spread=tuple(evenly(found, count)),
    )


def evenly(found: Sequence[T], count: int) -> list[T]:
    """``count`` of all, evenly spread: not the best, and the same on every run."""
    places = np.linspace(0, len(found) - 1, min(count, len(found))).round().astype(int)
    return [found[place] for place in places]


def unmoved(score: float) -> tuple[float, bool]:
    """A score as the model gave it, and whether it is a shortlist's: moved down, it was not."""
    return (score, True) if score > -BELOW / 2 else (score + BELOW, False)


def neighbours_json(
    candidates: Candidates, by_text: Sequence[Found], by_image: Sequence[Found]
) -> dict[str, list[dict[str, Any]]]:
    """Queries with the first few they found, under ids; ranks count from 0.

    ``listed`` is false for candidates behind a shortlist, whose score is the contrast's.
    """

    def text(number: int) -> dict[str, Any]:
        return dataclasses.asdict(candidates.pairs[number])

    def image(number: int) -> dict[str, Any]:
        return {"image_id": candidates.image_ids[number]}

    def record(found: Found, query: Any, candidate: Any) -> dict[str, Any]:
        def near(n: Neighbour) -> dict[str, Any]:
            score, listed = unmoved(n.score)
            mark = {} if listed else {"listed": False}
            return {**candidate(n.candidate), "score": score, "right": n.right, **mark}

        return {
            **query(found.query),
            "rank": found.rank,
            "best_right": near(found.right),
            "neighbours": [near(n) for n in found.neighbours],
        }

    return {
        "image_retrieval": [record(found, text, image) for found in by_text],
        "text_retrieval": [record(found, image, text) for found in by_image],
    }
