"""A run's log: ``log.jsonl``, a line of JSON for each logged step, and curves of the same."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from vlmill.runtime.console.trackers import Trackers
from vlmill.runtime.files.atomic import write_bytes
from vlmill.schemas.plain_json import parse_json


def read_log(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a log; one that a kill cut is left out."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [parse_json(line) for line in lines]


class Log:
    """Appends lines to a log after cutting off what lies beyond step ``after``.

    A killed run may have logged steps that its last checkpoint does not hold, and half a line.
    Numbers go to the trackers too, whose files lie beside it.
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
        """``active`` is False in the processes of a run that leave the log to the first one.

        ``settings`` are what trackers say of the run.
        """
        self._active = active
        if not active:
            return
        lines = read_log(path)
        last = max((line["step"] for line in lines), default=0)
        # Before the file is cut, so that what they were given stays known whenever this is killed.
        self._trackers = Trackers(
            trackers, path.parent, after=after, last=last, settings=settings or {}
        )
        write_bytes(path, b"".join(_encode(line) for line in lines if line["step"] <= after))
        self._file = path.open("ab", buffering=0)

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line. Raises ValueError for values that are not finite."""
        if not self._active:
            return
        self._file.write(_encode(line))
        numbers = {n: v for n, v in line.items() if n != "step" and isinstance(v, int | float)}
        self._trackers.log(line["step"], numbers)

    def flush(self) -> None:
        """Let the files beside the log have what they were given: a checkpoint may take them."""
        if self._active:
            self._trackers.flush()

    def __enter__(self) -> "Log":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._active:
            self._file.close()
            self._trackers.close()


def _encode(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, allow_nan=False).encode() + b"\n"
