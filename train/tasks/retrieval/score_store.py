"""Stores the scores of pairs in files, in the order of their computation, so they survive a kill.

A file holds the scores of consecutive pairs. It records the inputs of the scores, so that scores of
another checkpoint or of other pairs are never used, and it has its own checksum.
"""

import hashlib
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmill.runtime.files.atomic import write_bytes
from vlmill.runtime.files.outputs import WORK
from vlmill.runtime.files.paths import to_path
from vlmill.schemas.plain_json import parse_json
from vlmill.train.tasks.retrieval.candidates import Candidates

SECONDS_BETWEEN_FILES = 30.0  # the most work that a kill loses
PATTERN = "scores-*.block"
Scores = NDArray[np.float32]


@dataclass(kw_only=True)
class ScoreCache:
    """Keeps scores in a ``folder``, only scores of ``lineage``; without a folder it keeps nothing.

    ``known`` float32 [n] are the first n scores, which an earlier run has kept. A file is written
    when ``seconds`` have passed since the last, so that models of any speed have few of them, and
    short work has none.
    """

    folder: Path | None = None
    lineage: str = ""
    seconds: float = 0.0
    known: Scores = field(default_factory=lambda: np.zeros(0, np.float32))
    _new: list[Scores] = field(default_factory=list)
    _written: int = 0
    _last: float = 0.0

    @staticmethod
    def open(folder: Path, lineage: str, *, seconds: float) -> "ScoreCache":
        """Reads an earlier run's scores, up to the first file that does not belong to it.

        That file and all later ones are named, deleted and computed again.
        """
        cache = ScoreCache(folder=folder, lineage=lineage, seconds=seconds)
        parts, end = list[Scores](), 0
        paths = sorted(folder.glob(PATTERN)) if folder.exists() else []
        for number, path in enumerate(paths):
            block = _read(path, lineage, end)
            if isinstance(block, str):
                print(
                    f"note: {path} {block}; its scores and the scores of the "
                    f"{len(paths) - number - 1} later files are computed again",
                    file=sys.stderr,
                )
                for other in paths[number:]:
                    other.unlink(missing_ok=True)
                break
            parts.append(block)
            end += len(block)
        if parts:
            cache.known = np.concatenate(parts)
        cache._written, cache._last = end, time.monotonic()
        return cache

    def add(self, scores: Scores) -> None:
        """Adds the scores of the next pairs, and writes a file if it is time."""
        if self.folder is None:
            return
        self._new.append(scores)
        if time.monotonic() - self._last >= self.seconds:
            self._write(self.folder)

    def _write(self, folder: Path) -> None:
        """Writes the scores since the last file."""
        count = sum(map(len, self._new))
        content = np.concatenate(self._new).astype("<f4").tobytes()
        about = {"lineage": self.lineage, "start": self._written, "sha256": _digest(content)}
        header = json.dumps(about).encode() + b"\n"
        write_bytes(folder / f"scores-{self._written:014d}.block", header + content)
        self._written, self._new, self._last = self._written + count, [], time.monotonic()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read(path: Path, lineage: str, start: int) -> Scores | str:
    """Returns the scores of a file, or a description of its fault."""
    header, newline, content = path.read_bytes().partition(b"\n")
    try:
        about = parse_json(header)
        stored_lineage, begins, digest = about["lineage"], about["start"], about["sha256"]
    except (ValueError, KeyError, TypeError):
        return "is damaged"
    if stored_lineage != lineage:
        return "belongs to another checkpoint, other pairs or other settings"
    if not newline or digest != _digest(content) or len(content) % 4:
        return "is damaged"
    if begins != start:
        return f"begins at pair {begins}, where pair {start} is missing"
    return np.frombuffer(content, "<f4").astype(np.float32)


def open_score_cache(
    output: Path, candidates: Candidates, chosen: NDArray[np.bool_] | None, **settings: Any
) -> ScoreCache:
    """Opens the scores that an earlier run of the same evaluation has kept in its ``output``.

    ``settings`` is all that decides the scores, other than the candidates, the pairs of these that
    are ``chosen`` (all if None) and their order.
    """
    lineage = settings | {
        "image_ids": candidates.image_ids,
        "pair_ids": [pair.pair_id for pair in candidates.pairs],
        "chosen": None if chosen is None else _digest(np.packbits(chosen).tobytes()),
    }
    digest = _digest(json.dumps(lineage, sort_keys=True).encode())
    return ScoreCache.open(to_path(output) / WORK, digest, seconds=SECONDS_BETWEEN_FILES)
