"""Runs one exchange of the client: libcurl's options, its callbacks, and the answer.

Every address is checked when its socket is opened, so libcurl connects only to checked addresses,
for any name, spelling or later DNS result.
"""

import errno
import re
import socket
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import pycurl

from vlmill.runtime.net.addresses import is_web_address, refusal
from vlmill.runtime.net.exchange import Answer, ClientSettings, Request
from vlmill.runtime.net.responses import decode_body, split_http
from vlmill.runtime.net.urls import resolve
from vlmill.schemas.rejects import Reason, Rejected

_HEAD_ENDS = (b"\n\r\n", b"\n\n")
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_VALIDATOR = re.compile(r"[\x20-\x7e]{1,1000}")
_TYPES = "Accept: text/html,application/xhtml+xml,image/*;q=0.9,*/*;q=0.8"
# Only gzip: other readers of WARC may not support more.
_ACCEPT = [_TYPES, "Accept-Encoding: gzip"]
_ACCEPT_STORED = [_TYPES, "Accept-Encoding: identity"]  # ranges are of the bytes as stored

_TLS = (
    pycurl.E_SSL_CONNECT_ERROR,
    pycurl.E_PEER_FAILED_VERIFICATION,
    pycurl.E_SSL_CERTPROBLEM,
    pycurl.E_SSL_CIPHER,
    pycurl.E_SSL_ISSUER_ERROR,
    pycurl.E_SSL_INVALIDCERTSTATUS,
    pycurl.E_SSL_SHUTDOWN_FAILED,
)
_FAILURES: dict[int, Reason] = {
    pycurl.E_URL_MALFORMAT: Reason.BAD_URL,
    pycurl.E_COULDNT_RESOLVE_HOST: Reason.UNKNOWN_HOST,
    pycurl.E_COULDNT_CONNECT: Reason.NO_CONNECTION,
    pycurl.E_OPERATION_TIMEDOUT: Reason.TIMED_OUT,
    pycurl.E_PARTIAL_FILE: Reason.CUT_OFF,
    pycurl.E_GOT_NOTHING: Reason.CUT_OFF,
    pycurl.E_SEND_ERROR: Reason.CUT_OFF,
    pycurl.E_FILESIZE_EXCEEDED: Reason.TOO_LARGE,
    **dict.fromkeys(_TLS, Reason.TLS_ERROR),
    # HTTP/0.9, which has no status line, is refused as a protocol.
    pycurl.E_UNSUPPORTED_PROTOCOL: Reason.BAD_RESPONSE,
    pycurl.E_FTP_WEIRD_SERVER_REPLY: Reason.BAD_RESPONSE,
    pycurl.E_BAD_CONTENT_ENCODING: Reason.BAD_RESPONSE,
    100: Reason.HEADERS_TOO_LARGE,  # CURLE_TOO_LARGE: a line above 100 KB
}
_OURS = (
    *(pycurl.E_OUT_OF_MEMORY, pycurl.E_FAILED_INIT, pycurl.E_BAD_FUNCTION_ARGUMENT),
    *(pycurl.E_SSL_CACERT_BADFILE, pycurl.E_UNKNOWN_OPTION, pycurl.E_ABORTED_BY_CALLBACK),
)
# Errors of opening a socket that come from this machine, not the server.
_OUR_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)


def usable_url(url: str) -> str:
    """Returns the normalised ``url``; raises Rejected if it cannot be requested."""
    normal = resolve("", url)
    if normal is None:
        raise Rejected(Reason.BAD_URL, "no http or https URL")
    if detail := refusal(normal):
        raise Rejected(Reason.BAD_ADDRESS, detail)
    return normal


def host_to_look_up(url: str) -> str | None:
    """Returns the host of a usable URL, or None if it is an address."""
    host = url.partition("://")[2].partition("/")[0]
    if host.startswith("["):
        return None
    host = host.partition(":")[0]
    return None if host.rpartition(".")[2].isdigit() else host


