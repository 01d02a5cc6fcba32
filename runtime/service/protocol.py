"""Implements HTTP/1.1 on a connection: uvicorn's protocol with timeouts, limits and half-closed
clients.

Two parts of uvicorn that it does not document are used: the attribute ``conn``, the connection's
state in h11, and the method ``send_400_response``. :func:`probe_uvicorn` tests both. Without
``conn``, half-closed connections are closed, as uvicorn does; without ``send_400_response``,
uvicorn sends its own response to invalid HTTP.
"""

import asyncio
import logging
import socket
import sys
from contextlib import suppress
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from vlmill.runtime.service.connections import CONNECTION, Connections
from vlmill.runtime.service.metrics import Metrics

NO_HTTP_SAID = b'{"error": "this is not an HTTP/1.1 request", "reason": "bad_http"}'
NO_HTTP = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(NO_HTTP_SAID), NO_HTTP_SAID)
)
ASK_SECONDS = 1.0  # between two checks whether a half-closed client still exists
LARGEST_COPY = 2**16  # bytes of a body that are copied after the headers
TCP_CLOSE = 7  # the state of a reset connection in TCP_INFO, on Linux


class HttpConnection(H11Protocol):
    """Handles a client's connection.

    It is closed if the headers of a request take too long, or if the client does not read the
    response: a regular close would wait for such a client forever. A client that has closed its
    sending direction receives its response.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        connections: Connections,
        metrics: Metrics,
        *,
        seconds: float,
        accepted: socket.socket | None = None,
        is_spare: bool = False,
        keeps_half_closed: bool = True,
    ) -> None:
        super().__init__(config, server_state, {CONNECTION: self})
        self._all, self._metrics, self._seconds = connections, metrics, seconds
        self._accepted = accepted
        self._is_spare, self._is_closed, self._is_malformed = is_spare, False, False
        self._keeps_half_closed, self._is_half_closed = keeps_half_closed, False
        self._num_requests, self._is_answering = 0, False
        self._late: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._asking: asyncio.TimerHandle | None = None

    # Called by the transport.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._writer = AnswerWriter(transport)
        super().connection_made(self._writer)
        if self._is_closed:  # to free a slot, before it had a transport
            transport.abort()
        else:
            self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        if not self._num_requests:
            self._all.rest(self, Connections.PARTIAL)
            self._wait_for_headers()
        super().data_received(data)

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Keeps the connection open if a complete request has no response yet."""
        if not self._keeps_half_closed or not self._owes_answer():
            return None
        self._is_half_closed = True
        if self._asking is None:
            self._asking = self.loop.call_later(ASK_SECONDS, self._ask_whether_there)
        return True

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self._seconds, self._let_go, "unread")

    def resume_writing(self) -> None:
        super().resume_writing()
        stop_timer(self._unread)
        self._unread = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.close(self)
        for timer in (self._late, self._unread, self._asking):
            stop_timer(timer)
        super().connection_lost(exc)

    # Called by the guard and the acceptor.

    @property
    def is_spare(self) -> bool:
        """Returns whether the connection exceeds the limit."""
        return self._is_spare and self._all.is_over

    @property
    def is_malformed(self) -> bool:
        """Returns whether the client sent invalid HTTP: it got 400 and is being closed."""
        return self._is_malformed

    def begin_request(self) -> None:
        """Ends the timeout of the headers."""
        self._num_requests += 1
        self._is_answering = False
        stop_timer(self._late)
        self._late = None
        self._all.work(self)

    def begin_answer(self) -> None:
        """Notes that nothing may be sent before the response, which begins with the next write."""
        self._is_answering = True
        self._writer.hold_next()

    def end_request(self) -> None:
        """Marks the connection as idle, or closes it if no further request can arrive."""
        self._num_requests -= 1
        if self._num_requests:
            return
        self._is_answering = False
        if self._is_half_closed and not self._owes_answer():
            self.transport.close()
        self._all.rest(self, Connections.KEPT)

    def has_sent(self) -> bool:
        """Returns whether the client has sent bytes that have not been read yet."""
        if self._accepted is None:
            return False
        try:
            return bool(self._accepted.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:  # no bytes yet, or a closed socket
            return False

    def close_idle(self) -> None:
        """Closes the connection, which has no request."""
        self._is_closed = True
        if self.transport is not None:
            self.transport.abort()

    # Called by uvicorn.

    def send_400_response(self, msg: str) -> None:
        """Sends a response to invalid HTTP, unless another has begun, and closes the connection."""
        if not self._is_answering:
            self._is_malformed = True
            self.transport.write(NO_HTTP)
        self._metrics.closed.labels(reason="bad_http").inc()
        self.transport.close()

    # Timeouts.

    def _wait_for_headers(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(self._seconds, self._let_go, "late")

    def _let_go(self, reason: str) -> None:
        self._metrics.closed.labels(reason=reason).inc()
        self.transport.abort()

    def _owes_answer(self) -> bool:
        has_all = self.conn.their_state in (h11.DONE, h11.MUST_CLOSE)
        return has_all and self.conn.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY)

    def _ask_whether_there(self) -> None:
        """Closes the connection if the client has closed both directions.

        That cannot be distinguished from a client that has closed only its sending direction until
        something is sent, which the system of a closed client answers with a reset. An interim
        response is sent, which every client has to skip (RFC 9110, 15.2).
        """
        self._asking = None
        if self.transport.is_closing():
            return
        if is_reset(self.transport.get_extra_info("socket")):
            self._let_go("gone")
            return
        if not self._is_answering and self.conn.their_http_version != b"1.0":
            with suppress(h11.LocalProtocolError):  # the response has begun
                interim = h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
                self.transport.write(self.conn.send(interim) or b"")
        self._asking = self.loop.call_later(ASK_SECONDS, self._ask_whether_there)


class AnswerWriter(asyncio.Transport):
    """Writes the headers of a response together with the beginning of its body: one system call."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport, self._held, self._holds_next = transport, b"", False

    def hold_next(self) -> None:
        """Holds the next data until other data are written."""
        self._holds_next = True

    def write(self, data: Any) -> None:
        """Writes data, after those that were held."""
        if self._holds_next:
            self._held, self._holds_next = data, False
            return
        held, self._held = self._held, b""
        if held and len(data) > LARGEST_COPY:
            self._transport.write(held)
            held = b""
        self._transport.write(held + data if held else data)

    def close(self) -> None:
        """Writes what was held, and closes the connection."""
        if self._held:
            self.write(b"")
        self._transport.close()

    def abort(self) -> None:
        """Closes the connection without what was held."""
        self._transport.abort()

    def is_closing(self) -> bool:
        """Returns whether the connection is being closed."""
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        """Stops to receive data."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Receives data again."""
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Returns the socket or an address."""
        return self._transport.get_extra_info(name, default)


def stop_timer(timer: asyncio.TimerHandle | None) -> None:
    """Cancels a timer, if there is one."""
    if timer is not None:
        timer.cancel()


def is_reset(connection: socket.socket) -> bool:
    """Returns whether the peer has reset a connection; always False except on Linux."""
    if sys.platform != "linux":
        return False
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == TCP_CLOSE


class ProbeTransport(asyncio.Transport):
    """Records the written bytes, for :func:`probe_uvicorn`."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.is_closed = b"", False

    def write(self, data: Any) -> None:
        """Records the data."""
        self.written += data

    def close(self) -> None:
        """Records that the transport was closed."""
        self.is_closed = True

    def is_closing(self) -> bool:
        """Returns whether it was closed."""
        return self.is_closed

    def pause_reading(self) -> None:
        """Does nothing."""

    def resume_reading(self) -> None:
        """Does nothing."""


def probe_uvicorn(config: uvicorn.Config) -> list[str]:
    """Returns which of ``conn`` and ``send_400_response`` do not work in this version of uvicorn.

    Needs a running event loop.
    """

    def connect() -> tuple[HttpConnection, ProbeTransport]:
        connection = HttpConnection(
            config, ServerState(), Connections(1), Metrics(), seconds=60, keeps_half_closed=False
        )
        transport = ProbeTransport()
        connection.logger = logging.getLogger("vlmill.probe")
        connection.logger.disabled = True  # the invalid request below is not a client's
        connection.connection_made(transport)
        return connection, transport

    lacking = []
    malformed, transport = connect()
    malformed.data_received(b"\0\r\n\r\n")
    if not malformed.is_malformed or transport.written != NO_HTTP or not transport.is_closed:
        lacking.append("send_400_response")
    malformed.connection_lost(None)
    begun, _ = connect()
    begun.data_received(
        b"POST / HTTP/1.1\r\nhost: probe\r\n"
    )  # incomplete: the application is not called
    states = getattr(begun, "conn", None)
    if (getattr(states, "their_state", None), getattr(states, "our_state", None)) != (
        h11.IDLE,
        h11.IDLE,
    ):
        lacking.append("conn")
    begun.connection_lost(None)
    return lacking
