"""Makes standard streams reliable: open, able to print any character, lossy for status lines.

A shell may close them (``2>&-``), a reader may end, their disk may be full, and a locale may lack
the characters of a file's name. None of this should end a working job.
"""

import io
import os
import sys
from contextlib import suppress
from typing import TextIO


def prepare_streams() -> None:
    """Opens closed standard streams, and makes all of them accept any character.

    Otherwise the next opened file would get a closed stream's descriptor, and library output would
    be written to it. Characters that cannot be encoded are printed as escapes. Status lines that
    standard error refuses are dropped.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free descriptor is this one: lower ones are already open.
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = _take_any_character(sys.stdout)
    sys.stderr = _take_any_character(sys.stderr)
    if sys.stderr is sys.__stderr__ and isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = StatusStream(sys.stderr)


def _take_any_character(stream: TextIO | None) -> TextIO:
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8", errors="backslashreplace")
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    return stream


class StatusStream(io.TextIOWrapper):
    """Drops text that standard error refuses: its reader has ended, or its disk is full."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        super().__init__(
            stream.buffer, encoding=stream.encoding, errors=stream.errors, line_buffering=True
        )
        self._stream = stream  # which would otherwise close the shared buffer

    def write(self, text: str) -> int:
        """Writes text; returns its length."""
        try:
            return super().write(text)
        except OSError:
            self._drop()
            return len(text)

    def flush(self) -> None:
        """Flushes the stream, dropping what it refuses."""
        try:
            super().flush()
        except OSError:
            self._drop()

    def _drop(self) -> None:
        replace_descriptor(self.fileno())


def replace_descriptor(descriptor: int) -> None:
    """Redirects a descriptor to the null device."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


def drop_unwritable_output() -> None:
    """Drops output that standard output refuses, for example on a full disk.

    Python would otherwise retry at exit, and fail with messages of its own.
    """
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):  # a stream without a descriptor, or closed
            replace_descriptor(sys.stdout.fileno())
