"""Handles the number, the token, the limits and the log line of every request.

It is a layer of plain ASGI around the application, so it covers every route. A body is counted as
it arrives, regardless of its headers. Reading, computing and sending end at the request's deadline.
"""

import asyncio
import hashlib
import hmac
import json
import random
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from vlmill.runtime.service.connections import CONNECTION, ClientConnection
from vlmill.runtime.service.logs import log
from vlmill.runtime.service.metrics import Metrics
from vlmill.runtime.service.page.files import MEDIA_TYPES
from vlmill.runtime.service.refusals import RequestRefused
from vlmill.runtime.service.settings import ServiceSettings

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]
OPEN = frozenset((*MEDIA_TYPES, "/healthz", "/readyz", "/openapi.json"))
HEALTH = frozenset(
    ("/healthz", "/readyz", "/metrics")
)  # answered also on connections above the limit
SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
DEADLINE, ACCOUNT, HOLD = "vlmill.deadline", "vlmill.account", "vlmill.hold"
LINGER_SECONDS = 2.0
NUMBERS = random.Random()  # of requests; without a system call for each
SAFE_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)


class Guard:
    """Wraps an application; ``paths`` are the names of paths in the metrics."""

    def __init__(
        self, app: App, settings: ServiceSettings, metrics: Metrics, paths: frozenset[str]
    ) -> None:
        self.app, self.settings, self.metrics, self.paths = app, settings, metrics, paths
        self.held_bytes = 0
        self.reading: dict[Exchange, None] = {}  # whose body is being read, the oldest first
        self.is_local = False  # whether only this machine reaches it, without a token

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        exchange = Exchange(self, scope, receive, send)
        connection = exchange.connection
        if connection is not None:
            connection.begin_request()
        try:
            await exchange.run()
        finally:
            exchange.release()
            if connection is not None:
                connection.end_request()
            exchange.note()

    def refuse_newest(self) -> None:
        """Refuses the newest bodies that are being read until the others fit.

        Refusing the body that reaches the limit would refuse all of many simultaneous ones.
        """
        while self.held_bytes > self.settings.bytes_in_flight and self.reading:
            newest = next(reversed(self.reading))
            newest.release()
            newest.stop_reading()


