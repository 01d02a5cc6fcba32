"""What a worker of ``train-vl serve`` is asked, and of which model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SCORE, EMBED, SEARCH, ANSWER = "score", "embed", "search", "answer"
ATTEND = "attend"
TIMES_SCORED = 36  # an image's score without each of its regions: about as many


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Says which checkpoint is served, and beside which detector and index."""

    checkpoint: Path | str  # a string where it is of the hub
    detector: Path | None = None
    index: Path | None = None
    batch_size: int = 64


@dataclass(frozen=True, kw_only=True)
class Question:
    """One request: what is wanted (SCORE, ...) of which images and texts."""

    method: str
    images: Sequence[bytes] = ()
    texts: Sequence[str] = ()
    top: int = 10

    @property
    def weight(self) -> int:
        """Its part of a batch: images with texts that are scored, or images and texts."""
        if self.method == SCORE:
            return len(self.images) * len(self.texts)
        if self.method == EMBED:
            return len(self.images) + len(self.texts)
        return TIMES_SCORED if self.method == ATTEND else 1


@dataclass(frozen=True, kw_only=True)
class NoAnswer:
    """Says why a question has none: what its sender can mend."""

    reason: str
    message: str
