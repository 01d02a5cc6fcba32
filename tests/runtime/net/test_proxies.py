"""Requests through a proxy of the environment, and what it may not be asked for."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.runtime.net.servers import ok, sends, serving
from tests.runtime.net.test_client import SETTINGS, fetch

from vlmill.runtime.net.client import Client
from vlmill.runtime.net.exchange import Answer, Request
from vlmill.runtime.net.names import Done, LookupOutcome
from vlmill.runtime.net.proxies import read_proxies
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason

ADDRESSES = {"inside.test": ("10.1.2.3",), "both.test": ("8.8.8.8", "192.168.0.1")}


def lookup(host: str, done: Done) -> None:
    """Knows hosts of ADDRESSES; others are known to the proxy alone."""
    addresses = ADDRESSES.get(host, ())
    done(LookupOutcome(host=host, addresses=addresses, seconds=60.0, why="unknown"))


@pytest.fixture
def through(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Answer]]:
    """Asks for URLs with a proxy in the environment, which answers itself."""

    def ask(*urls: str, **variables: str) -> list[Answer]:
        with serving(sends(ok(b"by the proxy"))) as server:
            monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.port}")
            for name, value in variables.items():
                monkeypatch.setenv(name, value)
            settings = replace(SETTINGS, allowed=(), names=lookup, proxies=read_proxies())
            with Client(settings) as client:
                return fetch(client, [Request(url=url) for url in urls])

    return ask


def test_a_proxy_gets_names_of_the_web(through: Callable[..., list[Answer]]) -> None:
    (answer,) = through("http://somewhere.test/a.jpg")
    assert answer.failure is None and answer.content == b"by the proxy"
    assert answer.address is None  # that of the server is not known


def test_a_proxy_gets_no_private_addresses(through: Callable[..., list[Answer]]) -> None:
    urls = ("http://inside.test/", "http://both.test/", "http://10.0.0.1/", "http://[::1]/")
    assert [answer.failure for answer in through(*urls)] == [Reason.BAD_ADDRESS] * 4


def test_excluded_hosts_are_connected_to_directly(through: Callable[..., list[Answer]]) -> None:
    (answer,) = through("http://somewhere.test/", no_proxy=".test")
    assert answer.failure is Reason.UNKNOWN_HOST


def test_other_schemes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_proxies() is None
    monkeypatch.setenv("all_proxy", "socks5://me:secret@10.0.0.9:1080")
    with pytest.raises(InputError, match=r"all_proxy is 10.0.0.9:1080; give http://HOST:PORT"):
        read_proxies()
    monkeypatch.setenv("all_proxy", "proxy.example:3128")
    proxies = read_proxies()
    assert proxies is not None
    assert proxies.choose("https://a.org/") == "http://proxy.example:3128"
