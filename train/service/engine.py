"""What a worker process of ``train-vl serve`` is and is asked, said without loading torch."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vlmill.schemas.service.workers import Opened, Plan

MODULE = "vlmill.train.service.computing"  # what workers are forked from
SCORE, EMBED, SEARCH, ANSWER = "score", "embed", "search", "answer"
ATTEND = "attend"


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Says which checkpoint is served, and beside which detector and index."""

    checkpoint: Path
    detector: Path | None = None
    index: Path | None = None
    batch_size: int = 64


@dataclass(frozen=True, kw_only=True)
class Question:
    """One request: what is wanted (SCORE, ...) of which pictures and texts."""

    method: str
    pictures: Sequence[bytes] = ()
    texts: Sequence[str] = ()
    top: int = 10


@dataclass(frozen=True, kw_only=True)
class NoAnswer:
    """Says why a question has none: what its sender can mend."""

    reason: str
    message: str


def model_plan(options: ModelOptions, device: str) -> Plan:
    """Plans the worker of a device."""
    opener = functools.partial(open_there, options, device)
    return Plan(name=device, module=MODULE, open=opener)


def open_there(options: ModelOptions, device: str) -> Opened:
    """Loads the checkpoint in the worker."""
    from vlmill.train.service.computing import open_model

    return open_model(options, device)
