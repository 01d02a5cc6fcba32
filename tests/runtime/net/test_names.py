"""Looking names up: nobody waits for another's, and what is known is not asked while it holds."""

import subprocess
import sys
import threading
from dataclasses import dataclass, field, replace

import pytest
from tests.runtime.net.servers import naming, ok, sends, serving
from tests.runtime.net.test_client import SETTINGS, fetch

from vlmill.runtime.net import names
from vlmill.runtime.net.client import Client
from vlmill.runtime.net.exchange import Request
from vlmill.runtime.net.names import Done, Lookup, LookupOutcome, Names, dns_lookup
from vlmill.schemas.rejects import Reason


@dataclass
class Dns:
    """Answers at once, or for hosts that begin with "slow" when it is told to."""

    seconds: float = 300.0  # the time to live of what it says
    asked: list[str] = field(default_factory=list)
    waiting: list[tuple[str, Done]] = field(default_factory=list)

    def __call__(self, host: str, done: Done) -> None:
        self.asked.append(host)
        if host.startswith("slow"):
            self.waiting.append((host, done))
        elif host.startswith("gone"):
            done(LookupOutcome(host=host, why="Domain name not found"))
        else:
            done(self.found(host))

    def found(self, host: str) -> LookupOutcome:
        """What it says of a host that there is."""
        return LookupOutcome(host=host, addresses=("127.0.0.1", "127.0.0.9"), seconds=self.seconds)

    def answer(self) -> None:
        """Answers those that wait."""
        for host, done in self.waiting:
            done(self.found(host))
        self.waiting.clear()


def until(asked: Names, woken: threading.Event, num: int) -> list[LookupOutcome]:
    """The next ``num`` outcomes."""
    outcomes: list[LookupOutcome] = []
    while len(outcomes) < num:
        assert woken.wait(20)
        woken.clear()
        outcomes += asked.take_outcomes()
    return outcomes


def make(dns: Lookup, *, patience: float = 300.0) -> tuple[Names, threading.Event]:
    """The names of a DNS, and what is set when there is something new."""
    woken = threading.Event()
    return Names(dns, patience=patience, wake=woken.set), woken


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("a.org", Dns().found("a.org")),
        ("gone.org", LookupOutcome(host="gone.org", why="Domain name not found")),
    ],
)
def test_what_is_known_is_not_asked_again(host: str, expected: LookupOutcome) -> None:
    dns = Dns()
    asked, woken = make(dns)
    assert asked.remembered(host) is None
    asked.ask(host)
    assert until(asked, woken, 1) == [expected]
    assert asked.remembered(host) == expected and dns.asked == [host]


@pytest.mark.parametrize(
    ("host", "time_to_live", "believed"),
    [("a.org", 60.0, 60.0), ("a.org", 1e9, 3_600.0), ("gone.org", 0.0, 20.0)],
)
def test_a_name_is_believed_for_its_time_to_live(
    monkeypatch: pytest.MonkeyPatch, host: str, time_to_live: float, believed: float
) -> None:
    now = 1_000.0
    monkeypatch.setattr("vlmill.runtime.net.names.time.monotonic", lambda: now)
    asked, woken = make(Dns(seconds=time_to_live))
    asked.ask(host)
    until(asked, woken, 1)
    now += believed - 1.0
    assert asked.remembered(host) is not None
    now += 2.0
    assert asked.remembered(host) is None


def test_names_without_number_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "MAX_REMEMBERED", 2)
    asked, woken = make(Dns())
    for host in "abc":
        asked.ask(host)
        until(asked, woken, 1)
    assert [asked.remembered(host) is not None for host in "abc"] == [False, True, True]


def test_a_name_that_nobody_answers_is_given_up_and_answered_late() -> None:
    dns = Dns()
    asked, woken = make(dns, patience=0.0)
    asked.ask("slow.org")
    (late,) = asked.take_outcomes()
    assert (late.host, late.addresses, late.is_late) == ("slow.org", (), True)
    assert asked.next_deadline() is None and asked.remembered("slow.org") == late
    dns.answer()
    assert woken.is_set()
    assert asked.take_outcomes() == []  # nobody waits for it any more
    assert asked.remembered("slow.org") == dns.found("slow.org")


def test_dead_names_hold_up_nobody() -> None:
    dns = Dns()
    with serving(sends(ok())) as server:
        settings = replace(SETTINGS, names=dns, connect_seconds=60.0)
        with Client(settings) as client:
            for number in range(40):
                client.start(Request(url=f"http://slow-{number}.org/"))
            (answer,) = fetch(client, [Request(url=f"http://a.org:{server.port}/")])
            assert (answer.content, answer.address) == (b"hello", "127.0.0.1")
            assert (client.num_running, client.num_free) == (40, 24)
        dns.answer()  # to a client that is gone


def test_requests_of_one_host_share_its_lookup_and_its_failure() -> None:
    dns = Dns()
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
        assert again.detail == "gone.org: Domain name not found" and len(dns.asked) == 2


def test_a_server_of_dns_is_asked_for_both_kinds_of_addresses() -> None:
    records = {
        "both.test": [("192.0.2.1", 77), ("2001:db8::1", 55)],
        "many.test": [(f"192.0.2.{n}", 9) for n in range(20)],
    }
    with naming(records) as server:
        asked, woken = make(dns_lookup(server.port))
        for host in (*records, "nowhere.test"):
            asked.ask(host)
        by_host = {found.host: found for found in until(asked, woken, 3)}
    both, many, nowhere = by_host["both.test"], by_host["many.test"], by_host["nowhere.test"]
    assert set(both.addresses) == {"192.0.2.1", "2001:db8::1"}
    assert 0 < both.seconds <= 55  # the least, less what c-ares has waited
    assert len(many.addresses) == 8 and 0 < many.seconds <= 9
    assert (nowhere.addresses, nowhere.why, nowhere.is_late) == ((), "Domain name not found", False)


def test_the_hosts_file_of_the_system_is_read() -> None:
    asked, woken = make(dns_lookup())
    asked.ask("localhost")
    (found,) = until(asked, woken, 1)
    assert {"127.0.0.1", "::1"} & set(found.addresses)


def test_a_name_that_is_none_is_refused() -> None:
    asked, woken = make(dns_lookup())
    asked.ask("a" * 300 + ".test")
    (found,) = until(asked, woken, 1)
    assert found.addresses == () and found.why


SILENT = """
import sys
from vlmill.runtime.net.client import Client
from vlmill.runtime.net.exchange import ClientSettings, Request
from vlmill.runtime.net.names import dns_lookup

settings = ClientSettings(contact="a@example.org", names=dns_lookup(int(sys.argv[1])))
with Client(settings) as client:
    client.start(Request(url="http://silent.test/"))
    client.wait(0.2)
    print(client.num_running)
"""


@pytest.mark.slow
def test_a_process_ends_while_dns_is_silent() -> None:
    with naming({"silent.test": []}) as server:
        command = [sys.executable, "-c", SILENT, str(server.port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (done.stdout, done.stderr, done.returncode) == ("1\n", "", 0)
        assert server.asked