class Exchange:
    """Holds one request with its response."""

    def __init__(
        self, guard: Guard, scope: MutableMapping[str, Any], receive: Receive, send: Send
    ) -> None:
        self.guard, self.scope, self._receive, self._send = guard, scope, receive, send
        self.settings = guard.settings
        self.begin = time.monotonic()
        self.deadline = self.begin + self.settings.seconds
        self.id = f"{NUMBERS.getrandbits(64):016x}"
        self.headers = {name: value for name, value in scope["headers"]}
        self.num_bytes, self.held_bytes, self.status = 0, 0, 0
        self.has_body, self.is_gone, self.has_ended = False, False, False
        self.reading: asyncio.Timeout | None = None  # while a part of the body is awaited
        self.is_stopped = False
        self.trace: str | None = None
        self.account: dict[str, Any] = {}  # the endpoint's entry for the log
        scope[DEADLINE], scope[ACCOUNT] = self.deadline, self.account
        scope[HOLD], scope["vlmill.id"] = self.hold, self.id
        self.connection: ClientConnection | None = scope.get("state", {}).get(CONNECTION)

    async def run(self) -> None:
        """Calls the application; responds itself if that fails."""
        try:
            self.check()
            await self.guard.app(self.scope, self.receive, self.send)
        except RequestRefused as why:
            await self.refuse(why)
        except ClientGone:  # no client, or the connection has already responded
            if self.connection is not None and self.connection.is_malformed:
                self.account["reason"] = "bad_http"
        except Exception:
            self.trace = traceback.format_exc()
            self.guard.metrics.errors.inc()
            await self.refuse(
                RequestRefused(500, "internal_error", "an error of the server; it is logged")
            )

    def check(self) -> None:
        """Refuses requests with invalid headers."""
        settings = self.settings
        if self.is_spare() and self.scope["path"] not in HEALTH:
            raise RequestRefused(
                503, "busy", "all connections are in use; retry later", retry_after=1
            )
        self.require_one_length()
        if self.guard.is_local and not names_no_site(self.headers.get(b"host", b"")):
            raise RequestRefused(
                403,
                "bad_host",
                "without a token this service accepts only IP addresses and localhost as Host: a "
                "page of "
                "the web could reach it through its own domain; send Host: localhost, or start it "
                "with a token",
            )
        is_unsafe = self.scope["method"] not in SAFE_METHODS
        if settings.token is None and is_unsafe and is_cross_site(self.headers):
            raise RequestRefused(
                403,
                "cross_site",
                "without a token this service accepts no request from a page of another site; "
                "start it with a token",
            )
        is_open = settings.token is None or self.scope["path"] in OPEN
        if not is_open and not has_token(
            self.headers.get(b"authorization", b""), settings.token or ""
        ):
            raise RequestRefused(
                401, "unauthorized", "send the service's token: Authorization: Bearer TOKEN"
            )
        length = self.headers.get(b"content-length")
        size = int(length) if length is not None and length.isdigit() else 0
        self.require_size(size)
        if size:
            self.require_room(size)

    def require_one_length(self) -> None:
        """Raises RequestRefused for headers with two lengths of the body.

        A proxy might use the other one, and see another request after the body (RFC 9112, 6.1).
        """
        if b"transfer-encoding" not in self.headers:
            return
        if b"content-length" in self.headers or self.scope["http_version"] == "1.0":
            raise RequestRefused(
                400, "bad_http", "send either content-length or, in HTTP/1.1, transfer-encoding"
            )

    def require_room(self, more: int = 0) -> None:
        """Raises RequestRefused if all requests, with ``more`` bytes, exceed their limit."""
        if self.is_stopped or self.guard.held_bytes + more > self.settings.bytes_in_flight:
            raise RequestRefused(
                429,
                "busy",
                "the bodies of all requests are too large together; retry later",
                retry_after=1,
            )

    def hold(self, num_bytes: int) -> None:
        """Counts bytes that the request holds until it ends. Raises RequestRefused if all requests
        exceed their limit.
        """
        self.held_bytes += num_bytes
        self.guard.held_bytes += num_bytes
        if num_bytes > 0:
            self.guard.refuse_newest()
            self.require_room()

    def release(self) -> None:
        """Subtracts the bytes of the request, whose body is no longer used."""
        self.guard.held_bytes -= self.held_bytes
        self.held_bytes = 0
        self.guard.reading.pop(self, None)

    def stop_reading(self) -> None:
        """Stops reading the body; the request is refused."""
        self.is_stopped = True
        if self.reading is not None:
            self.reading.reschedule(asyncio.get_running_loop().time())

    def require_size(self, size: int) -> None:
        """Raises RequestRefused for a body over the limit."""
        if size > self.settings.max_bytes:
            raise RequestRefused(
                413,
                "too_large",
                f"the body has over {self.settings.max_bytes} bytes, more than a request may have",
            )

    async def receive(self) -> Message:
        """Returns a part of the body to the application; counts it, and ends at the deadline."""
        left = self.deadline - time.monotonic()
        if self.has_body:  # only a disconnect can follow
            message = await self._receive()
            self.is_gone |= message["type"] == "http.disconnect"
            return message
        self.guard.reading[self] = None
        try:
            async with asyncio.timeout(max(0.0, left)) as self.reading:
                message = await self._receive()
        except TimeoutError:
            self.require_room()  # raises if the guard has stopped it
            raise RequestRefused(
                408, "too_slow", f"the body did not arrive within {self.settings.seconds:g} seconds"
            ) from None
        finally:
            self.reading = None
        if message["type"] == "http.disconnect":
            self.is_gone = True
            raise ClientGone
        size = len(message.get("body", b""))
        self.num_bytes += size
        self.has_body = not message.get("more_body", False)
        self.require_size(self.num_bytes)
        self.hold(size)
        if self.has_body:
            self.guard.reading.pop(self, None)
        return message

    async def send(self, message: Message) -> None:
        """Sends a part of the response; aborts if the client does not read it in time."""
        if self.is_gone:
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self.connection is not None:
                self.connection.begin_answer()
            names = {name.lower() for name, _ in message["headers"]}
            more = [(name, value) for name, value in SAFE_HEADERS if name not in names]
            message["headers"] = [*message["headers"], *more, (b"x-request-id", self.id.encode())]
            if self.is_spare() or not self.is_body_read():
                message["headers"].append((b"connection", b"close"))
        left = max(1.0, self.deadline - time.monotonic())
        try:
            last = message["type"] == "http.response.body" and not message.get("more_body", False)
            if last and not self.is_body_read():
                async with asyncio.timeout(left):
                    await self._send({**message, "more_body": True})
                await self.linger()
                message = {"type": "http.response.body", "body": b""}
            # Unlike asyncio.wait_for, this needs no task.
            async with asyncio.timeout(left):
                await self._send(message)
            self.has_ended = last
        except TimeoutError:
            self.is_gone = True

    def is_spare(self) -> bool:
        """Returns whether the connection exceeds the limit."""
        return self.connection is not None and self.connection.is_spare

    def is_body_read(self) -> bool:
        """Returns whether the body has been read to its end."""
        length = self.headers.get(b"content-length", b"0")
        none = length == b"0" and b"transfer-encoding" not in self.headers
        return self.has_body or none

    async def linger(self) -> None:
        """Reads on: closing now could drop the response to a client that still sends."""
        self.release()
        end = time.monotonic() + LINGER_SECONDS
        while (left := end - time.monotonic()) > 0:
            try:
                message = await asyncio.wait_for(self._receive(), left)
            except TimeoutError:
                return
            if message["type"] == "http.disconnect" or not message.get("more_body", False):
                self.has_body = True
                return

    async def refuse(self, why: RequestRefused) -> None:
        """Responds with the refusal, unless a response has begun."""
        self.account["reason"] = why.reason
        if self.status or self.is_gone:
            return
        body = json.dumps(why.content(self.id)).encode()
        fields = {"content-type": "application/json", **why.headers()}
        headers = [(name.encode(), value.encode()) for name, value in fields.items()]
        headers.append((b"content-length", str(len(body)).encode()))
        await self.send({"type": "http.response.start", "status": why.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})

    def note(self) -> None:
        """Counts and logs the request."""
        seconds = time.monotonic() - self.begin
        path = self.scope["path"]
        route = getattr(self.scope.get("route"), "path", path)  # /v1/rows/{number} of /v1/rows/7
        known = route if route in self.guard.paths else "other"
        is_malformed = self.account.get("reason") == "bad_http" and not self.status
        status = "gone" if self.is_gone and not self.has_ended else str(self.status)
        status = "400" if is_malformed else status
        self.guard.metrics.requests.labels(path=known, status=status).inc()
        self.guard.metrics.request_seconds.labels(path=known).observe(seconds)
        if "reason" in self.account:
            self.guard.metrics.refusals.labels(reason=self.account["reason"]).inc()
        client = self.scope.get("client")
        fields: dict[str, Any] = {
            "id": self.id,
            "client": client[0] if client else None,
            "method": self.scope["method"],
            "path": path[:200],
            "status": status,
            "seconds": round(seconds, 4),
            "bytes": self.num_bytes,
            **self.account,
        }
        if self.trace is not None:
            fields["trace"] = self.trace
        log("request", **fields)


