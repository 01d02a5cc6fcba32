"""Writes a run's log: ``log.jsonl``, one line of JSON per logged step, and its curves."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlmill.runtime.console.trackers import Trackers
from vlmill.runtime.files.atomic import write_bytes
from vlmill.schemas.plain_json import parse_json


def read_log(path: Path) -> list[dict[str, Any]]:
    """Returns the complete lines of a log; a line truncated by a kill is skipped."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [parse_json(line) for line in lines]


class Log:
    """Appends lines to a log, after removing those beyond step ``after``.

    A killed run may have logged steps after its last checkpoint, and half a line. Numbers also go
    to the trackers, whose files are in the same folder.
    """

    def __init__(
        self,
        path: Path,
        *,
        after: int,
        active: bool = True,
        trackers: Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Opens the log; ``active`` is False in all processes but the first.

        ``settings`` are the trackers' description of the run.
        """
        self._active = active
        if not active:
            return
        lines = read_log(path)
        last = max((line["step"] for line in lines), default=0)
        # Before the file is cut, so the trackers' state stays known if this is killed.
        self._trackers = Trackers(
            trackers, path.parent, after=after, last=last, settings=settings or {}
        )
        write_bytes(path, b"".join(_encode(line) for line in lines if line["step"] <= after))
        self._file = path.open("ab", buffering=0)

    def write(self, line: Mapping[str, Any]) -> None:
        """Appends a line. Raises ValueError for values that are not finite."""
        if not self._active:
            return
        self._file.write(_encode(line))
        numbers = {n: v for n, v in line.items() if n != "step" and isinstance(v, int | float)}
        self._trackers.log(line["step"], numbers)

    def flush(self) -> None:
        """Writes the trackers' buffered values to their files, for a checkpoint."""
        if self._active:
            self._trackers.flush()

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *_: object) -> None:
        if self._active:
            self._file.close()
            self._trackers.close()


def _encode(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, allow_nan=False).encode() + b"\n"
