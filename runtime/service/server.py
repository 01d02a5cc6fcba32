"""Listens, and stops so that no request that was accepted is lost."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from ipaddress import ip_address
from types import FrameType

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from vlmill.runtime.console.command import print_status
from vlmill.runtime.service.guard import Guard
from vlmill.runtime.service.logs import log, log_libraries
from vlmill.runtime.service.settings import ServiceSettings
from vlmill.runtime.service.shell import Shell
from vlmill.runtime.service.workers import Plan
from vlmill.schemas.errors import InputError

KEEP_ALIVE_SECONDS = 5
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
HEADER_BYTES = 32_768
NO_HTTP_SAID = b'{"error": "this is no request of HTTP/1.1", "reason": "bad_http"}'
NO_HTTP = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(NO_HTTP_SAID), NO_HTTP_SAID)
)


def patient_for(seconds: float) -> type[H11Protocol]:
    """Makes the protocol of connections whose headers have to come within ``seconds``, and on which
    an answer has to go on.
    """

    class Protocol(H11Protocol):
        """Closes a connection on which a request is begun, and not told, for too long; and one
        whose client reads nothing: closing politely would wait for it forever.
        """

        _late: asyncio.TimerHandle | None = None
        _unread: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            between = self.cycle is None or self.cycle.response_complete
            if not between:
                self._rest()
            elif self._late is None:
                self._wait()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._rest()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._unread = self.loop.call_later(seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._read()

        def connection_lost(self, exc: Exception | None) -> None:
            self._rest()
            self._read()
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            # Also where an answer has begun already: then the connection only ends.
            if self.cycle is None or self.cycle.response_complete:
                self.transport.write(NO_HTTP)
            self.transport.close()

        def _wait(self) -> None:
            self._late = self.loop.call_later(seconds, self.transport.abort)

        def _rest(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

        def _read(self) -> None:
            if self._unread is not None:
                self._unread.cancel()
                self._unread = None

    return Protocol


class Server(uvicorn.Server):
    """Says once where it listens, and tells the shell when it is asked to stop."""

    def __init__(self, config: uvicorn.Config, shell: Shell, name: str) -> None:
        super().__init__(config)
        self._shell, self._name = shell, name

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        assert sockets
        host, port = sockets[0].getsockname()[:2]
        display_host = f"[{host}]" if ":" in host else host
        print(f"{self._name}: http://{display_host}:{port}/", flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._shell.is_draining = True
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log("stopping", open_requests=len(self.server_state.tasks))
        await super().shutdown(sockets=sockets)
        log("stopped")


def open_listener(settings: ServiceSettings) -> socket.socket:
    """Opens the socket. Raises InputError for an address that cannot be had."""
    where = f"--host {settings.host} --port {settings.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InputError(f"{where}: {error.strerror}; give an address of this machine") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise InputError(
            f"{where}: {error.strerror}; give an address of this machine and a free port (0 takes "
            "one)"
        ) from None
    return listener


@contextlib.contextmanager
def quiet_signals() -> Iterator[None]:
    """Lets the signals that have stopped the server be forgotten when they are raised again."""
    before = {number: signal.signal(number, lambda *_: None) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_service(
    shell: Shell,
    application: Guard,
    plans: Sequence[Plan],
    name: str,
    *,
    check: Callable[[], None] = lambda: None,
) -> int:
    """Starts the workers, serves until a stop is asked for, and answers what was accepted.

    ``check`` is called when the workers are there. Returns the exit status. Raises InputError for
    an address that cannot be had, and what ``check`` raises and workers that cannot start.
    """
    listener = open_listener(shell.settings)
    host = listener.getsockname()[0]
    is_open = shell.settings.token is None
    application.is_local = is_open and ip_address(host).is_loopback
    if is_open and not application.is_local:
        print_status(f"WARNING: {host} is reached from other machines, and no token is asked for")
    try:
        shell.start(plans)
        check()
        serve(shell, application, listener, name)
    finally:
        listener.close()
        shell.stop()
    return 0


def serve(shell: Shell, application: Guard, listener: socket.socket, name: str) -> None:
    """Serves on a socket until a stop is asked for."""
    settings = shell.settings
    config = uvicorn.Config(
        application,
        http=patient_for(settings.header_seconds),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=settings.max_connections,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(settings.seconds) + 5,
        h11_max_incomplete_event_size=HEADER_BYTES,
        backlog=min(2048, settings.max_connections),
    )
    log_libraries()
    with quiet_signals():
        Server(config, shell, name).run(sockets=[listener])
