"""Looks up the addresses of hosts, each name in a thread of its own, and remembers them.

libcurl's own resolver has 20 threads in all: 20 names whose servers are dead hold up every other
host for as long as the system asks them. Here a name holds up nobody, and no lookup is waited for.
"""

import socket
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MAX_LOOKUPS = 256  # threads at once; further names wait, and their time does not run
MAX_REMEMBERED = 50_000  # names
_FAILED_SECONDS = 20.0  # how long a failure is believed: less than until a retry
_MAX_ADDRESSES = 8  # of one name


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a lookup came to: addresses, or none and why."""

    host: str
    addresses: tuple[str, ...] = ()
    why: str = ""
    is_late: bool = False  # given up after a time; the host may be there


class Names:
    """The addresses of hosts, asked and remembered by one client. Not for several threads."""

    def __init__(
        self,
        lookup: Callable[[str], Sequence[str]],
        *,
        seconds: float,
        patience: float,
        wake: Callable[[], None],
    ) -> None:
        """``seconds`` is how long addresses are believed, ``patience`` how long one is waited for;
        ``wake`` is called, from another thread, when :meth:`found` has something new.
        """
        self._lookup, self._seconds, self._patience, self._wake = lookup, seconds, patience, wake
        self._remembered: OrderedDict[str, tuple[float, Found]] = OrderedDict()
        self._queued: deque[str] = deque()
        self._asked: dict[str, float] = {}  # since when, monotonic; the oldest first
        self._num_threads = 0
        self._done: deque[Found] = deque()  # filled by the threads

    def remembered(self, host: str) -> Found | None:
        """Returns what is known of ``host``, or None if it must be asked for."""
        end, found = self._remembered.get(host, (0.0, None))
        return found if time.monotonic() < end else None

    def ask(self, host: str) -> None:
        """Starts a lookup, whose outcome :meth:`found` gives; once for a host that is asked for."""
        self._queued.append(host)
        self._start()

    def found(self) -> list[Found]:
        """Returns the outcomes that have come since the last call, those given up included."""
        outcomes = []
        while self._done:
            found = self._done.popleft()
            self._num_threads -= 1
            self._remember(found)
            if self._asked.pop(found.host, None) is not None:
                outcomes.append(found)
        deadline = time.monotonic() - self._patience
        while self._asked and next(iter(self._asked.values())) <= deadline:
            host = next(iter(self._asked))
            del self._asked[host]
            why = f"no address within {self._patience:g} seconds"
            outcomes.append(Found(host=host, why=why, is_late=True))
            self._remember(outcomes[-1])
        self._start()
        return outcomes

    def next_deadline(self) -> float | None:
        """Returns when, by the monotonic clock, a lookup is given up next; None without any."""
        return next(iter(self._asked.values())) + self._patience if self._asked else None

    def _start(self) -> None:
        while self._queued and self._num_threads < MAX_LOOKUPS:
            host = self._queued.popleft()
            self._num_threads += 1
            self._asked[host] = time.monotonic()
            # Not joined by anyone, so that a client and its process end while DNS is silent.
            threading.Thread(target=self._run, args=(host,), daemon=True).start()

    def _run(self, host: str) -> None:
        try:
            addresses = tuple(dict.fromkeys(self._lookup(host)))[:_MAX_ADDRESSES]
            found = Found(host=host, addresses=addresses, why="" if addresses else "no address")
        except (OSError, UnicodeError) as error:
            found = Found(host=host, why=getattr(error, "strerror", None) or str(error))
        self._done.append(found)
        self._wake()

    def _remember(self, found: Found) -> None:
        seconds = self._seconds if found.addresses else min(self._seconds, _FAILED_SECONDS)
        self._remembered[found.host] = time.monotonic() + seconds, found
        self._remembered.move_to_end(found.host)
        if len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)


def system_addresses(host: str) -> list[str]:
    """Asks the system, as every program does. Raises OSError where it knows none."""
    answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(where[0]) for *_, where in answers]
