"""URLs lead to public addresses, and to those that are allowed."""

import pytest

from vlmill.schemas.errors import InputError
from vlmill.schemas.net import addresses
from vlmill.schemas.net.addresses import (
    ForbiddenAddress,
    checked_address,
    may_connect,
    parse_networks,
)

PRIVATE = (
    *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1"),
    *("0.0.0.0", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fc00::1", "ff02::1"),
    *("::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::"),
)


@pytest.mark.parametrize("address", PRIVATE)
def test_what_is_not_public_is_refused(address: str) -> None:
    assert not may_connect(address, ())


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "64:ff9b::808:808"])
def test_what_is_public_is_not(address: str) -> None:
    assert may_connect(address, ())


def test_networks_that_are_allowed() -> None:
    allowed = parse_networks("--allow-address", ["127.0.0.0/8"])
    assert may_connect("127.0.0.1", allowed) and may_connect("::ffff:127.0.0.1", allowed)
    assert not may_connect("10.0.0.1", allowed)
    with pytest.raises(InputError, match=r"--allow-address: .*127\.0\.0\.0/8"):
        parse_networks("--allow-address", ["localhost"])


def test_one_private_address_of_a_host_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "addresses_of", lambda host, port: ["8.8.8.8", "10.0.0.1"])
    with pytest.raises(ForbiddenAddress, match=r"x\.example is 10\.0\.0\.1"):
        checked_address("x.example", 443, ())
    assert checked_address("x.example", 443, parse_networks("", ["10.0.0.0/8"])) == "8.8.8.8"
