"""Resolves host names, and caches each result for the time that DNS states.

libcurl's own resolver has 20 threads in total: 20 names with dead servers delay every other host
until the system gives up, and its results have no time to live. c-ares (pycares) resolves all names
from one thread. It reads the system's hosts file, servers and search domains, but none of the other
sources of nsswitch.conf.
"""

import socket
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pycares

MAX_REMEMBERED = 50_000  # names
MAX_SECONDS = 3_600.0  # limits for caching an address, overriding DNS
_FAILED_SECONDS = 20.0  # how long a failure is cached: less than the time to a retry
_MAX_ADDRESSES = 8  # of one name
_TRY_SECONDS, _TRIES = 2.0, 3  # of each server; c-ares waits longer at each try


@dataclass(frozen=True, kw_only=True)
class LookupOutcome:
    """Holds the result of a lookup: addresses, or the reason for having none."""

    host: str
    addresses: tuple[str, ...] = ()
    seconds: float = 0.0  # how long the addresses may be cached: the shortest time to live
    why: str = ""
    is_late: bool = False  # given up after a time; the host may exist


Done = Callable[[LookupOutcome], None]
Lookup = Callable[[str, Done], None]
"""Starts to look a host up, and calls back with the outcome, once, from any thread."""


class Names:
    """Looks up and caches the addresses of hosts for one client. Not thread-safe."""

    def __init__(self, lookup: Lookup, *, patience: float, wake: Callable[[], None]) -> None:
        """``patience`` is the maximum wait for a name in seconds; ``wake`` is called, from any
        thread, when :meth:`found` has something new.
        """
        self._lookup, self._patience, self._wake = lookup, patience, wake
        self._remembered: OrderedDict[str, tuple[float, LookupOutcome]] = OrderedDict()
        self._asked: dict[str, float] = {}  # since when, monotonic; the oldest first
        self._done: deque[LookupOutcome] = deque()  # filled from other threads

    def remembered(self, host: str) -> LookupOutcome | None:
        """Returns the cached result for ``host``, or None if it must be resolved."""
        end, outcome = self._remembered.get(host, (0.0, None))
        return outcome if time.monotonic() < end else None

    def ask(self, host: str) -> None:
        """Starts a lookup unless one for the host is running; :meth:`found` returns the outcome."""
        self._asked[host] = time.monotonic()
        self._lookup(host, self._end)

    def take_outcomes(self) -> list[LookupOutcome]:
        """Returns the outcomes since the last call, including abandoned lookups."""
        outcomes = []
        while self._done:
            outcome = self._done.popleft()
            self._remember(outcome)
            if self._asked.pop(outcome.host, None) is not None:
                outcomes.append(outcome)
        deadline = time.monotonic() - self._patience
        while self._asked and next(iter(self._asked.values())) <= deadline:
            host = next(iter(self._asked))
            del self._asked[host]
            why = f"no address within {self._patience:g} seconds"
            outcomes.append(LookupOutcome(host=host, why=why, is_late=True))
            self._remember(outcomes[-1])
        return outcomes

    def next_deadline(self) -> float | None:
        """Returns when, by the monotonic clock, the next lookup is abandoned; None without any."""
        return next(iter(self._asked.values())) + self._patience if self._asked else None

    def close(self) -> None:
        """Releases the lookup; its sockets are closed soon, and no further lookup is possible."""
        del self._lookup

    def _end(self, outcome: LookupOutcome) -> None:
        self._done.append(outcome)
        self._wake()

    def _remember(self, outcome: LookupOutcome) -> None:
        seconds = min(outcome.seconds, MAX_SECONDS) if outcome.addresses else _FAILED_SECONDS
        self._remembered[outcome.host] = time.monotonic() + seconds, outcome
        self._remembered.move_to_end(outcome.host)
        if len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)


def dns_lookup(port: int | None = None) -> Lookup:
    """Returns a resolver for the system's DNS servers, or for one on a port of this machine.

    It ends with its last reference; pending callbacks are then never called.
    """
    servers = None if port is None else ["127.0.0.1"]
    channel = pycares.Channel(
        timeout=_TRY_SECONDS, tries=_TRIES, servers=servers, udp_port=port, tcp_port=port
    )

    def lookup(host: str, done: Done) -> None:
        try:
            channel.getaddrinfo(
                host,
                None,
                family=socket.AF_UNSPEC,
                type=socket.SOCK_STREAM,
                callback=partial(_end, host, done),
            )
        except UnicodeError as error:
            done(LookupOutcome(host=host, why=str(error)))

    return lookup


def _end(host: str, done: Done, result: pycares.AddrInfoResult | None, error: int | None) -> None:
    """Passes c-ares's result for a host to ``done``."""
    if result is None or error is not None:
        code = pycares.errno.ARES_EBADRESP if error is None else error
        is_late = code == pycares.errno.ARES_ETIMEOUT
        done(LookupOutcome(host=host, why=str(pycares.errno.strerror(code)), is_late=is_late))
        return
    addresses = dict.fromkeys(node.addr[0].decode("ascii") for node in result.nodes)
    times = [node.ttl for node in result.nodes] + [name.ttl for name in result.cnames]
    outcome = LookupOutcome(
        host=host,
        addresses=tuple(addresses)[:_MAX_ADDRESSES],
        seconds=float(min(times, default=0)),
        why="" if addresses else "no address",
    )
    done(outcome)
