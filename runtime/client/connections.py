"""Sends requests over HTTP/1.1 connections that stay open, and decides which are sent again.

Every request of the services computes something and changes nothing, so it can be repeated.
"""

import http.client
import json
import random
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

from vlmill.runtime.client.calls import Call
from vlmill.runtime.client.forms import JSON, encode_form
from vlmill.runtime.client.responses import Response, ServiceError, make_error

MOST_IDLE = 32
TOKEN_HEADER = "authorization"


class ServiceUnreachable(OSError):
    """Raised if a service cannot be reached, or closes the connection without a response.

    ``is_temporary`` is whether the same request may succeed a moment later: not after a timeout, an
    unknown host or an invalid certificate.
    """

    def __init__(self, url: str, error: Exception) -> None:
        super().__init__(f"{url}: {error or type(error).__name__}")
        self.is_temporary = isinstance(error, (ConnectionError, http.client.HTTPException))


class Connections:
    """Sends the requests of a client; thread-safe.

    A connection that is free is used again. Redirects are not followed, because they could lead
    the token to another host.
    """

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r}: expected an address such as http://127.0.0.1:8080")
        self._url, self._path = url, parts.path.rstrip("/")
        self._host, self._port, self._timeout = parts.hostname, parts.port, timeout
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._headers = {} if token is None else {TOKEN_HEADER: f"Bearer {token}"}
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def send(self, call: Call[Any]) -> Response:
        """Sends a request once. Raises ServiceUnreachable, and OSError for an unreadable image."""
        body, headers = encode_call(call)
        headers = {**self._headers, **headers}
        while True:
            connection, is_used = self._take()
            try:
                return self._exchange(connection, call, body, headers)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                failure = ServiceUnreachable(self._url, error)
                # The service may have closed a connection that was free for long.
                if not (is_used and failure.is_temporary):
                    raise failure from error

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        call: Call[Any],
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> Response:
        # A refusal may come before the whole body is sent: it is read then.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.request(call.method, self._path + call.path, body, dict(headers))
        answer = connection.getresponse()
        content = answer.read()
        named = {name.lower(): value for name, value in answer.getheaders()}
        if answer.will_close:
            connection.close()
        else:
            self._keep(connection)
        return Response(status=answer.status, content=content, headers=named)

    def _take(self) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            if self._idle:
                return self._idle.pop(), True
        return self._open(), False

    def _open(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=self._timeout, context=self._tls
        )

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if len(self._idle) < MOST_IDLE:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Closes the free connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def encode_call(call: Call[Any]) -> tuple[bytes | None, dict[str, str]]:
    """Returns the body of a request and its headers. Raises OSError for an unreadable image."""
    headers = {"accept": call.accept}
    if call.method == "GET":
        return None, headers
    if call.body is not None:
        return json.dumps(call.body, allow_nan=False).encode(), {**headers, "content-type": JSON}
    body, content_type = encode_form(call.images, call.words)
    return body, {**headers, "content-type": content_type}


Result = TypeVar("Result")
OK = 200

BUSY = (429, 503)  # usually with Retry-After
GATEWAY = (502, 504)  # of a proxy whose service has gone or is too slow
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds, without Retry-After


@dataclass(frozen=True, kw_only=True)
class Retries:
    """Holds how often a request is sent at most, and the seconds that all its pauses may take."""

    tries: int = 6
    seconds: float = 120.0


def find_pause(
    retries: Retries, attempt: int, waited: float, status: int | None, retry_after: str = ""
) -> float | None:
    """Returns the seconds until a request is sent again, or None if it is not.

    ``attempt`` counts from 1, ``waited`` are the seconds of earlier pauses, and ``status`` has the
    value None for a failed connection. A service's Retry-After is never undercut. A little is added
    to it, because all clients of a busy service would otherwise return at the same moment.
    """
    if attempt >= retries.tries or (status is not None and status not in (*BUSY, *GATEWAY)):
        return None
    pause = parse_retry_after(retry_after) if status is not None else None
    if pause is None:
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (attempt - 1))
    pause *= 1 + random.random() / 4
    return pause if waited + pause <= retries.seconds else None


def parse_retry_after(value: str) -> float | None:
    """Returns the seconds of a Retry-After header, a number or a date; None for anything else."""
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


@dataclass(frozen=True, kw_only=True)
class Done(Generic[Result]):
    """Holds the result of a call."""

    result: Result


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """Holds the number of an attempt, from 1, and the seconds of the pauses before it."""

    number: int = 1
    waited: float = 0.0

    def after(self, pause: float) -> "Attempt":
        """Returns the next attempt, after a pause."""
        return Attempt(number=self.number + 1, waited=self.waited + pause)


def try_call(
    connections: Connections, retries: Retries, call: Call[Result], attempt: Attempt
) -> Done[Result] | float:
    """Returns the result of a call, or the seconds until it should be sent again.

    Raises ServiceError, ServiceUnreachable, and OSError for an unreadable image.
    """
    try:
        response = connections.send(call)
    except ServiceUnreachable as error:
        pause = find_pause(retries, attempt.number, attempt.waited, None)
        if pause is None or not error.is_temporary:
            raise
        return pause
    if response.status == OK:
        return Done(result=read_response(call, response))
    retry_after = response.headers.get("retry-after", "")
    pause = find_pause(retries, attempt.number, attempt.waited, response.status, retry_after)
    if pause is None:
        raise make_error(response)
    return pause


def read_response(call: Call[Result], response: Response) -> Result:
    """Returns the result of a call from its response. Raises ServiceError for an invalid one."""
    try:
        return call.read(response)
    except (AttributeError, KeyError, TypeError, ValueError, OSError) as error:
        message = f"{call.path}: not a response of this service: {error}"
        raise ServiceError(response.status, "bad_response", message) from error
