"""Records the results of a check of a few minutes: a line of JSON each, complete by itself."""

import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

REASON_LENGTH = 400
TRACEBACK_LINES = 3


class Record:
    """Prints each result and appends it to a file, with the seconds since the record was opened."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1, encoding="utf-8")
        self._started = time.perf_counter()

    def seconds(self) -> float:
        """Returns the seconds since the record was opened."""
        return time.perf_counter() - self._started

    def write(self, part: str, **fields: Any) -> None:
        """Writes a line: the part's name, the time and the fields."""
        line = json.dumps({"part": part, "at_s": round(self.seconds(), 1), **fields})
        print(line, flush=True)
        self._file.write(line + "\n")

    def attempt(self, part: str, work: Callable[[], object]) -> bool:
        """Runs ``work``; an exception becomes the part's line. Returns False for an exception."""
        try:
            work()
        except Exception as error:
            lines = traceback.format_exc().splitlines()
            print(*lines, sep="\n", file=sys.stderr)
            reason = f"{type(error).__name__}: {error}"[:REASON_LENGTH]
            self.write(part, failed=reason, where=lines[-TRACEBACK_LINES:])
            return False
        return True

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
