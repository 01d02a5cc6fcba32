"""Looking names up: nobody waits for another's, and what is known is not asked again."""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest
from tests.schemas.net.servers import ok, sends, serving
from tests.schemas.net.test_client import SETTINGS, fetch

from vlmill.schemas.net import names
from vlmill.schemas.net.client import Client
from vlmill.schemas.net.exchange import Request
from vlmill.schemas.net.names import Found, Names, system_addresses
from vlmill.schemas.rejects import Reason


@dataclass
class Dns:
    """Answers at once, or for hosts that begin with "slow" when it is told to."""

    asked: list[str] = field(default_factory=list)
    may_answer: threading.Event = field(default_factory=threading.Event)
    num_asked: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def __call__(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        self.num_asked.release()
        if host.startswith("slow"):
            self.may_answer.wait(10)
        if host.startswith("gone"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [] if host.startswith("none") else ["127.0.0.1", "127.0.0.1", "127.0.0.9"]


@contextmanager
def slow_dns() -> Iterator[Dns]:
    """A DNS whose threads end with the test."""
    dns = Dns()
    try:
        yield dns
    finally:
        dns.may_answer.set()


def until(asked: Names, woken: threading.Event, num: int) -> list[Found]:
    """The next ``num`` outcomes."""
    outcomes: list[Found] = []
    while len(outcomes) < num:
        assert woken.wait(10)
        woken.clear()
        outcomes += asked.found()
    return outcomes


def make(
    dns: Callable[[str], Sequence[str]], *, seconds: float = 300.0, patience: float = 300.0
) -> tuple[Names, threading.Event]:
    """The names of a DNS, and what is set when there is something new."""
    woken = threading.Event()
    return Names(dns, seconds=seconds, patience=patience, wake=woken.set), woken


@pytest.mark.parametrize(
    ("host", "addresses", "why"),
    [
        ("a.org", ("127.0.0.1", "127.0.0.9"), ""),
        ("gone.org", (), "Name or service not known"),
        ("none.org", (), "no address"),
    ],
)
def test_what_is_known_is_not_asked_again(host: str, addresses: tuple[str, ...], why: str) -> None:
    dns = Dns()
    asked, woken = make(dns)
    assert asked.remembered(host) is None
    asked.ask(host)
    expected = Found(host=host, addresses=addresses, why=why)
    assert until(asked, woken, 1) == [expected]
    assert asked.remembered(host) == expected and dns.asked == [host]


def test_nothing_is_believed_for_ever() -> None:
    asked, woken = make(Dns(), seconds=0.0)
    asked.ask("a.org")
    until(asked, woken, 1)
    assert asked.remembered("a.org") is None


def test_names_without_number_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "MAX_REMEMBERED", 2)
    asked, woken = make(Dns())
    for host in "abc":
        asked.ask(host)
        until(asked, woken, 1)
    assert [asked.remembered(host) is not None for host in "abc"] == [False, True, True]


def test_a_name_that_nobody_answers_is_given_up_and_answered_late() -> None:
    with slow_dns() as dns:
        asked, woken = make(dns, patience=0.0)
        asked.ask("slow.org")
        (late,) = asked.found()
        assert (late.host, late.addresses, late.is_late) == ("slow.org", (), True)
        assert asked.next_deadline() is None and asked.remembered("slow.org") == late
        dns.may_answer.set()
        assert woken.wait(10)
        assert asked.found() == []  # nobody waits for it any more
        known = asked.remembered("slow.org")
        assert known is not None and known.addresses


def test_only_so_many_are_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "MAX_LOOKUPS", 3)
    with slow_dns() as dns:
        asked, woken = make(dns)
        for number in range(8):
            asked.ask(f"slow-{number}.org")
        assert asked.found() == []
        assert all(dns.num_asked.acquire(timeout=10) for _ in range(3))
        assert sorted(dns.asked) == [f"slow-{n}.org" for n in range(3)]
        dns.may_answer.set()
        outcomes = until(asked, woken, 8)
        assert sorted(found.host for found in outcomes) == [f"slow-{n}.org" for n in range(8)]


def test_dead_names_hold_up_nobody_and_no_end() -> None:
    with slow_dns() as dns, serving(sends(ok())) as server:
        settings = replace(SETTINGS, names=dns, connect_seconds=60.0)
        with Client(settings) as client:
            for number in range(40):
                client.start(Request(url=f"http://slow-{number}.org/"))
            (answer,) = fetch(client, [Request(url=f"http://a.org:{server.port}/")])
            assert (answer.content, answer.address) == (b"hello", "127.0.0.1")
            assert (client.num_running, client.num_free) == (40, 24)
        assert not dns.may_answer.is_set()


def test_requests_of_one_host_share_its_lookup_and_its_failure() -> None:
    with slow_dns() as dns:
        urls = [f"http://{host}.org/{n}" for host in ("slow", "gone") for n in range(3)]
        with Client(replace(SETTINGS, names=dns, connect_seconds=0.1)) as client:
            for url in urls:
                client.start(Request(url=url))
            failures = {}
            while client.num_running:
                failures.update({a.request.url: a.failure for a in client.wait(1.0)})
            assert sorted(dns.asked) == ["gone.org", "slow.org"]
            expected = [Reason.TIMED_OUT] * 3 + [Reason.UNKNOWN_HOST] * 3
            assert [failures[url] for url in urls] == expected
            (again,) = fetch(client, [Request(url="http://gone.org/4")])
            assert again.detail == "gone.org: Name or service not known" and len(dns.asked) == 2


def test_the_system_knows_this_machine() -> None:
    assert {"127.0.0.1", "::1"} & set(system_addresses("localhost"))
    with pytest.raises(OSError):
        system_addresses("no-such-host.invalid")
