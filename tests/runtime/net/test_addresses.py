"""Which addresses are the web's, and that no spelling of another one reaches a server."""

import socket
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime.net.servers import ok, sends, serving
from tests.runtime.net.spellings import INSIDE, INSIDE_6, LOOPBACK, LOOPBACK_6

from vlmill.runtime.net.addresses import is_web_address, parse_networks, refusal
from vlmill.runtime.net.client import Client
from vlmill.runtime.net.exchange import Answer, ClientSettings, Network, Request
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason

REFUSALS = {Reason.BAD_URL, Reason.BAD_ADDRESS, Reason.UNKNOWN_HOST}
EVERYTHING = (ip_network("0.0.0.0/0"), ip_network("::/0"))


def answers(urls: list[str], allowed: tuple[Network, ...] = ()) -> list[Answer]:
    """What becomes of URLs, in their order."""
    settings = ClientSettings(
        contact="tests@example.org", connect_seconds=20.0, seconds=30.0, allowed=allowed
    )
    by_url: dict[str, Answer] = {}
    with Client(settings) as client:
        waiting = list(urls)
        while waiting or client.num_running:
            while waiting and client.num_free:
                client.start(Request(url=waiting.pop()))
            by_url.update({answer.request.url: answer for answer in client.wait(1.0)})
    return [by_url[url] for url in urls]


@pytest.mark.parametrize("listening", ["0.0.0.0", "::1"])
def test_no_spelling_reaches_a_server(listening: str) -> None:
    with serving(sends(ok()), listening) as server:
        hosts = (*LOOPBACK, *LOOPBACK_6, *INSIDE, *INSIDE_6, socket.gethostname())
        urls = [f"http://{host}:{server.port}/{number}" for number, host in enumerate(hosts)]
        failures = {a.request.url: a.failure for a in answers(urls)}
        assert len(failures) > 150 and set(failures.values()) <= REFUSALS
        assert server.num_connections == 0


@pytest.mark.parametrize(
    ("listening", "host"),
    [
        ("0.0.0.0", "127.0.0.1"),
        ("0.0.0.0", "localhost"),
        ("0.0.0.0", "１２７.0.0.1"),
        ("::1", "[::1]"),
    ],
)
def test_the_same_server_is_reached_where_it_is_allowed(listening: str, host: str) -> None:
    with serving(sends(ok()), listening) as server:
        (answer,) = answers([f"http://{host}:{server.port}/"], EVERYTHING)
        assert (answer.failure, answer.content, server.num_connections) == (None, b"hello", 1)


@pytest.mark.parametrize("host", [*INSIDE, *INSIDE_6])
def test_addresses_inside_are_no_failures_of_the_network(host: str) -> None:
    (answer,) = answers([f"http://{host}/"])
    assert answer.failure in (Reason.BAD_ADDRESS, Reason.BAD_URL)
    assert answer.failure is Reason.BAD_ADDRESS or "%" in host


@pytest.mark.parametrize(
    "address",
    [
        *("8.8.8.8", "1.1.1.1", "172.15.0.1", "172.32.0.1", "100.128.0.1", "192.0.1.1"),
        *("223.255.255.1", "2600::1", "2a00:1450::1", "2001:200::1"),
        *("::ffff:8.8.8.8", "64:ff9b::8.8.8.8"),
    ],
)
def test_public_addresses(address: str) -> None:
    assert is_web_address(address)


@pytest.mark.parametrize("address", ["", "localhost", "8.8.8.8 ", "8.8.8.8/8", "2600::1%1", "a"])
def test_what_is_no_address(address: str) -> None:
    assert not is_web_address(address)


@given(st.ip_addresses())
def test_no_private_address_is_public(address: object) -> None:
    ip = ip_address(str(address))
    if not ip.is_global and ip not in ip_network("64:ff9b::/96"):
        assert not is_web_address(str(ip))


@given(st.ip_addresses(v=4))
def test_an_address_in_another_is_judged_as_itself(address: object) -> None:
    inner = str(address)
    assert is_web_address(f"::ffff:{inner}") == is_web_address(inner)
    assert is_web_address(f"64:ff9b::{inner}") == is_web_address(inner)


def test_an_allowance_opens_its_network_alone() -> None:
    allowed = (ip_network("127.0.0.8/29"),)
    assert is_web_address("127.0.0.9", allowed) and is_web_address("::ffff:127.0.0.9", allowed)
    assert not is_web_address("127.0.0.1", allowed) and not is_web_address("::1", allowed)


@pytest.mark.parametrize(
    ("url", "is_refused"),
    [
        ("http://a.org/", False),
        ("https://a.org:8443/", False),
        ("http://1.2.3.4:8080/", False),
        ("http://a.1e/", False),
        ("http://0xg.org/", False),
        ("http://[2600::1]:81/", True),
        ("http://a.org:22/", True),
        ("http://a.org:0/", True),
        ("http://a.org:6667/", True),
        ("http://a.org.0x7f/", True),
        ("http://256.1.1.1/", True),
        ("http://1.2.3/", True),
    ],
)
def test_hosts_and_ports_by_their_spelling(url: str, is_refused: bool) -> None:
    assert (refusal(url) is not None) is is_refused


def test_networks_that_are_allowed() -> None:
    allowed = parse_networks("--allow-address", ["127.0.0.0/8"])
    assert is_web_address("127.0.0.1", allowed) and is_web_address("::ffff:127.0.0.1", allowed)
    assert not is_web_address("10.0.0.1", allowed)
    with pytest.raises(InputError, match=r"--allow-address: .*127\.0\.0\.0/8"):
        parse_networks("--allow-address", ["localhost"])
