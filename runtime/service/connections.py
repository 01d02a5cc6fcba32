"""Counts connections, and closes idle ones when there are too many."""

import os
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from vlmill.runtime.service.logs import log
from vlmill.schemas.errors import InputError

CONNECTION = "vlmill.connection"  # the key of the connection in the state of a request
SPARE = 32  # connections above the limit, for health checks
ACCEPTS = 16  # connections accepted in one iteration of the event loop
# File descriptors that ordinary connections may not use: they are for the spare connections, for
# pipes to workers, files, and connections accepted before older ones have been
# closed.
RESERVED = 2 * SPARE + 2 * ACCEPTS
REPORT_SECONDS = 60.0


class ClientConnection(Protocol):
    """Defines a client's connection for the guard and the acceptor."""

    @property
    def is_spare(self) -> bool:
        """Returns whether the connection exceeds the limit."""

    @property
    def is_malformed(self) -> bool:
        """Returns whether the client sent invalid HTTP: it got 400 and is being closed."""

    def begin_request(self) -> None:
        """Called when the headers of a request have arrived."""

    def begin_answer(self) -> None:
        """Called when the headers of a response are sent."""

    def end_request(self) -> None:
        """Called when a request has its response, or is abandoned."""

    def has_sent(self) -> bool:
        """Returns whether the client has sent bytes that have not been read yet."""

    def close_idle(self) -> None:
        """Closes the connection, which has no request."""


class Connections:
    """Tracks all open connections and which of them are idle, that is, have no request.

    An idle connection is ``SILENT`` (it has sent nothing), ``PARTIAL`` (it has sent a part of the
    headers) or ``KEPT`` (it waits for its next request). Connections are closed in this order, the
    oldest of each kind first.
    """

    SILENT, PARTIAL, KEPT = range(3)

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._open: set[ClientConnection] = set()
        self._idle: tuple[dict[ClientConnection, None], ...] = ({}, {}, {})

    def __len__(self) -> int:
        return len(self._open)

    @property
    def is_full(self) -> bool:
        """Returns whether the number of connections has reached the limit."""
        return len(self._open) >= self.limit

    @property
    def is_over(self) -> bool:
        """Returns whether the number of connections exceeds the limit."""
        return len(self._open) > self.limit

    def open(self, connection: ClientConnection) -> None:
        """Adds a connection."""
        self._open.add(connection)
        self.rest(connection, self.SILENT)

    def rest(self, connection: ClientConnection, kind: int) -> None:
        """Marks a connection as idle, unless it is being closed."""
        if connection in self._open and connection not in self._idle[kind]:
            self.work(connection)
            self._idle[kind][connection] = None

    def work(self, connection: ClientConnection) -> None:
        """Marks a connection as busy."""
        for kind in self._idle:
            kind.pop(connection, None)

    def close(self, connection: ClientConnection) -> None:
        """Removes a connection."""
        self.work(connection)
        self._open.discard(connection)

    def close_oldest_idle(self) -> bool:
        """Closes the first idle connection; returns whether there was one."""
        for kind in self._idle:
            for connection in list(kind):
                if kind is self._idle[self.SILENT] and connection.has_sent():
                    self.rest(connection, self.PARTIAL)
                    continue
                self.close(connection)
                connection.close_idle()
                return True
        return False


class Report:
    """Logs a frequent event at most once a minute, with the number of times it happened."""

    def __init__(
        self,
        event: str,
        clock: Callable[[], float] = time.monotonic,
        seconds: float = REPORT_SECONDS,
    ) -> None:
        self._event, self._clock, self._seconds = event, clock, seconds
        self._num, self._next = 0, float("-inf")

    def add(self, **fields: object) -> None:
        """Counts the event, and logs it with ``fields`` if the last line is a minute old."""
        self._num += 1
        if self._clock() >= self._next:
            log(self._event, times=self._num, **fields)
            self._num, self._next = 0, self._clock() + self._seconds


def raise_descriptor_limit(max_connections: int, reserved: int = RESERVED) -> int:
    """Raises the number of files that this process may open, as far as needed and allowed.

    Returns the number of connections that it allows, at most ``max_connections``, with ``reserved``
    files for other uses. Raises InputError if it allows none.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_open = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 64
    needed_files = max_connections + num_open + reserved
    if soft != resource.RLIM_INFINITY and soft < needed_files:
        limit = needed_files if hard == resource.RLIM_INFINITY else min(needed_files, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            soft = limit
    if soft == resource.RLIM_INFINITY:
        return max_connections
    num_possible = min(max_connections, soft - num_open - reserved)
    if num_possible < 1:
        raise InputError(
            f"--max-connections {max_connections}: this process may open {soft} files, too few for "
            f"a service; raise its limit to {needed_files} (ulimit -n {needed_files})"
        )
    return num_possible
