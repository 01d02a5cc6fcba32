"""Shows the progress of long work: a bar on a terminal, plain lines otherwise."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 10.0
_SILENT: ContextVar[bool] = ContextVar("silent", default=False)


@contextmanager
def without_progress() -> Iterator[None]:
    """Suppresses progress inside the block, for calls of the library instead of a command."""
    token = _SILENT.set(True)
    try:
        yield
    finally:
        _SILENT.reset(token)


class Progress:
    """Counts work done, with rate, ETA, rejects and notes; writes to standard error.

    ``total`` None: unknown, so no ETA. Use as a context manager::

        with Progress(total=len(items), unit="image", label="regions") as progress:
            for item in items:
                progress.advance(rejects=int(not handle(item)))
    """

    def __init__(
        self, *, total: int | None, unit: str, label: str, done: int = 0, visible: bool = True
    ) -> None:
        """``done``: how much of ``total`` an earlier run has finished; it does not count as rate.
        ``visible`` is False in all processes of a job but the first.
        """
        visible = visible and not _SILENT.get()
        self._visible = visible
        self.total, self.unit, self.label = total, unit, label
        self.done, self.rejects = done, 0
        self._started_with = done
        self._notes: dict[str, str] = {}
        self._start = self._last_line = time.monotonic()
        self._bar = (
            tqdm(total=total, initial=done, unit=f" {unit}", desc=label, dynamic_ncols=True)
            if visible and sys.stderr.isatty()
            else None
        )

    def __enter__(self) -> "Progress":
        return self

    def advance(self, count: int = 1, *, rejects: int = 0, **notes: str) -> None:
        """Counts ``count`` more as done, ``rejects`` of them rejected; ``notes`` are shown."""
        self.done += count
        self.rejects += rejects
        self._notes.update(notes)
        if self._bar is not None:
            postfix = {"rejects": str(self.rejects), **self._notes} if self.rejects else self._notes
            self._bar.set_postfix(postfix, refresh=False)
            self._bar.update(count)
        elif time.monotonic() - self._last_line > SECONDS_BETWEEN_LINES:
            self._print_line()

    def _print_line(self) -> None:
        self._last_line = time.monotonic()
        if not self._visible:
            return
        print(self.line(self._last_line - self._start), file=sys.stderr, flush=True)

    def line(self, seconds: float) -> str:
        """Returns the plain line after ``seconds`` of work."""
        rate = (self.done - self._started_with) / seconds if seconds > 0 else 0.0
        total_suffix = "" if self.total is None else f"/{self.total}"
        plural = "" if self.total is None and self.done == 1 else "s"
        parts = [f"{self.label}: {self.done}{total_suffix} {self.unit}{plural}", f"{rate:.3g}/s"]
        if self.total is not None and rate > 0 and self.done < self.total:
            parts.append(f"{(self.total - self.done) / rate:.0f} s left")
        if self.rejects:
            parts.append(f"{self.rejects} rejected")
        return ", ".join(parts + [f"{name} {value}" for name, value in self._notes.items()])

    def close(self) -> None:
        """Removes the bar without a last line, for work that is usually too short to be shown."""
        if self._bar is not None:
            self._bar.leave = False
            self._bar.close()

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
        else:
            self._print_line()
