"""Defines the requests to a worker of ``train-vl serve``, and the model that it serves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCORE, EMBED, SEARCH, ANSWER = "score", "embed", "search", "answer"
ATTEND, CLASSIFY, ENTAIL, SIMILAR = "attend", "classify", "entail", "similar"
RERANK = "rerank"  # the second part of a search, without a path
MOST_RERANKED = 100  # results of a search that are ranked again
TIMES_SCORED = 36  # an image's score without each of its regions: about as many


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The served checkpoint, with its detector and index, and the model that ranks the results of
    searches again, with the images or regions that it reads.
    """

    checkpoint: Path | str  # a string where it is of the hub
    detector: Path | None = None
    index: Path | None = None
    reranker: Path | str | None = None
    regions: str | None = None
    images: Path | str | None = None
    batch_size: int = 64


@dataclass(frozen=True, kw_only=True)
class Question:
    """One request: the method (SCORE, ...) with its images and texts, or ids of items.

    ``where``: the values of columns that rows of a search must have. ``rerank``: how many of its
    results are ranked again, ``rows``: these results, for RERANK.
    """

    method: str
    images: Sequence[bytes] = ()
    texts: Sequence[str] = ()
    items: Sequence[str] = ()
    excluded: Sequence[str] = ()
    where: Mapping[str, Sequence[str]] = field(default_factory=dict)
    top: int = 10
    rerank: int = 0
    rows: Sequence[Mapping[str, Any]] = ()

    @property
    def weight(self) -> int:
        """Its part of a batch: images with texts that are scored, or images and texts."""
        if self.method == SCORE:
            return len(self.images) * len(self.texts)
        if self.method == EMBED:
            return len(self.images) + len(self.texts)
        if self.method == RERANK:
            return max(1, len(self.rows))
        return TIMES_SCORED if self.method == ATTEND else 1


@dataclass(frozen=True, kw_only=True)
class NoAnswer:
    """The reason why a question has no result, which its sender can fix."""

    reason: str
    message: str
