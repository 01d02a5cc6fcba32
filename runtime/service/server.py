"""Listens, and stops without losing an accepted request.

Connections are accepted up to a limit. The listener of asyncio accepts connections until no file
descriptor is left, and then logs a traceback for each waiting connection. This one keeps
descriptors in reserve.
"""

import asyncio
import contextlib
import errno
import gc
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from ipaddress import ip_address
from types import FrameType

import uvicorn

from vlmill.runtime.console.command import print_status
from vlmill.runtime.memory import return_large_blocks
from vlmill.runtime.service.connections import (
    ACCEPTS,
    RESERVED,
    SPARE,
    Connections,
    Report,
    raise_descriptor_limit,
)
from vlmill.runtime.service.guard import Guard
from vlmill.runtime.service.logs import log, log_libraries, log_standard_error
from vlmill.runtime.service.metrics import Metrics
from vlmill.runtime.service.protocol import HttpConnection, probe_uvicorn
from vlmill.runtime.service.settings import ServiceSettings
from vlmill.runtime.service.shell import Shell
from vlmill.runtime.service.workers import Plan
from vlmill.schemas.errors import InputError

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


KEEP_ALIVE_SECONDS = 5
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
HEADER_BYTES = 32_768


class Server(uvicorn.Server):
    """Prints the address once it listens, and notifies the shell when it should stop."""

    def __init__(
        self, config: uvicorn.Config, shell: Shell, listener: socket.socket, name: str
    ) -> None:
        super().__init__(config)
        self._shell, self._listener, self._name = shell, listener, name
        self._acceptor: Acceptor | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])  # uvicorn accepts from none
        shell, lacking = self._shell, probe_uvicorn(self.config)
        if lacking:
            log("uvicorn_differs", version=uvicorn.__version__, lacks=lacking)
        limit = raise_descriptor_limit(shell.settings.max_connections, RESERVED + shell.max_fetches)
        if limit < shell.settings.max_connections:
            log("connections_limited", limit=limit, why="the number of files a process may open")
        connections = Connections(limit)
        shell.metrics.watch("connections", "Open connections.", lambda: len(connections))

        def make_protocol(accepted: socket.socket, is_spare: bool) -> HttpConnection:
            return HttpConnection(
                self.config,
                self.server_state,
                connections,
                shell.metrics,
                seconds=shell.settings.header_seconds,
                accepted=accepted,
                is_spare=is_spare,
                keeps_half_closed="conn" not in lacking,
            )

        self._acceptor = Acceptor(self._listener, connections, shell.metrics, make_protocol)
        self._acceptor.start()
        host, port = self._listener.getsockname()[:2]
        display_host = f"[{host}]" if ":" in host else host
        print(f"{self._name}: http://{display_host}:{port}/", flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._shell.is_draining = True
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log("stopping", open_requests=len(self.server_state.tasks))
        if self._acceptor is not None:
            await self._acceptor.stop()
        await super().shutdown(sockets=[self._listener])
        log("stopped")


def open_listener(settings: ServiceSettings) -> socket.socket:
    """Opens the socket. Raises InputError for an address that is not available."""
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
    """Ignores the signals that have stopped the server when they are raised again."""
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
    """Starts the workers, serves until a signal, and responds to all accepted requests.

    ``check`` is called when the workers are ready. Returns the exit status. Raises InputError for
    an address that is not available, the errors of ``check``, and those of workers that cannot
    start.
    """
    listener = open_listener(shell.settings)
    host = listener.getsockname()[0]
    is_open = shell.settings.token is None
    application.is_local = is_open and ip_address(host).is_loopback
    if is_open and not application.is_local:
        print_status(
            f"WARNING: {host} can be reached from other machines, and no token is required; give "
            f"--token-file"
        )
    try:
        shell.start(plans)
        check()
        serve(shell, application, listener, name)
    finally:
        listener.close()
        shell.stop()
    return 0


def serve(shell: Shell, application: Guard, listener: socket.socket, name: str) -> None:
    """Serves on a socket until a stop is requested."""
    settings = shell.settings
    config = uvicorn.Config(
        application,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(settings.seconds) + 5,
        h11_max_incomplete_event_size=HEADER_BYTES,
    )
    log_libraries()
    return_large_blocks()
    # Loaded objects stay, so garbage collections only visit connections and requests.
    gc.collect()
    gc.freeze()
    with quiet_signals(), log_standard_error():
        Server(config, shell, listener, name).run(sockets=[])
