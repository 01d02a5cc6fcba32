"""``log.jsonl``: a line of JSON for each logged step, whole even after a kill."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from vlmill.schemas.atomic import write_bytes


def read_log(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a log; one that a kill cut is left out."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


class Log:
    """Appends lines to a log after cutting off what lies beyond step ``after``.

    A killed run may have logged steps that its last checkpoint does not hold, and half a line.
    """

    def __init__(self, path: Path, *, after: int) -> None:
        kept = [line for line in read_log(path) if line["step"] <= after]
        write_bytes(path, b"".join(_encode(line) for line in kept))
        self._file = path.open("ab", buffering=0)

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line. Raises ValueError for values that are not finite."""
        self._file.write(_encode(line))

    def __enter__(self) -> "Log":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def _encode(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, allow_nan=False).encode() + b"\n"
