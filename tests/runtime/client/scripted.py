"""A service in this process that answers as a test says."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request, with the files and words of its form."""

    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    files: list[bytes] = field(default_factory=list)
    words: dict[str, list[str]] = field(default_factory=dict)


Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]]


@dataclass
class Scripted:
    """What was asked, and the function that answers: a status, JSON or bytes, and headers."""

    answer: Callable[[Asked], Answer]
    asked: list[Asked] = field(default_factory=list)
    url: str = ""


@contextmanager
def scripted(answer: Callable[[Asked], Answer]) -> Iterator[Scripted]:
    """Serves until the block ends. An answer of the status 0 closes the connection."""
    service = Scripted(answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Says nothing."""

        def do_GET(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            files, words = parts_of(body, headers.get("content-type", ""))
            asked = Asked(
                path=self.path,
                headers=headers,
                body=body,
                connection=self.client_address[1],
                files=files,
                words=words,
            )
            service.asked.append(asked)
            status, content, *more = service.answer(asked)
            if status == 0:
                self.close_connection = True
                return
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in (more[0] if more else {}).items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    service.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()


def parts_of(body: bytes, content_type: str) -> tuple[list[bytes], dict[str, list[str]]]:
    """Returns the files and the words of a form."""
    files, words = list[bytes](), dict[str, list[str]]()
    if "boundary=" not in content_type:
        return files, words
    edge = b"--" + content_type.partition("boundary=")[2].encode()
    for part in body.split(edge)[1:-1]:
        head, _, content = part[2:-2].partition(b"\r\n\r\n")
        name = re.search(rb'name="([^"]*)"', head)
        assert name is not None
        if b"filename=" in head:
            files.append(content)
        else:
            words.setdefault(name[1].decode(), []).append(content.decode())
    return files, words
