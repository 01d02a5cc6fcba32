"""Decides which addresses are public, and which are internal or unassigned.

The lists are IANA's registries of special-purpose addresses (RFC 6890; as of 2026), because those
of Python's ``ipaddress`` differ between its versions.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

from vlmill.runtime.net.exchange import Network
from vlmill.schemas.errors import InputError

_NOT_WEB_4 = tuple(
    ip_network(network)
    for network in (
        "0.0.0.0/8",  # "this network": Linux treats it as itself
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier networks; Alibaba's metadata
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's metadata, in a public block
        "169.254.0.0/16",  # link-local; the clouds' metadata
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocols; Oracle's metadata
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays, deprecated
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks of devices
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/3",  # multicast, reserved, broadcast
    )
)
# Only 2000::/3 of IPv6 is assigned; these parts of it are not public.
_GLOBAL_6 = ip_network("2000::/3")
_NOT_WEB_6 = tuple(
    ip_network(network)
    for network in (
        "2001::/23",  # protocols: Teredo, ORCHID, benchmarks
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: contains an IPv4 address, deprecated
        "3fff::/20",  # documentation
    )
)
_NAT64 = ip_network("64:ff9b::/96")  # how hosts without IPv4 reach public IPv4 addresses

_NUMBER = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)\.?")
_DOTTED = re.compile(r"(?:(?:0|[1-9][0-9]{0,2})\.){3}(?:0|[1-9][0-9]{0,2})")
# Below 1024 only the web's ports; above, the ports that browsers block (Fetch standard, "port
# blocking").
_WEB_PORTS = frozenset((80, 443))
_OTHER_PORTS = frozenset(
    (
        *(1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566),
        *(6665, 6666, 6667, 6668, 6669, 6679, 6697, 10080),
    )
)


def parse_networks(flag: str, networks: Sequence[str]) -> tuple[Network, ...]:
    """Parses networks such as 127.0.0.0/8. Raises InputError for other values."""
    try:
        return tuple(ip_network(network) for network in networks)
    except ValueError as error:
        raise InputError(f"{flag}: {error}; give a network as 127.0.0.0/8") from None


@lru_cache(maxsize=4_096)
def is_web_address(address: str, allowed: Sequence[Network] = ()) -> bool:
    """Returns whether ``address``, as given to a socket, is public or in an allowed network.

    IPv6 addresses that contain an IPv4 address are judged by that address (mapped, NAT64) or
    refused (6to4, Teredo, compatible). Addresses with a zone, and invalid ones, are refused.
    """
    try:
        ip = ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, IPv6Address):
        if ip.scope_id is not None:
            return False
        ip = _embedded_ipv4(ip) or ip
    if any(ip in network for network in allowed):
        return True
    if isinstance(ip, IPv4Address):
        return not any(ip in network for network in _NOT_WEB_4)
    return ip in _GLOBAL_6 and not any(ip in network for network in _NOT_WEB_6)


def _embedded_ipv4(ip: IPv6Address) -> IPv4Address | None:
    """Returns the IPv4 address that is reached through ``ip``, or None."""
    if ip in _NAT64:
        return IPv4Address(int(ip) & 0xFFFF_FFFF)
    return ip.ipv4_mapped


def refusal(url: str) -> str | None:
    """Returns why ``url``, resolved by ``urls.resolve``, is not a public web address; None if it
    is.

    Only its spelling is checked: hosts that are numbers in another form than a.b.c.d, zones, and
    ports of other protocols. The addresses of a name are checked when a connection is made.
    """
    end = url.find("/", 8)  # after http:// and https://
    return _refusal(url if end < 0 else url[:end])


@lru_cache(maxsize=4_096)
def _refusal(origin: str) -> str | None:
    parts = urlsplit(origin)
    host, port = parts.hostname or "", parts.port
    if ":" in host:
        try:
            IPv6Address(host)
        except AddressValueError:
            return f"{host} is not an IPv6 address"
    elif _NUMBER.fullmatch(host.rstrip(".").rsplit(".", 1)[-1]) and not _is_dotted(host):
        return f"{host} is a number, but not as a.b.c.d"
    if port is not None and port not in _WEB_PORTS and (port < 1_024 or port in _OTHER_PORTS):
        return f"port {port} is not the web's"
    return None


def _is_dotted(host: str) -> bool:
    return _DOTTED.fullmatch(host) is not None and max(map(int, host.split("."))) < 256
