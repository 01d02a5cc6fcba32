"""A server of files and images on this machine that supports ranges and fails on request."""

import re
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOCAL = "127.0.0.0/8"


class FileServer:
    """``files`` by their paths, and what ``find`` returns for others: a content, a trouble or None.

    Each of ``troubles`` befalls one request, in their order. A trouble is "cut" (half of the
    body, then the end), "drop" (no answer), "whole" (no ranges), a status as "500", or
    "LOCATION" of a redirect.
    """

    def __init__(self, port: int, find: Callable[[str], bytes | str | None] | None) -> None:
        self.port, self.url = port, f"http://127.0.0.1:{port}"
        self.files: dict[str, bytes] = {}
        self.find = find or (lambda _: None)
        self.troubles: deque[str] = deque()
        self.asked: list[tuple[str, str]] = []

    @property
    def paths(self) -> list[str]:
        """The paths that were asked for."""
        return [path for path, _ in self.asked]

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answers a GET."""
        wanted = handler.headers.get("Range", "")
        self.asked.append((handler.path, wanted))
        trouble = self.troubles.popleft() if self.troubles else ""
        content: bytes | str | None = self.files.get(handler.path)
        content = self.find(handler.path) if content is None else content
        place = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted)
        if isinstance(content, str):
            trouble, content = content, b""
        if trouble == "drop":
            handler.close_connection = True
        elif trouble.isdigit():
            self._send(handler, int(trouble), b"")
        elif trouble.startswith(("http", "ftp", "/")):
            self._send(handler, 302, b"", Location=trouble)
        elif content is None:
            self._send(handler, 404, b"")
        elif place is None or trouble == "whole":
            self._send(handler, 200, content)
        elif int(place[1]) >= len(content):
            self._send(handler, 416, b"", Content_Range=f"bytes */{len(content)}")
        else:
            self._send_part(handler, content, int(place[1]), int(place[2]), trouble == "cut")

    def _send_part(
        self, handler: BaseHTTPRequestHandler, content: bytes, first: int, last: int, cut: bool
    ) -> None:
        part = content[first : last + 1]
        said = f"bytes {first}-{first + len(part) - 1}/{len(content)}"
        headers = {"Content_Range": said, "ETag": f'"{hash(content)}"'}
        self._send(handler, 206, part, cut=cut, **headers)

    def _send(
        self,
        handler: BaseHTTPRequestHandler,
        status: int,
        body: bytes,
        *,
        cut: bool = False,
        **headers: str,
    ) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[: len(body) // 2] if cut else body)
        handler.close_connection = cut


@contextmanager
def file_server(
    find: Callable[[str], bytes | str | None] | None = None, address: str = "127.0.0.1"
) -> Iterator[FileServer]:
    """Gives a server, which ends with the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            served.answer(self)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer((address, 0), Handler)
    server.daemon_threads = True
    served = FileServer(server.server_address[1], find)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
