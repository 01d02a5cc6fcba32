"""Opens a file on the web as a seekable file: read by ranges, retried, never from a private
address.

Only :func:`fetch_part` accesses the network.
"""

import io
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from vlmill.runtime.files.seekable import PositionedFile
from vlmill.runtime.net.addresses import parse_networks
from vlmill.runtime.net.exchange import Answer, ClientSettings, Network, Request
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason

if TYPE_CHECKING:  # help texts read this file, without an extra
    from vlmill.runtime.net.client import Client

TRIES = 6
BACKOFF_S = 1.0  # doubled from try to try
MOST_WAIT_S = 60.0
SLOW_S, PART_S = 30, 300.0  # below some bytes a second; an entire part
REDIRECTS = 5
FIRST_BYTES, MOST_BYTES = 64 << 10, 8 << 20  # of one request: it grows while reading is sequential
S3_HOST = "https://{bucket}.s3.amazonaws.com/{key}"
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
_NO_RANGE = re.compile(r"bytes \*/(\d{1,18})")
# By process and thread: a fork does not use its parent's client, and must not close it either.
_clients: dict[tuple[int, int], "Client"] = {}


class Unreachable(Exception):
    """Raised for an unreadable file on the web; the message states URL, reason and remedy.

    It is not an OSError, because readers of archives treat those as damaged bytes.
    """


class _TryAgain(Exception):
    """A failure that may be transient; ``wait_s`` is the server's requested pause."""

    def __init__(self, why: str, wait_s: float = 0.0) -> None:
        super().__init__(why)
        self.wait_s = wait_s


@dataclass(frozen=True, kw_only=True)
class Part:
    """Holds bytes of a file, and the file's size and version according to the server."""

    content: bytes
    total: int
    version: str | None


def web_url(path: str) -> str:
    """Returns the URL of a path; for ``s3://`` that of a public bucket.

    ``AWS_ENDPOINT_URL`` selects another server than Amazon's. Raises InputError for other paths.
    """
    parts = urlsplit(path)
    if not parts.hostname or (parts.scheme == "s3" and not parts.path.strip("/")):
        raise InputError(f"{path} is not the address of a file; give scheme://host/path")
    if parts.scheme != "s3":
        return path
    bucket, key = parts.netloc, quote(path.removeprefix(f"s3://{parts.netloc}/"), safe="/~=+")
    endpoint = s3_endpoint()
    return f"{endpoint}/{bucket}/{key}" if endpoint else S3_HOST.format(bucket=bucket, key=key)


def s3_endpoint() -> str:
    """Returns the server of ``s3://`` that the environment names, or ""."""
    return next((os.environ[n].rstrip("/") for n in _ENDPOINTS if os.environ.get(n)), "")


def allowed_networks(path: str, allowed: Sequence[str]) -> tuple[Network, ...]:
    """Returns the networks that a path may lead to in addition to public ones.

    A server that the user's own environment names may be in any network.
    """
    networks = parse_networks("--allow-address", allowed)
    if not path.startswith("s3://") or not s3_endpoint():
        return networks
    return networks + endpoint_networks(s3_endpoint(), "AWS_ENDPOINT_URL")


def endpoint_networks(url: str, variable: str) -> tuple[Network, ...]:
    """Returns the addresses of a server that the user's environment names, by ``variable``.

    Raises OSError if its name cannot be resolved.
    """
    host = urlsplit(url).hostname
    answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM) if host else []
    return parse_networks(variable, sorted({str(where[0]) for *_, where in answers}))


def fetch_part(
    url: str,
    start: int,
    stop: int,
    *,
    allowed: Sequence[Network],
    tries: int = TRIES,
    authorization: str | None = None,
    whole: bool = False,
) -> Part:
    """Reads the bytes from ``start`` to before ``stop``, fewer at the end of the file.

    ``authorization`` is that header's value, which only the server of ``url`` gets. ``whole``
    accepts a small file from a server without ranges, if ``start`` is 0.

    Raises Unreachable after several tries, or immediately if a retry cannot help.
    """
    for number in range(tries):
        try:
            answer = _fetch_once(url, start, stop, allowed, authorization)
            if whole and answer.status == 200 and not (start or answer.failure):
                return Part(content=answer.content, total=len(answer.content), version=None)
            return _parse_part(url, answer, start, stop)
        except _TryAgain as why:
            if number == tries - 1:
                raise Unreachable(
                    f"{url}: {why}, {tries} times; the same command continues where it stopped"
                ) from None
            time.sleep(max(BACKOFF_S * 2**number, why.wait_s))
    raise AssertionError("the last try has returned or raised")


def _fetch_once(
    url: str, start: int, stop: int, allowed: Sequence[Network], authorization: str | None
) -> Answer:
    target = url
    for _ in range(REDIRECTS + 1):
        sent_authorization = authorization if urlsplit(target)[:2] == urlsplit(url)[:2] else None
        answer = _answer(target, start, stop, tuple(allowed), sent_authorization)
        if answer.failure in (Reason.BAD_ADDRESS, Reason.BAD_URL):
            raise Unreachable(f"{url}: {answer.detail}; give a public address")
        if answer.failure not in (None, Reason.TOO_LARGE):
            raise _TryAgain(answer.detail or answer.failure)
        if answer.status not in (301, 302, 303, 307, 308):
            return answer
        target = answer.location or answer.headers.get("location", "nowhere")
        if answer.location is None:
            break
    raise Unreachable(f"{url}: it leads on to {target}, and so on; give the address of the file")