class ClientGone(Exception):
    """Raised if the client has disconnected before its request was complete."""


def names_no_site(host: bytes) -> bool:
    """Returns whether a Host header is an IP address or localhost.

    A domain name may belong to a web site whose owner makes it resolve to this machine, so that its
    pages could read the responses.
    """
    try:
        name = urlsplit(f"//{host.decode('latin-1')}").hostname or "localhost"
        return name == "localhost" or bool(ip_address(name))
    except ValueError:
        return False


def is_cross_site(headers: Mapping[bytes, bytes]) -> bool:
    """Returns whether a browser sends a request from a page of another site.

    Current browsers state that in Sec-Fetch-Site, which no page can change; older ones send the
    page's Origin. Programs send neither.
    """
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        return site.strip().lower() not in (b"same-origin", b"none")
    origin = headers.get(b"origin")
    if origin is None:
        return False
    return origin.strip().lower().partition(b"://")[2] != headers.get(b"host", b"").strip().lower()


def has_token(header: bytes, token: str) -> bool:
    """Returns whether an Authorization header has the token, in constant time."""
    scheme, _, credentials = header.partition(b" ")
    expected, received = (
        hashlib.sha256(word).digest() for word in (token.encode(), credentials.strip())
    )
    return hmac.compare_digest(expected, received) and scheme.lower() == b"bearer"
