"""Serves the web of ``host_kinds.py`` from a separate process, and records the requests.

Run as a module it is that process: ``python -m worlds.host_server LOG|- NUM_HOSTS [CERTIFICATE]``
prints the port on which all hosts listen, and ends when its standard input does.
"""

import asyncio
import json
import os
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

from worlds.host_kinds import make_site
from worlds.hosts import Reply, Site, address, large_image, response

DRIP_S = 0.05
MANY = "/many/"  # paths below it show an image of 100 KB on every host, for any list of URLs
_BLOCK = bytes(1 << 16)
_TRIES = 20


@dataclass(frozen=True, kw_only=True)
class Hit:
    """A request as its server saw it."""

    at: float  # seconds since 1970, when its last header came
    host: int
    path: str
    agent: str  # the User-Agent
    running: int  # requests of this host that were being answered, this one included


@dataclass(frozen=True, kw_only=True)
class Served:
    """A web that is being served."""

    site: Site
    log: Path | None
    process: subprocess.Popen[str]

    def hits(self) -> list[Hit]:
        """The requests so far, in their order."""
        lines = self.log.read_text().splitlines() if self.log else []
        return [Hit(**json.loads(line)) for line in lines]


@contextmanager
def serve_site(
    log: Path | None, num_hosts: int = 50, certificate: Path | None = None
) -> Iterator[Served]:
    """Serves the web; requests are added to ``log``, or to none. Ends with its caller, killed too.

    With a ``certificate``, which has its key, it speaks TLS. Raises RuntimeError where the process
    does not come up.
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(Path(__file__).parents[1]), *sys.path))}
    command = [sys.executable, "-m", "worlds.host_server", str(log or "-"), str(num_hosts)]
    command += [str(certificate)] if certificate else []
    with subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stdout
        line = process.stdout.readline()
        if not line.strip().isdigit():
            raise RuntimeError("the server of the generated hosts did not start")
        try:
            yield Served(site=make_site(int(line), num_hosts), log=log, process=process)
        finally:
            process.stdin.close()
            process.terminate()


class Connection(asyncio.Protocol):
    """Answers the requests of one connection, one after the other."""

    def __init__(self, web: "Web", host: int) -> None:
        self.web, self.host = web, host
        self.bytes_in = b""
        self.is_open = True
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.is_answering = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def pause_writing(self) -> None:
        self.may_write.clear()

    def resume_writing(self) -> None:
        self.may_write.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self.may_write.set()
        if self.is_answering:
            self.web.running[self.host] -= 1

    def data_received(self, received: bytes) -> None:
        self.bytes_in += received
        while not self.is_answering and b"\r\n\r\n" in self.bytes_in:
            head, _, self.bytes_in = self.bytes_in.partition(b"\r\n\r\n")
            self.is_answering = True
            self.web.running[self.host] += 1
            self.answer(self.web.reply(self.host, head))

    def answer(self, reply: Reply) -> None:
        """Sends a reply and does what it says then."""
        self.transport.write(reply.sent)
        if reply.then == "keep":
            self.is_answering = False
            self.web.running[self.host] -= 1
        elif reply.then == "close":
            self.transport.close()
        elif reply.then == "reset":
            connection = self.transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()
        elif reply.then in ("drip", "endless"):
            task = asyncio.ensure_future(self.go_on(reply))
            self.web.tasks.add(task)
            task.add_done_callback(self.web.tasks.discard)

    async def go_on(self, reply: Reply) -> None:
        """Sends more until the client leaves."""
        while self.is_open:
            self.transport.write(b"a" if reply.then == "drip" else _BLOCK)
            # Without a pause nobody else would have a turn, nor be told that the client has left.
            await asyncio.sleep(DRIP_S if reply.then == "drip" else 0)
            await self.may_write.wait()


class Web:
    """The hosts' memory: what each was asked, and how often."""

    def __init__(self, site: Site, log: TextIO | None) -> None:
        self.site, self.log = site, log
        self.running: Counter[int] = Counter()
        self.times: Counter[tuple[int, str]] = Counter()
        self.tasks: set[asyncio.Future[None]] = set()
        self.many = response(large_image(), headers={"Content-Type": "image/jpeg"})

    def reply(self, host: int, head: bytes) -> Reply:
        """Chooses what to send, and writes the request down."""
        lines = head.decode("latin-1").split("\r\n")
        path = lines[0].split(" ")[1]
        headers = {name.lower(): value for name, _, value in (x.partition(": ") for x in lines[1:])}
        if self.log is not None:
            agent = headers.get("user-agent", "")
            hit = Hit(at=time.time(), host=host, path=path, agent=agent, running=self.running[host])
            self.log.write(json.dumps(asdict(hit)) + "\n")
        return self._choose(host, path, headers.get("if-none-match"))

    def _choose(self, host: int, path: str, validator: str | None) -> Reply:
        if path.startswith(MANY):
            return self.many
        replies = self.site.replies.get((host, path), (response(status="404 Not Found"),))
        reply = replies[min(self.times[host, path], len(replies) - 1)]
        self.times[host, path] += 1
        if validator and f"ETag: {validator}\r\n".encode() in reply.sent:
            return Reply(sent=f"HTTP/1.1 304 Same\r\nETag: {validator}\r\n\r\n".encode())
        return reply


def listening(num_hosts: int) -> Sequence[socket.socket]:
    """Opens a socket for each host, all on one free port."""
    for _ in range(_TRIES):
        sockets: list[socket.socket] = []
        try:
            for host in range(num_hosts):
                port = sockets[0].getsockname()[1] if sockets else 0
                sockets.append(socket.create_server((address(host), port), backlog=512))
            return sockets
        except OSError:
            for one in sockets:
                one.close()
    raise OSError(f"no port is free on all of {num_hosts} loopback addresses")


async def run(log: TextIO | None, num_hosts: int, certificate: str | None) -> None:
    """Serves until the standard input ends."""
    tls = None
    if certificate is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate)
    sockets = listening(num_hosts)
    port = sockets[0].getsockname()[1]
    web = Web(make_site(port, num_hosts), log)
    loop = asyncio.get_running_loop()
    for host, one in enumerate(sockets):
        await loop.create_server(partial(Connection, web, host), sock=one, ssl=tls)
    print(port, flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


def main() -> None:
    """Runs as the process of :func:`serve_site`."""
    log, num_hosts = sys.argv[1], int(sys.argv[2])
    certificate = sys.argv[3] if len(sys.argv) > 3 else None
    with open(os.devnull if log == "-" else log, "a", buffering=1) as file:
        asyncio.run(run(None if log == "-" else file, num_hosts, certificate))


if __name__ == "__main__":
    main()
