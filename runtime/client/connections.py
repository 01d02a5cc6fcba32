"""Sends requests over HTTP/1.1 connections that stay open."""

import http.client
import json
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from vlmill.runtime.client.calls import Call
from vlmill.runtime.client.forms import JSON, encode_form
from vlmill.runtime.client.responses import Response

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
