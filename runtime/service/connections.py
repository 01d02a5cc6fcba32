"""Connections are accepted, counted, and closed where there are too many.

asyncio's own listener accepts until no descriptor is left, and then writes a traceback for each
connection that waits. This one keeps some in reserve.
"""

import asyncio
import os
import resource
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from vlmill.runtime.service.logs import log
from vlmill.runtime.service.metrics import Metrics
from vlmill.schemas.errors import InputError

CONNECTION = "vlmill.connection"  # in a request's state
SPARE = 32  # connections over the limit, for those who ask how the service is
# Descriptors that connections leave: for the spare ones, for pipes to workers and files, and for
# connections that were accepted before those that they replace are closed.
ACCEPTS = 16  # before other events have their turn
RESERVED = 2 * SPARE + 2 * ACCEPTS
BACKLOG = 2_048  # connections that the system holds until they are accepted
PAUSE_SECONDS = 0.2  # after an accept error
REPORT_SECONDS = 60.0


class ClientConnection(Protocol):
    """What a connection does for the requests that come by it."""

    is_spare: bool  # over the limit
    is_malformed: bool  # it was answered with 400, and is closed

    def begin_request(self) -> None:
        """Is called when a request's headers have come."""

    def begin_answer(self) -> None:
        """Is called when an answer's headers are sent."""

    def end_request(self) -> None:
        """Is called when a request is answered, or given up."""

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
            for connection in kind:
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


class Acceptor:
    """Accepts connections of a listener, and makes room for them.

    ``make_protocol`` is called with whether a connection is over the limit.
    """

    def __init__(
        self,
        listener: socket.socket,
        connections: Connections,
        metrics: Metrics,
        make_protocol: Callable[[bool], asyncio.Protocol],
    ) -> None:
        self._listener, self._connections, self._metrics = listener, connections, metrics
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._paused: asyncio.TimerHandle | None = None
        self._errors, self._full = Report("accept_failed"), Report("connections_full")

    def start(self) -> None:
        """Begins to accept."""
        self._listener.listen(BACKLOG)
        self._listener.setblocking(False)
        self._resume()

    async def stop(self) -> None:
        """Accepts no more; returns when the last connection has its protocol."""
        self._loop.remove_reader(self._listener.fileno())
        if self._paused is not None:
            self._paused.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def accept(self) -> None:
        """Accepts a few of those that wait."""
        for _ in range(ACCEPTS):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._fail(error)
                return
            self._admit(connection)

    def _resume(self) -> None:
        self._paused = None
        self._loop.add_reader(self._listener.fileno(), self.accept)

    def _fail(self, error: OSError) -> None:
        """Closes an idle connection, whose descriptor the next one gets, and waits a little."""
        self._metrics.accept_errors.inc()
        self._errors.add(error=error.strerror or type(error).__name__)
        self._close_idle()
        # The system would report the same at once, and the processor would do nothing else.
        self._loop.remove_reader(self._listener.fileno())
        self._paused = self._loop.call_later(PAUSE_SECONDS, self._resume)

    def _close_idle(self) -> bool:
        is_closed = self._connections.close_oldest_idle()
        if is_closed:
            self._metrics.closed.labels(reason="idle").inc()
        return is_closed

    def _admit(self, connection: socket.socket) -> None:
        is_spare = False
        if len(self._connections) + len(self._tasks) >= self._connections.limit:
            self._full.add(connections=len(self._connections), limit=self._connections.limit)
            is_spare = not self._close_idle()
        if is_spare and len(self._connections) >= self._connections.limit + SPARE:
            self._metrics.closed.labels(reason="full").inc()
            connection.close()
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._connect(connection, is_spare))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, connection: socket.socket, is_spare: bool) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._make_protocol(is_spare), connection
            )
        except OSError:  # it has gone already
            connection.close()


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
