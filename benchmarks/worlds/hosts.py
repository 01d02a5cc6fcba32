"""A generated web: its hosts on loopback addresses, what they send, and the table of outcomes.

``host_kinds.py`` fills it, ``host_server.py`` serves it. Outcomes are ``fetched``, ``redirected``
or a reason of the rejects table.
"""

import gzip
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import numpy as np
from PIL import Image, features

FETCHED, REDIRECTED = "fetched", "redirected"
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "SVG", "AVIF")
TYPES = {"SVG": "image/svg+xml"}
LOOKS = 3
FIRST = 11  # the first host is 127.0.0.11
NO_HEADERS: Mapping[str, str] = {}
PAGE = {"Content-Type": "text/html; charset=utf-8"}
GIANT = 10 << 30  # bytes that a body claims to have

Then = Literal["keep", "close", "reset", "drip", "endless", "silent"]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a server sends, and what it does then.

    ``keep`` waits for the next request, ``drip`` sends a byte every 50 ms for ever, ``endless`` as
    much as is taken, ``silent`` nothing more.
    """

    sent: bytes
    then: Then = "keep"


@dataclass(frozen=True, kw_only=True)
class Expected:
    """A URL and what must come of it."""

    url: str
    outcome: str
    referrer: str | None = None  # the page or redirect that leads to it; None if it is listed
    is_slow: bool = False  # ends with the client's patience alone


@dataclass
class Site:
    """What the hosts say, and the table of outcomes; filled by :func:`host_kinds.make_site`."""

    port: int
    num_hosts: int
    replies: dict[tuple[int, str], Sequence[Reply]] = field(default_factory=dict)
    """By host and path; of several the last one stays."""
    expected: list[Expected] = field(default_factory=list)
    kinds: dict[int, str] = field(default_factory=dict)  # what each host is there for

    def urls(self, *, slow: bool = True) -> list[str]:
        """The list to begin with, without those that take all of a client's patience if asked."""
        listed = (e for e in self.expected if e.referrer is None and (slow or not e.is_slow))
        return [e.url for e in listed]

    def outcomes(self, *, slow: bool = True) -> dict[str, str]:
        """The outcome of every URL that :meth:`urls` leads to, those found on pages included."""
        return {e.url: e.outcome for e in self.expected if slow or not e.is_slow}

    def kind_at(self, url: str) -> str | None:
        """What the host of a URL is there for; None if it is none of ours."""
        hosts = {address(host): kind for host, kind in self.kinds.items()}
        return hosts.get(url.partition("://")[2].partition(":")[0])

    def url(self, host: int, path: str) -> str:
        """The address of a path."""
        return f"http://{address(host)}:{self.port}{path}"

    def add(
        self,
        host: int,
        path: str,
        outcome: str,
        *replies: Reply,
        referrer: str | None = None,
        is_slow: bool = False,
    ) -> str:
        """Adds a URL; without replies it is never asked for, or answered 404."""
        url = self.url(host, path)
        if replies:
            self.replies[host, path] = replies
        self.expected.append(Expected(url=url, outcome=outcome, referrer=referrer, is_slow=is_slow))
        return url


def address(host: int) -> str:
    """The address of a host."""
    return f"127.0.0.{FIRST + host}"


def response(
    body: bytes = b"",
    status: str = "200 OK",
    *,
    then: Then = "keep",
    length: int | None = None,
    headers: Mapping[str, str] = NO_HEADERS,
) -> Reply:
    """A response with its length, or another one that it claims."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return Reply(sent="\r\n".join([*lines, "", ""]).encode("latin-1") + body, then=then)


def redirect(target: str, status: str = "302 Found") -> Reply:
    """A redirect to ``target``, a URL or a path."""
    return response(status=status, headers={"Location": target})


def image(kind: str = "JPEG", seed: int = 0) -> bytes:
    """An image of 160 x 120 pixels, one of ``LOOKS``; each seed has bytes of its own."""
    if kind == "SVG":
        return f'<svg xmlns="http://www.w3.org/2000/svg"><text>{seed}</text></svg>'.encode()
    if kind == "AVIF" and features.check("avif"):
        end = f"{seed}".encode()
        return _encoded(kind, seed % LOOKS) + (8 + len(end)).to_bytes(4, "big") + b"free" + end
    # What follows an image's end is read by no decoder.
    return _encoded("WEBP" if kind == "AVIF" else kind, seed % LOOKS) + f"{seed}".encode()


@cache
def _encoded(kind: str, look: int) -> bytes:
    coarse = np.random.default_rng(look).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(coarse).resize((160, 120), Image.Resampling.BICUBIC).save(out, kind)
    return out.getvalue()


@cache
def large_image() -> bytes:
    """A JPEG of 640 x 480 pixels and about 100 KB, as on many pages."""
    noise = np.random.default_rng(0).integers(0, 256, (240, 320, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise).resize((640, 480), Image.Resampling.BICUBIC).save(
        out, "JPEG", quality=55
    )
    return out.getvalue()


def shown(kind: str = "JPEG", seed: int = 0, headers: Mapping[str, str] = NO_HEADERS) -> Reply:
    """The response with an image; it has a validator."""
    named = {"Content-Type": TYPES.get(kind, f"image/{kind.lower()}"), "ETag": f'"{kind}-{seed}"'}
    return response(image(kind, seed), headers={**named, **headers})


def page(images: Sequence[str], head: str = "", text: str = "An image of the harbour") -> bytes:
    """A page with images and their captions."""
    figures = "".join(
        f'<figure><img src="{url}" width=200 height=160 alt="{text}, number {number}">'
        f"<figcaption>{text} in the evening, seen from the bridge.</figcaption></figure>"
        for number, url in enumerate(images)
    )
    start = f"<!doctype html><html lang=en><head><title>A walk</title>{head}</head><body><article>"
    return f"{start}<p>We walked along the coast.</p>{figures}</article></html>".encode()


def robots(site: Site, host: int, text: str, headers: Mapping[str, str] = NO_HEADERS) -> None:
    """Gives a host a robots.txt."""
    site.replies[host, "/robots.txt"] = [response(text.encode(), headers=headers)]


@cache
def gzip_bomb(num_bytes: int = 200 << 20) -> bytes:
    """Zeros, a thousandth of their size."""
    block = gzip.compress(bytes(20 << 20), 9, mtime=0)
    return block * (num_bytes // (20 << 20))
