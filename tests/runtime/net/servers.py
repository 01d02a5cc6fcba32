"""A server in a thread that sends whatever bytes a test wants, and counts who came."""

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from ipaddress import ip_address

from vlmill.runtime.net.names import Done, Lookup, LookupOutcome

Send = Callable[[bytes], None]
Answering = Callable[[str, Send], bool]
"""Is given a request's head and a function that sends; says whether the connection stays open."""


class Server:
    """Listens on ``address``; ``heads`` are the requests that came, ``num_connections`` who did."""

    def __init__(
        self, answering: Answering, address: str = "127.0.0.1", tls: ssl.SSLContext | None = None
    ) -> None:
        self.answering, self.tls = answering, tls
        self.heads: list[str] = []
        self.num_connections = 0
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.socket = socket.create_server((address, 0), family=family, backlog=64)
        self.port: int = self.socket.getsockname()[1]
        self._accepting = self._start(self._accept)

    def close(self) -> None:
        """Ends all connections and threads."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(0.2)  # one that is still asleep ends by itself

    def _start(self, target: Callable[..., None], *args: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            self.num_connections += 1
            self._open.append(connection)
            self._start(self._talk, connection)

    def _talk(self, connection: socket.socket) -> None:
        with suppress(OSError):
            if self.tls:
                connection = self.tls.wrap_socket(connection, server_side=True)
                self._open.append(connection)
            received = b""
            while True:
                while b"\r\n\r\n" not in received:
                    if not (more := connection.recv(1 << 16)):
                        return
                    received += more
                head, _, received = received.partition(b"\r\n\r\n")
                self.heads.append(head.decode("latin-1"))
                if not self.answering(self.heads[-1], connection.sendall):
                    break
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()


@contextmanager
def serving(
    answering: Answering, address: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> Iterator[Server]:
    """Runs a server while the block runs."""
    server = Server(answering, address, tls)
    try:
        yield server
    finally:
        server.close()


def sends(reply: bytes, *, stays: bool = True) -> Answering:
    """Answers every request with ``reply``."""

    def answer(head: str, send: Send) -> bool:
        send(reply)
        return stays

    return answer


def ok(body: bytes = b"hello", *headers: str) -> bytes:
    """A whole response."""
    lines = ["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def at_once(names: Callable[[str], Sequence[str]], seconds: float = 300.0) -> Lookup:
    """A lookup whose outcomes are there when it is asked."""

    def lookup(host: str, done: Done) -> None:
        done(LookupOutcome(host=host, addresses=tuple(names(host)), seconds=seconds))

    return lookup


class NameServer(threading.Thread):
    """A server of DNS on 127.0.0.1 that knows ``records``: name to (address, time to live)s.

    A name that it does not know does not exist; one without addresses gets no answer at all.
    """

    def __init__(self, records: dict[str, list[tuple[str, int]]]) -> None:
        super().__init__(daemon=True)
        self.records, self.asked = records, list[str]()
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.port: int = self.socket.getsockname()[1]

    def run(self) -> None:
        while True:
            query, client = self.socket.recvfrom(4096)
            if not query:
                return
            reply = self.reply(query)
            if reply is not None:
                self.socket.sendto(reply, client)

    def reply(self, query: bytes) -> bytes | None:
        """The answer to a query of one question (RFC 1035, section 4)."""
        labels, at = [], 12
        while length := query[at]:
            labels.append(query[at + 1 : at + 1 + length].decode().lower())
            at += 1 + length
        name, (kind,) = ".".join(labels), struct.unpack("!H", query[at + 1 : at + 3])
        self.asked.append(name)
        if name in self.records and not self.records[name]:
            return None
        version = {1: 4, 28: 6}.get(kind)
        records = [
            (ip_address(address), seconds)
            for address, seconds in self.records.get(name, ())
            if ip_address(address).version == version
        ]
        flags = 0x8180 | (0 if name in self.records else 3)  # an answer of a resolver; NXDOMAIN
        reply = query[:2] + struct.pack("!5H", flags, 1, len(records), 0, 0) + query[12 : at + 5]
        for address, seconds in records:
            reply += struct.pack("!3HIH", 0xC00C, kind, 1, seconds, len(address.packed))
            reply += address.packed
        return reply

    def close(self) -> None:
        """Ends the thread."""
        self.socket.sendto(b"", ("127.0.0.1", self.port))
        self.join()
        self.socket.close()


@contextmanager
def naming(records: dict[str, list[tuple[str, int]]]) -> Iterator[NameServer]:
    """A server of DNS."""
    server = NameServer(records)
    server.start()
    try:
        yield server
    finally:
        server.close()
