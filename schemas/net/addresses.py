"""Which addresses on the network a URL may lead to: public ones, and those that a user allows."""

import ipaddress
import socket
from collections.abc import Sequence

from vlmill.schemas.errors import InputError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class ForbiddenAddress(Exception):
    """A name leads to an address of a private network, or to none."""


def parse_networks(flag: str, networks: Sequence[str]) -> tuple[Network, ...]:
    """Reads networks as 127.0.0.0/8. Raises InputError for what is none."""
    try:
        return tuple(ipaddress.ip_network(network) for network in networks)
    except ValueError as error:
        raise InputError(f"{flag}: {error}; give a network as 127.0.0.0/8") from None


def addresses_of(host: str, port: int) -> list[str]:
    """The addresses of a host, in the system's order. Raises OSError if it has none."""
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


def checked_address(host: str, port: int, allowed: Sequence[Network]) -> str:
    """The address to connect to: who connects to the name again may be led elsewhere.

    Raises ForbiddenAddress if one of the host's addresses is neither public nor ``allowed``, and
    OSError if it has none.
    """
    addresses = addresses_of(host, port)
    for address in addresses:
        if not may_connect(address, allowed):
            raise ForbiddenAddress(f"{host} is {address}, which is no public address")
    return addresses[0]


def may_connect(address: str, allowed: Sequence[Network]) -> bool:
    """Whether an address is public, or in one of the networks that are allowed."""
    ip = _plain(ipaddress.ip_address(address.partition("%")[0]))
    if any(ip in network for network in allowed):
        return True
    return ip.is_global and not ip.is_multicast


def _plain(ip: Address) -> Address:
    """The IPv4 address that stands inside one of IPv6, by which the packets would go."""
    if isinstance(ip, ipaddress.IPv4Address):
        return ip
    if ip in _NAT64:
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.ipv4_mapped or ip.sixtofour or ip