class Transfer:
    """Holds a libcurl handle, which is reused for one exchange at a time."""

    def __init__(self, settings: ClientSettings, user_agent: str, ca_file: str) -> None:
        self.settings = settings
        self.curl = pycurl.Curl()
        for option, value in _options(settings, user_agent, ca_file).items():
            self.curl.setopt(option, value)
        self.curl.setopt(pycurl.HEADERFUNCTION, self._on_header)
        self.curl.setopt(pycurl.WRITEFUNCTION, self._on_body)
        self.curl.setopt(pycurl.OPENSOCKETFUNCTION, self._open_socket)
        self.curl.setopt(pycurl.HTTPHEADER, _ACCEPT)
        self._is_plain, self._is_pinned = True, False
        self._proxy: str | None = None

    def begin(
        self, request: Request, url: str, addresses: Sequence[str], proxy: str | None = None
    ) -> None:
        """Prepares the handle for ``request``, whose URL is ``url`` from :func:`usable_url`.

        ``addresses`` are its host's; empty if the host is an address itself, and with a ``proxy``.
        """
        if proxy != self._proxy:
            self.curl.setopt(pycurl.PROXY, proxy or "")
        self._proxy = proxy
        self.request, self.url = request, url
        self.limit = self.settings.max_bytes if request.max_bytes is None else request.max_bytes
        self.head = bytearray()
        self.num_header_bytes = 0
        self.body: list[bytes] = []
        self.num_body_bytes = 0
        self.failure: tuple[Reason, str] | None = None
        self.refused: str | None = None  # the last refused address
        self.error: OSError | None = None
        self.curl.setopt(pycurl.URL, self.url)
        self.curl.setopt(pycurl.MAXFILESIZE_LARGE, self.limit)
        self._set_headers(request)
        self._pin(url, addresses)
        self.started = time.time()

    def end(self, code: int, message: str) -> Answer:
        """Returns the answer of an exchange that libcurl ended with ``code`` (0: complete).

        Raises OSError and RuntimeError for failures of this machine.
        """
        if self.error is not None:
            raise self.error
        status, headers, _ = split_http(bytes(self.head))
        failure = self._failure(code, message)
        body = b"" if failure else b"".join(self.body)
        content = None if failure else self._content(body, headers)
        if failure is None and content is None:
            failure = Reason.TOO_LARGE, f"more than {self.limit} bytes when decoded"
            body = b""
        self.body = []
        reason, detail = failure or (None, None)
        return Answer(
            request=self.request,
            failure=reason,
            detail=detail,
            status=status,
            head=bytes(self.head),
            headers=headers,
            body=body,
            content=content or b"",
            address=None if self._proxy else self.curl.getinfo(pycurl.PRIMARY_IP) or None,
            started=self.started,
            seconds=self.curl.getinfo(pycurl.TOTAL_TIME),
            location=self._location(status, headers),
        )

    def _content(self, body: bytes, headers: dict[str, str]) -> bytes | None:
        if self.request.byte_range:
            # Some servers declare gzip as the encoding of a stored .gz.
            headers = {name: value for name, value in headers.items() if name != "content-encoding"}
        return decode_body(body, headers, self.limit)

    def _failure(self, code: int, message: str) -> tuple[Reason, str] | None:
        if self.failure is not None:
            return self.failure
        if code == pycurl.E_OK:
            # libcurl treats a head that is truncated by the connection's end as complete.
            is_whole = self.head.endswith(_HEAD_ENDS)
            return None if is_whole else (Reason.CUT_OFF, "closed within the headers")
        if code in _OURS:
            raise RuntimeError(f"libcurl cannot run {self.url}: {message} ({code})")
        if code == pycurl.E_COULDNT_CONNECT and self.refused is not None:
            return Reason.BAD_ADDRESS, f"{self.refused} is not an address of the web"
        reason = _FAILURES.get(code, Reason.BAD_RESPONSE)
        if code == pycurl.E_RECV_ERROR and self.curl.getinfo(pycurl.OS_ERRNO):
            reason = Reason.CUT_OFF  # by the system; without its error, the bytes were invalid
        return reason, message or f"error {code} of libcurl"

    def _location(self, status: int, headers: dict[str, str]) -> str | None:
        if status not in _REDIRECTS or "location" not in headers:
            return None
        location = headers["location"].encode("latin-1")
        try:
            return resolve(self.url, location.decode("utf-8"))
        except UnicodeDecodeError:
            return resolve(self.url, location.decode("latin-1"))

    def _set_headers(self, request: Request) -> None:
        headers = [
            f"{name}: {value}"
            for name, value in (
                ("If-None-Match", request.etag),
                ("If-Modified-Since", request.last_modified),
                ("Authorization", request.authorization),
            )
            if value is not None and _VALIDATOR.fullmatch(value)
        ]
        if request.referrer is not None and request.referrer.isascii():
            headers.append(f"Referer: {request.referrer}")
        if request.byte_range:
            start, stop = request.byte_range
            headers.append(f"Range: bytes={start}-{stop - 1}")
        if headers or not self._is_plain:
            accept = _ACCEPT_STORED if request.byte_range else _ACCEPT
            self.curl.setopt(pycurl.HTTPHEADER, accept + headers)
        self._is_plain = not headers

    def _pin(self, url: str, addresses: Sequence[str]) -> None:
        """Sets the addresses of a host, and replaces the addresses in the cache of libcurl."""
        if addresses:
            parts = urlsplit(url)
            host_port = f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
            entry = f"+{host_port}:{','.join(addresses)}"
            self.curl.setopt(pycurl.RESOLVE, [f"-{host_port}", entry])
        elif self._is_pinned:
            self.curl.unsetopt(pycurl.RESOLVE)
        self._is_pinned = bool(addresses)

    # Callbacks of libcurl: returning a number other than that of the bytes ends the exchange.

    def _on_header(self, line: bytes) -> int:
        self.num_header_bytes += len(line)
        if self.num_header_bytes > self.settings.max_header_bytes:
            limit = self.settings.max_header_bytes
            self.failure = Reason.HEADERS_TOO_LARGE, f"more than {limit} bytes of headers"
            return -1
        if line.startswith(b"HTTP/") and self.head.endswith(_HEAD_ENDS):
            self.head.clear()  # the previous head was an interim response, such as 103
        self.head += line
        return len(line)

    def _on_body(self, chunk: bytes) -> int:
        self.num_body_bytes += len(chunk)
        if self.num_body_bytes > self.limit:
            self.failure = Reason.TOO_LARGE, f"more than {self.limit} bytes"
            return -1
        self.body.append(chunk)
        return len(chunk)

    def _open_socket(self, purpose: int, address: Any) -> Any:
        family, kind, protocol, where = address
        if family not in (socket.AF_INET, socket.AF_INET6):
            self.refused = f"family {family}"
            return pycurl.SOCKET_BAD
        host = where[0].decode("ascii") if isinstance(where[0], bytes) else where[0]
        if len(where) > 3 and where[3]:
            host += f"%{where[3]}"
        # With a proxy this is its address, which the user has chosen.
        if self._proxy is None and not is_web_address(host, self.settings.allowed):
            self.refused = host
            return pycurl.SOCKET_BAD
        try:
            return socket.socket(family, kind, protocol)
        except OSError as error:
            if error.errno in _OUR_ERRNOS:
                self.error = error
            return pycurl.SOCKET_BAD