def _answer(
    url: str, start: int, stop: int, allowed: tuple[Network, ...], authorization: str | None
) -> Answer:
    # The limit is for bytes as received, including chunk headers and error pages.
    limit = 2 * (stop - start) + FIRST_BYTES
    request = Request(
        url=url, byte_range=(start, stop), max_bytes=limit, authorization=authorization
    )
    try:
        client = _client(allowed)
        client.start(request)
        while True:
            for answer in client.wait(PART_S):
                if answer.request is request:  # discards answers that an interrupt left
                    return answer
    except OSError as error:
        raise _TryAgain(str(error)) from None


def _client(allowed: tuple[Network, ...]) -> "Client":
    """Returns this thread's client, which keeps its connections; a new one for other networks."""
    from vlmill.runtime.net.client import Client

    key = os.getpid(), threading.get_ident()
    client = _clients.get(key)
    if client is None or client.settings.allowed != allowed:
        if client is not None:
            del _clients[key]
            client.close()
        settings = ClientSettings(
            contact=None, allowed=allowed, seconds=PART_S, slow_seconds=SLOW_S
        )
        client = _clients[key] = Client(settings)
    return client


def _parse_part(url: str, answer: Answer, start: int, stop: int) -> Part:
    status, content_range = answer.status, answer.headers.get("content-range", "")
    if status in (408, 429) or status >= 500:
        raise _TryAgain(f"it answers {status}", _parse_retry_after(answer))
    if status == 416:
        total_match = _NO_RANGE.fullmatch(content_range)
        return Part(content=b"", total=int(total_match[1]) if total_match else start, version=None)
    if status == 200:
        raise Unreachable(f"{url}: the server gives no ranges; download it, and give the file")
    match = _RANGE.fullmatch(content_range)
    if status != 206 or match is None:
        raise Unreachable(f"{url}: it answers {status}; give another, or see whether it is there")
    first, last, total = map(int, match.groups())
    if answer.failure or first != start or not start <= last < stop:
        raise Unreachable(f"{url}: the server gives other ranges than it is asked for")
    if len(answer.content) != last - first + 1:
        raise _TryAgain(f"{len(answer.content)} of {last - first + 1} bytes came")
    version = answer.headers.get("etag") or answer.headers.get("last-modified")
    return Part(content=answer.content, total=total, version=version)


def _parse_retry_after(answer: Answer) -> float:
    retry_after = answer.headers.get("retry-after", "")
    return (
        min(float(retry_after), MOST_WAIT_S)
        if retry_after.isascii() and retry_after.isdigit()
        else 0.0
    )


Fetch = Callable[[int, int], Part]


class RangedFile(PositionedFile):
    """Reads ranges as a seekable file. Memory: one part, which grows while reading is sequential.

    Raises Unreachable if the file changes while it is read.
    """

    def __init__(self, name: str, fetch: Fetch) -> None:
        super().__init__()
        self.name, self._fetch = name, fetch
        self._start = 0
        self._size = FIRST_BYTES
        first = fetch(0, FIRST_BYTES)
        self._part, self.total, self._version = first.content, first.total, first.version

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Sets the position without reading."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.total}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Returns ``size`` bytes, fewer at the end; all remaining bytes if it is negative."""
        stop = self.total if size < 0 else min(self._position + size, self.total)
        parts = []
        while self._position < stop:
            begin = self._position - self._start
            if not 0 <= begin < len(self._part):
                self._load(stop - self._position)
                begin = 0
            piece = self._part[begin : begin + stop - self._position]
            parts.append(piece)
            self._position += len(piece)
        return b"".join(parts)

    def _load(self, num_bytes: int) -> None:
        straight_on = self._position == self._start + len(self._part)
        self._size = min(2 * self._size, MOST_BYTES) if straight_on else FIRST_BYTES
        length = min(max(self._size, num_bytes), MOST_BYTES)
        part = self._fetch(self._position, min(self._position + length, self.total))
        if not part.content or (part.total, part.version) != (self.total, self._version):
            raise Unreachable(f"{self.name} has changed while it was read; run the command again")
        self._part, self._start = part.content, self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fills a buffer as far as there are bytes."""
        content = self.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)


def open_web(path: str, allowed: Sequence[str] = ()) -> RangedFile:
    """Opens a file on the web: ``https://``, ``http://``, or ``s3://`` without a signature.

    ``allowed`` are private networks such as 127.0.0.0/8. Raises Unreachable, and InputError for a
    path that is not a URL.
    """
    url = web_url(path)
    try:
        networks = allowed_networks(path, allowed)
    except OSError as error:
        raise Unreachable(f"{path}: {s3_endpoint()}: {error}; see AWS_ENDPOINT_URL") from None
    return RangedFile(path, lambda start, stop: fetch_part(url, start, stop, allowed=networks))
