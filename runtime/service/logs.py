"""Writes the log of a service: one JSON object per line, on standard error.

Logging never blocks and never raises, because a thread writes the lines. If the disk is full or
standard error is not read, lines are dropped and counted.
"""

import contextlib
import functools
import io
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

QUEUE_BYTES = 4 * 2**20  # of waiting lines
WRITE_BYTES = 2**16  # in one call: the capacity of a pipe
PAUSE_SECONDS = 0.01  # before lines are written: at a high rate one wake-up for many lines
LONGEST_LINE = 8_192  # characters of standard error without a line break
STANDARD_ERROR = 2
ENCODER = json.JSONEncoder(default=str)


class LineWriter:
    """Writes lines to a file descriptor from a thread, which is started by the first line.

    A line is dropped if the queue is full or if it cannot be written. The next successful write
    includes a line with the number of dropped lines.
    """

    def __init__(self, descriptor: int, max_bytes: int = QUEUE_BYTES) -> None:
        self._descriptor, self._max_bytes = descriptor, max_bytes
        self._lines: deque[bytes] = deque()
        self._num_bytes = 0
        self._is_writing, self._is_idle = False, False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self.num_dropped = 0

    def put(self, line: bytes) -> None:
        """Queues a line, which includes its line break."""
        with self._changed:
            if self._num_bytes + len(line) > self._max_bytes or not self._has_thread():
                self.num_dropped += 1
                return
            self._lines.append(line)
            self._num_bytes += len(line)
            if self._is_idle:
                self._is_idle = False
                self._changed.notify_all()

    def flush(self, seconds: float) -> bool:
        """Waits for up to ``seconds`` until all lines are written; returns whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._lines and not self._is_writing, seconds)

    def _has_thread(self) -> bool:
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._write, name="logging", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system has no more threads
                return False
            self._thread = thread
        return True

    def _write(self) -> None:
        num_reported, is_cut = 0, False
        while True:
            with self._changed:
                self._is_idle = not self._lines
                self._changed.wait_for(lambda: bool(self._lines))
            time.sleep(PAUSE_SECONDS)
            with self._changed:
                lines = self._take()
                num_dropped = self.num_dropped
            data = b"".join(lines)
            if num_dropped > num_reported:
                data = encode_line("log_dropped", lines=num_dropped - num_reported) + data
            # A full disk may have cut the previous line: end it before the next one.
            data = b"\n" + data if is_cut else data
            num_written, is_whole = write_all(self._descriptor, data)
            if is_whole:
                num_reported, is_cut = num_dropped, False
            elif num_written:
                is_cut = True
            with self._changed:
                self.num_dropped += 0 if is_whole else len(lines)
                self._is_writing = False
                self._changed.notify_all()

    def _take(self) -> list[bytes]:
        lines, size = list[bytes](), 0
        while self._lines and (not lines or size + len(self._lines[0]) <= WRITE_BYTES):
            lines.append(self._lines.popleft())
            size += len(lines[-1])
        self._num_bytes -= size
        self._is_writing = True
        return lines


def write_all(descriptor: int, data: bytes) -> tuple[int, bool]:
    """Writes bytes; returns how many were written, and whether all were."""
    num_written = 0
    try:
        while num_written < len(data):
            num_written += os.write(descriptor, data[num_written:])
    except OSError:  # a full disk, a pipe without a reader, a closed descriptor
        return num_written, False
    return num_written, True


WRITER = LineWriter(STANDARD_ERROR)


def log(event: str, **fields: Any) -> None:
    """Writes a line with the time, the event and the fields."""
    WRITER.put(encode_line(event, **fields))


def flush_log(seconds: float = 1.0) -> None:
    """Waits for up to ``seconds`` until the log is written."""
    WRITER.flush(seconds)


def encode_line(event: str, **fields: Any) -> bytes:
    """Returns the line of an event, with its line break."""
    now = time.time()
    stamp = f"{format_second(int(now))}.{int(now % 1 * 1000):03d}Z"
    try:
        line = ENCODER.encode({"time": stamp, "event": event, **fields})
    except (ValueError, TypeError, RecursionError):  # for example, a field that contains itself
        line = json.dumps({"time": stamp, "event": event, "not_json": sorted(fields)})
    return line.encode() + b"\n"


@functools.lru_cache(maxsize=1)
def format_second(second: int) -> str:
    """Returns the date and time of a second since 1970, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


class LogStream(io.TextIOBase):
    """Turns text written to it into lines of the log: a standard error that never blocks."""

    def __init__(self) -> None:
        self._rest, self._lock = "", threading.Lock()

    def writable(self) -> bool:
        """Returns True."""
        return True

    def write(self, text: str) -> int:
        """Logs the complete lines."""
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
            if len(self._rest) > LONGEST_LINE:
                lines.append(self._rest)
                self._rest = ""
        for line in lines:
            if line.strip():
                log("stderr", message=line)
        return len(text)


@contextlib.contextmanager
def log_standard_error() -> Iterator[None]:
    """Logs everything that Python code writes to standard error inside the context."""
    with contextlib.redirect_stderr(LogStream()):
        try:
            yield
        finally:
            flush_log()


class JsonLines(logging.Handler):
    """Writes the records of libraries like other lines."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            fields = {"logger": record.name, "level": record.levelname.lower()}
            if record.exc_info:
                fields["trace"] = logging.Formatter().formatException(record.exc_info)
            log("log", message=record.getMessage(), **fields)
        except Exception:  # for example, a message that does not fit its arguments
            self.handleError(record)


def log_libraries() -> None:
    """Logs warnings and errors of the serving libraries as such lines."""
    root = logging.getLogger()
    root.handlers = [JsonLines(logging.WARNING)]
    # It would repeat the response's message for every invalid form.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
