"""Defines the guarded HTTP client: many simultaneous requests, none of them to a private address.

It is built on libcurl's multi interface (pycurl), which costs less than half of urllib3 per
response (``benchmarks/crawl.py``) and calls back before it opens a socket. Names are resolved
separately (``names.py``).
"""

import os
import select
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import certifi
import pycurl

from vlmill.runtime.net.addresses import is_web_address
from vlmill.runtime.net.exchange import Answer, ClientSettings, Request, user_agent
from vlmill.runtime.net.names import LookupOutcome, Names, dns_lookup
from vlmill.runtime.net.transfer import Transfer, host_to_look_up, usable_url
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason, Rejected

_EVENTS = 256  # sockets to serve before answers are read


class Client:
    """Runs up to ``settings.connections`` simultaneous requests over persistent connections.

    Not thread-safe. Redirects are answers: the caller decides whether and when to request their
    target.

    Example::

        with Client(ClientSettings(contact="me@example.org")) as client:
            client.start(Request(url="https://example.org/a.jpg"))
            while client.num_running:
                for answer in client.wait(timeout=1.0):
                    ...
    """

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._user_agent, self._ca_file = user_agent(settings.contact), ca_file(settings)
        self._epoll = select.epoll()
        self._bell = Wakeup()
        self._epoll.register(self._bell.fd, select.EPOLLIN)
        self._names = Names(
            settings.names or dns_lookup(), patience=settings.connect_seconds, wake=self._bell.ring
        )
        self._nameless: dict[str, list[tuple[Request, str]]] = {}  # by host, while it is looked up
        self._fds: set[int] = set()
        self._timer: float | None = None  # when libcurl must be called, monotonic
        self._running: dict[Any, Transfer] = {}
        self._idle: list[Transfer] = []
        self._answers: list[Answer] = []
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._on_socket)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._on_timer)
        self._multi.setopt(pycurl.M_MAXCONNECTS, 2 * settings.connections)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def num_running(self) -> int:
        """Returns the number of started requests that :meth:`wait` has not answered yet."""
        num_nameless = sum(map(len, self._nameless.values()))
        return len(self._running) + num_nameless + len(self._answers)

    @property
    def num_free(self) -> int:
        """Returns how many more requests may be started."""
        return self.settings.connections - self.num_running

    def start(self, request: Request) -> None:
        """Starts a request; a later :meth:`wait` returns its answer, also for a refused URL.

        Raises RuntimeError if ``num_free`` is 0.
        """
        if self.num_free <= 0:
            raise RuntimeError(f"{self.num_running} requests are running, the most allowed")
        try:
            url = usable_url(request.url)
        except Rejected as why:
            self._refuse(request, why.reason, why.detail)
            return
        host = host_to_look_up(url)
        if host is None:
            self._begin_at_address(request, url)
        elif outcome := self._names.remembered(host):
            self._go_on(request, url, outcome)
        else:
            if host not in self._nameless:
                self._names.ask(host)
            self._nameless.setdefault(host, []).append((request, url))

    def wait(self, timeout: float) -> list[Answer]:
        """Returns the answers since the last call; waits up to ``timeout`` seconds for the first.

        The list is empty if none arrived in time, or none is running. Raises OSError if this
        machine runs out of files or memory.
        """
        end = time.monotonic() + timeout
        while self._running or self._nameless:
            # Running requests continue also while refused URLs are answered.
            self._serve(0.0 if self._answers else self._seconds_until(end))
            self._name()
            self._collect()
            if self._answers or time.monotonic() >= end:
                break
        answers, self._answers = self._answers, []
        return answers

    def close(self) -> None:
        """Aborts running requests without answers, and closes all connections."""
        for curl in self._running:
            self._multi.remove_handle(curl)
        for transfer in (*self._running.values(), *self._idle):
            transfer.curl.close()
        self._running, self._idle, self._nameless = {}, [], {}
        self._names.close()
        self._multi.close()
        self._epoll.close()
        self._bell.close()

    def _refuse(self, request: Request, reason: Reason, detail: str) -> None:
        """Adds an answer without a request."""
        answer = Answer(request=request, failure=reason, detail=detail, started=time.time())
        self._answers.append(answer)

    def _go_on(self, request: Request, url: str, outcome: LookupOutcome) -> None:
        """Starts requests with known addresses, or answers with the reason for having none.

        A proxy may know names that are unknown here.
        """
        proxy = self._choose_proxy(url)
        if proxy is not None and not self._all_of_the_web(outcome.addresses):
            detail = f"{outcome.host} has the address {outcome.addresses[0]}, not of the web"
            self._refuse(request, Reason.BAD_ADDRESS, detail)
        elif proxy is not None:
            self._begin(request, url, (), proxy)
        elif outcome.addresses:
            self._begin(request, url, outcome.addresses)
        else:
            reason = Reason.TIMED_OUT if outcome.is_late else Reason.UNKNOWN_HOST
            self._refuse(request, reason, f"{outcome.host}: {outcome.why}")

    def _begin_at_address(self, request: Request, url: str) -> None:
        """Starts a request to an address, which a proxy gets only if it is of the web."""
        proxy = self._choose_proxy(url)
        address = (urlsplit(url).hostname or "") if proxy is not None else ""
        if proxy is not None and not self._all_of_the_web((address,)):
            self._refuse(request, Reason.BAD_ADDRESS, f"{address} is not an address of the web")
        else:
            self._begin(request, url, (), proxy)

    def _choose_proxy(self, url: str) -> str | None:
        return None if self.settings.proxies is None else self.settings.proxies.choose(url)

    def _all_of_the_web(self, addresses: Sequence[str]) -> bool:
        return all(is_web_address(address, self.settings.allowed) for address in addresses)

    def _begin(
        self, request: Request, url: str, addresses: Sequence[str], proxy: str | None = None
    ) -> None:
        if self._idle:
            transfer = self._idle.pop()
        else:
            transfer = Transfer(self.settings, self._user_agent, self._ca_file)
        transfer.begin(request, url, addresses, proxy)
        self._running[transfer.curl] = transfer
        self._multi.add_handle(transfer.curl)

    def _name(self) -> None:
        """Continues the requests whose hosts have been resolved."""
        for outcome in self._names.take_outcomes():
            for request, url in self._nameless.pop(outcome.host, ()):
                self._go_on(request, url, outcome)

    def _seconds_until(self, end: float) -> float:
        """Returns how long to wait for sockets: until ``end``, libcurl's timer or a lookup's."""
        ends = (end, self._timer, self._names.next_deadline())
        return max(
            0.0, min(deadline for deadline in ends if deadline is not None) - time.monotonic()
        )

    def _serve(self, seconds: float) -> None:
        """Makes libcurl read and write on ready sockets, or handle its timer."""
        for fd, events in self._epoll.poll(seconds, _EVENTS):
            if fd == self._bell.fd:
                self._bell.quiet()
                continue
            bits = pycurl.CSELECT_IN if events & select.EPOLLIN else 0
            bits |= pycurl.CSELECT_OUT if events & select.EPOLLOUT else 0
            bits |= pycurl.CSELECT_ERR if events & (select.EPOLLERR | select.EPOLLHUP) else 0
            self._multi.socket_action(fd, bits)
        if self._timer is not None and time.monotonic() >= self._timer:
            self._timer = None
            self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)

    def _collect(self) -> None:
        """Turns the exchanges that ended into answers."""
        num_queued = 1
        while num_queued:
            num_queued, ended, failed = self._multi.info_read()
            for curl, code, message in (*((curl, pycurl.E_OK, "") for curl in ended), *failed):
                self._multi.remove_handle(curl)
                transfer = self._running.pop(curl)
                self._answers.append(transfer.end(code, message))
                self._idle.append(transfer)

    def _on_socket(self, event: int, fd: int, multi: Any, key: Any) -> None:
        """Records the events that libcurl waits for on a socket."""
        if event == pycurl.POLL_REMOVE:
            self._fds.discard(fd)
            with suppress(OSError):  # closed already, which unregisters it
                self._epoll.unregister(fd)
            return
        mask = select.EPOLLIN if event & pycurl.POLL_IN else 0
        mask |= select.EPOLLOUT if event & pycurl.POLL_OUT else 0
        if fd in self._fds:
            self._epoll.modify(fd, mask)
        else:
            self._epoll.register(fd, mask)
            self._fds.add(fd)

    def _on_timer(self, milliseconds: int) -> None:
        self._timer = None if milliseconds < 0 else time.monotonic() + milliseconds / 1_000


class Wakeup:
    """Wakes a thread that waits for sockets; other threads may ring it, also after its end."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._is_open = True

    def ring(self) -> None:
        """Makes ``fd`` readable."""
        with self._lock:
            if self._is_open:
                os.eventfd_write(self.fd, 1)

    def quiet(self) -> None:
        """Undoes all rings so far."""
        os.eventfd_read(self.fd)

    def close(self) -> None:
        """Closes ``fd``, whose number another file may then get."""
        with self._lock:
            self._is_open = False
            os.close(self.fd)


def ca_file(settings: ClientSettings) -> str:
    """Returns the file of trusted certificates: that of the settings, of the system, or certifi's.

    Raises InputError if the settings name a file without certificates.
    """
    if settings.ca_file is not None:
        if not Path(settings.ca_file).is_file():
            raise InputError(f"{settings.ca_file}: no such file of certificates")
        return settings.ca_file
    system = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    return system if system and Path(system).is_file() else certifi.where()
