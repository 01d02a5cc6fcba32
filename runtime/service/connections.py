"""Connections are counted, and those without a request are closed where there are too many."""

import os
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from vlmill.runtime.service.logs import log
from vlmill.schemas.errors import InputError

CONNECTION = "vlmill.connection"  # in a request's state
SPARE = 32  # connections over the limit, for those who ask how the service is
# Descriptors that connections leave: for the spare ones, for pipes to workers and files, and for
# connections that were accepted before those that they replace are closed.
ACCEPTS = 16  # before other events have their turn
RESERVED = 2 * SPARE + 2 * ACCEPTS
REPORT_SECONDS = 60.0


class ClientConnection(Protocol):
    """What a connection does for the requests that come by it."""

    @property
    def is_spare(self) -> bool:
        """Whether it is one over the limit."""

    @property
    def is_malformed(self) -> bool:
        """Whether it was answered with 400, and is closed."""

    def begin_request(self) -> None:
        """Is called when a request's headers have come."""

    def begin_answer(self) -> None:
        """Is called when an answer's headers are sent."""

    def end_request(self) -> None:
        """Is called when a request is answered, or given up."""

    def has_sent(self) -> bool:
        """Returns whether something of the client's waits to be read."""

    def close_idle(self) -> None:
        """Closes the connection, on which there is no request."""


class Connections:
    """Knows all open connections, and which of them have no request.

    ``SILENT`` ones have sent nothing, ``PARTIAL`` ones a part of a request's headers, and ``KEPT``
    ones wait for the next request; in this order, and of each kind the oldest first, they are
    closed where there is no room.
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
        """Whether there are as many as there may be."""
        return len(self._open) >= self.limit

    @property
    def is_over(self) -> bool:
        """Whether there are more than there may be."""
        return len(self._open) > self.limit

    def open(self, connection: ClientConnection) -> None:
        """Adds a connection."""
        self._open.add(connection)
        self.rest(connection, self.SILENT)

    def rest(self, connection: ClientConnection, kind: int) -> None:
        """Notes that a connection has no request, unless it is being closed."""
        if connection in self._open and connection not in self._idle[kind]:
            self.work(connection)
            self._idle[kind][connection] = None

    def work(self, connection: ClientConnection) -> None:
        """Notes that a connection has a request."""
        for kind in self._idle:
            kind.pop(connection, None)

    def close(self, connection: ClientConnection) -> None:
        """Removes a connection."""
        self.work(connection)
        self._open.discard(connection)

    def close_oldest_idle(self) -> bool:
        """Closes the first of those without a request; returns whether there was one."""
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
    """Logs what may happen a thousand times a second: one line a minute, with its number."""

    def __init__(
        self,
        event: str,
        clock: Callable[[], float] = time.monotonic,
        seconds: float = REPORT_SECONDS,
    ) -> None:
        self._event, self._clock, self._seconds = event, clock, seconds
        self._num, self._next = 0, float("-inf")

    def add(self, **fields: object) -> None:
        """Counts it, and logs it with ``fields`` if that is due."""
        self._num += 1
        if self._clock() >= self._next:
            log(self._event, times=self._num, **fields)
            self._num, self._next = 0, self._clock() + self._seconds


def raise_descriptor_limit(max_connections: int) -> int:
    """Lets this process open files for ``max_connections``, as far as it may; returns for how many
    it can. Raises InputError where that is next to none.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_open = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 64
    wanted = max_connections + num_open + RESERVED
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    if soft == resource.RLIM_INFINITY:
        return max_connections
    num_possible = min(max_connections, soft - num_open - RESERVED)
    if num_possible < 1:
        raise InputError(
            f"--max-connections {max_connections}: this process may open {soft} files, too few for "
            f"a service; raise its limit to {wanted} (ulimit -n {wanted})"
        )
    return num_possible