def _options(settings: ClientSettings, user_agent: str, ca_file: str) -> dict[int, Any]:
    """Sets the options that are the same for every exchange."""
    return {
        pycurl.PROTOCOLS: pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS,
        pycurl.HTTP_VERSION: pycurl.CURL_HTTP_VERSION_1_1,
        pycurl.FOLLOWLOCATION: 0,
        pycurl.PROXY: "",  # libcurl ignores the environment, which `proxies` reads
        pycurl.NOPROXY: "",
        pycurl.NETRC: pycurl.NETRC_IGNORED,
        pycurl.NOSIGNAL: 1,
        pycurl.PATH_AS_IS: 1,  # resolve() has removed the dots
        pycurl.USERAGENT: user_agent,
        pycurl.HTTP_TRANSFER_DECODING: 0,  # bytes stay as received: WARC stores them
        pycurl.HTTP_CONTENT_DECODING: 0,
        pycurl.HTTP09_ALLOWED: 0,
        pycurl.BUFFERSIZE: 128 << 10,
        pycurl.DNS_CACHE_TIMEOUT: 60,  # entries are set again for each request
        pycurl.CONNECTTIMEOUT_MS: round(settings.connect_seconds * 1_000),
        pycurl.TIMEOUT_MS: round(settings.seconds * 1_000),
        pycurl.LOW_SPEED_LIMIT: settings.slow_bytes_per_second,
        pycurl.LOW_SPEED_TIME: settings.slow_seconds,
        pycurl.SSL_VERIFYPEER: 1,
        pycurl.SSL_VERIFYHOST: 2,
        pycurl.SSLVERSION: pycurl.SSLVERSION_TLSv1_2,
        pycurl.CAINFO: ca_file,
    }
