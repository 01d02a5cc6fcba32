"""Accepts connections, up to a limit.

The listener of asyncio accepts connections until no file descriptor is left, and then logs a
traceback for each waiting connection. This one keeps descriptors in reserve.
"""

import asyncio
import errno
import socket
from collections.abc import Callable

from vlmill.runtime.service.connections import ACCEPTS, SPARE, Connections, Report
from vlmill.runtime.service.metrics import Metrics
from vlmill.runtime.service.protocol import HttpConnection

BACKLOG = 2_048  # connections that the kernel queues until they are accepted
PAUSE_SECONDS = 0.2  # after an accept error
NO_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Accepts the connections of a listener, and closes idle connections to free a slot for them.

    ``make_protocol`` receives the accepted socket, and whether the connection exceeds the limit.
    """

    def __init__(
        self,
        listener: socket.socket,
        connections: Connections,
        metrics: Metrics,
        make_protocol: Callable[[socket.socket, bool], HttpConnection],
    ) -> None:
        self._listener, self._connections, self._metrics = listener, connections, metrics
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._paused: asyncio.TimerHandle | None = None
        self._errors, self._full = Report("accept_failed"), Report("connections_full")

    def start(self) -> None:
        """Starts to accept connections."""
        self._listener.listen(BACKLOG)
        self._listener.setblocking(False)
        self._resume()

    async def stop(self) -> None:
        """Stops accepting; returns when every accepted connection has its protocol."""
        self._loop.remove_reader(self._listener.fileno())
        if self._paused is not None:
            self._paused.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def accept(self) -> None:
        """Accepts up to ``ACCEPTS`` waiting connections."""
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
        """Pauses; if the system has run out of a resource, closes an idle connection to free it."""
        self._metrics.accept_errors.inc()
        self._errors.add(error=error.strerror or type(error).__name__)
        if error.errno in NO_RESOURCES:
            self._close_idle()
        # Without a pause the same error would return immediately and use all of the CPU time.
        self._loop.remove_reader(self._listener.fileno())
        self._paused = self._loop.call_later(PAUSE_SECONDS, self._resume)

    def _close_idle(self) -> bool:
        is_closed = self._connections.close_oldest_idle()
        if is_closed:
            self._metrics.closed.labels(reason="idle").inc()
        return is_closed

    def _admit(self, accepted: socket.socket) -> None:
        is_spare = False
        if self._connections.is_full:
            self._full.add(connections=len(self._connections), limit=self._connections.limit)
            is_spare = not self._close_idle()
        if is_spare and len(self._connections) >= self._connections.limit + SPARE:
            self._metrics.closed.labels(reason="full").inc()
            accepted.close()
            return
        accepted.setblocking(False)
        # Counted before its transport exists: the next accepted connection has to see it.
        connection = self._make_protocol(accepted, is_spare)
        self._connections.open(connection)
        task = self._loop.create_task(self._connect(accepted, connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, accepted: socket.socket, connection: HttpConnection) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: connection, accepted)
        except OSError:  # the client has already closed it
            self._connections.close(connection)
            accepted.close()
