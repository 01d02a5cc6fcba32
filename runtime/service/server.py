"""Listens, and stops so that no request that was accepted is lost."""

import contextlib
import gc
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from ipaddress import ip_address
from types import FrameType

import uvicorn

from vlmill.runtime.console.command import print_status
from vlmill.runtime.console.memory import return_large_blocks
from vlmill.runtime.service.accepting import Acceptor
from vlmill.runtime.service.connections import RESERVED, Connections, raise_descriptor_limit
from vlmill.runtime.service.guard import Guard
from vlmill.runtime.service.logs import log, log_libraries, log_standard_error
from vlmill.runtime.service.protocol import HttpConnection, probe_uvicorn
from vlmill.runtime.service.settings import ServiceSettings
from vlmill.runtime.service.shell import Shell
from vlmill.runtime.service.workers import Plan
from vlmill.schemas.errors import InputError

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
        await super().startup(sockets=[])  # none that uvicorn accepts from
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
    """Serves on a socket until a stop is asked for."""
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
