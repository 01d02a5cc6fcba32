"""Defines requests, answers, and the settings of the client."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from vlmill import __version__
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason

if TYPE_CHECKING:  # help texts read this file, without an extra
    from vlmill.runtime.net.names import Lookup
    from vlmill.runtime.net.proxies import Proxies

Network = IPv4Network | IPv6Network
_CONTACT = re.compile(r"[!-'*-~]{3,200}")  # printable ASCII without spaces and brackets


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """Settings of a client; the defaults are vlmill's unless a source is named.

    Raises InputError for an invalid contact, ValueError for an invalid number.
    """

    contact: str | None
    """An e-mail address or a URL that site owners can write to. None only for files that the user
    has named himself, one by one."""
    connections: int = 64  # requests in flight at most, over all hosts
    connect_seconds: float = 10.0  # looking a name up, and then the connection with TLS
    seconds: float = 60.0  # a whole exchange, from the connection on
    slow_bytes_per_second: int = 200  # an exchange below it for slow_seconds is aborted
    slow_seconds: int = 15
    max_header_bytes: int = 64 << 10
    max_bytes: int = 32 << 20  # largest body as received and as decoded; a request may set its own
    allowed: tuple[Network, ...] = ()  # private networks that may be reached: for tests
    names: "Lookup | None" = None  # instead of DNS: for tests
    proxies: "Proxies | None" = None  # of the environment (``proxies.py``); None: no proxy
    ca_file: str | None = None  # certificates to trust; the system's, else certifi's

    def __post_init__(self) -> None:
        for name in ("connections", "connect_seconds", "seconds", "slow_seconds", "max_bytes"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")
        if self.contact is not None and not _is_contact(self.contact):
            raise InputError(
                f"contact {self.contact!r}: neither an e-mail address nor a URL; site owners write "
                "there, as to me@example.org"
            )


def _is_contact(text: str) -> bool:
    is_url = text.startswith(("http://", "https://"))
    return _CONTACT.fullmatch(text) is not None and (is_url or "@" in text[1:-1])


def user_agent(contact: str | None) -> str:
    """Returns the user agent: ``vlmill/0.2.0 (+me@example.org)``, or without contact."""
    return f"vlmill/{__version__}" if contact is None else f"vlmill/{__version__} (+{contact})"


@dataclass(frozen=True, kw_only=True)
class Request:
    """Describes one GET of an http(s) URL; conditional if it has values of an earlier response."""

    url: str
    etag: str | None = None  # the earlier answer's ``etag`` header, unchanged
    last_modified: str | None = None  # of its ``last-modified`` header
    max_bytes: int | None = None  # of the body; the client's own limit where None
    byte_range: tuple[int, int] | None = None  # start and stop, like a slice; not empty
    authorization: str | None = (
        None  # the value of the header, which is not sent to a redirect's target
    )
    referrer: str | None = None  # the value of its ``Referer`` header


def referrer_for(url: str, page: str | None) -> str | None:
    """Returns the ``Referer`` that browsers send for a URL on a page; None for no header.

    Their default policy is strict-origin-when-cross-origin: the page's URL to its own origin, its
    origin to others, and nothing from https to http.
    """
    if not page or (page.startswith("https:") and not url.startswith("https:")):
        return None
    source, target = urlsplit(page), urlsplit(url)
    if (source.scheme, source.netloc) == (target.scheme, target.netloc):
        return page
    return f"{source.scheme}://{source.netloc}/"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Holds the result of a request: a complete response of any status, or the reason for a
    failure.

    ``failure`` is None for complete responses (including 404, 304 and redirects), else one of
    bad_url, bad_address, unknown_host, no_connection, tls_error, timed_out, headers_too_large,
    too_large, bad_response and cut_off (``schemas/rejects.py``). The data received before a failure
    stays in ``status``, ``head`` and ``headers``; the body is dropped.
    """

    request: Request
    failure: Reason | None = None
    detail: str | None = None  # description of the failure
    status: int = 0  # 0 without a status line
    head: bytes = b""  # status line and headers as received, with the empty line
    headers: Mapping[str, str] = field(default_factory=dict)  # as responses.split_http reads them
    body: bytes = b""  # as received, including chunks and compression
    content: bytes = b""  # the body without its encodings; of a byte range: without chunks
    address: str | None = None  # the server's IP address
    started: float = 0.0  # seconds since 1970
    seconds: float = 0.0  # until the end of the answer
    location: str | None = None  # target of a redirect, absolute; None if it is not a URL
