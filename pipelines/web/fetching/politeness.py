"""Defines a crawl's politeness policy towards hosts: rates, waits and bounds."""

from dataclasses import dataclass, fields
from ipaddress import ip_network
from typing import Any

from vlmill.runtime.net.exchange import ClientSettings
from vlmill.runtime.net.proxies import read_proxies

MIB = 1 << 20
CONNECTIONS = 64  # of a worker, each with one body in memory


@dataclass(frozen=True, kw_only=True)
class PolitenessPolicy:
    """Holds the limits on requests to hosts, rates and waits; the defaults are this project's."""

    contact: str  # a page or an e-mail address, in the user agent of every request

    # Per host.
    delay_s: float = 1.0  # from a response's end to the next request; robots.txt may raise it
    per_host: int = 1  # concurrent requests
    max_delay_s: float = 60.0  # a host whose robots.txt requires more is not crawled
    max_wait_s: float = 600.0  # a host whose Retry-After asks for more is set aside
    max_failures: int = 5  # in a row (no connection, no response in time): the host is set aside
    max_host_s: float = 3_600.0  # of waiting for its responses
    max_host_bytes: int = 10_240 * MIB

    # Per response.
    connect_s: float = 15.0
    response_s: float = 60.0
    max_bytes: int = 16 * MIB  # of a body as sent, and as decoded

    # Per URL.
    max_redirects: int = 5
    max_attempts: int = 3  # while a host returns 429 or 503
    retries: int = 1  # retry rounds at the end for transient failures
    retry_wait_s: float = 30.0  # before such a round

    # Per worker.
    hosts_at_once: int = 256
    allow_addresses: tuple[str, ...] = ()  # for tests: private networks that may be accessed

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and value < 0:
                raise ValueError(f"{field.name} is {value}; it must be 0 or more")
        for name in ("per_host", "hosts_at_once", "max_attempts", "max_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("connect_s", "response_s"):
            if getattr(self, name) == 0:
                raise ValueError(f"{name} is 0; it must be above 0")
        self.client_settings()  # checks its values, the contact included

    def client_settings(self) -> ClientSettings:
        """Returns the settings of a worker's client, with the proxies of its environment."""
        return ClientSettings(
            contact=self.contact,
            connections=min(CONNECTIONS, self.hosts_at_once * self.per_host),
            connect_seconds=self.connect_s,
            seconds=self.response_s,
            max_bytes=self.max_bytes,
            proxies=read_proxies(),
            allowed=tuple(ip_network(network) for network in self.allow_addresses),
        )

    def as_settings(self) -> dict[str, Any]:
        """Returns names and values, for plans, manifests and reports."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**values, "allow_addresses": list(self.allow_addresses)}

    def backoff_s(self, times: int, retry_after_s: float | None) -> float:
        """Returns the pause for a host after ``times`` "too many requests" responses in a row."""
        if retry_after_s is not None:
            return max(retry_after_s, self.delay_s)
        return min(max(self.delay_s, 0.1) * 2.0**times, self.max_wait_s)
