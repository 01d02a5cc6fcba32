"""Connections are bounded: those that say nothing make room, and errors are one line a minute."""

import asyncio
import errno
import json
import resource
import socket
from typing import Any

import pytest
import uvicorn

from vlmill.runtime.service.connections import (
    RESERVED,
    SPARE,
    Connections,
    Report,
    raise_descriptor_limit,
)
from vlmill.runtime.service.logs import flush_log
from vlmill.runtime.service.metrics import Metrics
from vlmill.runtime.service.protocol import (
    LARGEST_COPY,
    AnswerWriter,
    HttpConnection,
    ProbeTransport,
    probe_uvicorn,
)
from vlmill.runtime.service.server import Acceptor
from vlmill.schemas.errors import InputError


class Idle:
    """A connection that notes when it is closed."""

    is_spare = is_malformed = False

    def __init__(self, name: str, closed: list[str]) -> None:
        self.name, self.closed = name, closed

    def begin_request(self) -> None:
        """Does nothing."""

    def begin_answer(self) -> None:
        """Does nothing."""

    def end_request(self) -> None:
        """Does nothing."""

    def has_sent(self) -> bool:
        """Says so of one with that name."""
        return self.name == "sent"

    def close_idle(self) -> None:
        """Notes it."""
        self.closed.append(self.name)


def test_the_oldest_that_sent_nothing_is_closed_first() -> None:
    connections, closed = Connections(4), list[str]()
    sent, silent, kept, partial, busy, late = (
        Idle(name, closed) for name in ("sent", "silent", "kept", "partial", "busy", "late")
    )
    for connection in (sent, kept, partial, silent, busy):
        connections.open(connection)
    connections.rest(partial, Connections.PARTIAL)
    connections.work(kept)
    connections.work(busy)
    connections.rest(kept, Connections.KEPT)
    assert connections.is_full
    connections.open(late)
    while connections.close_oldest_idle():
        pass
    assert closed == ["silent", "late", "partial", "sent", "kept"]
    assert len(connections) == 1 and not connections.is_full
    connections.rest(silent, Connections.KEPT)  # it is being closed: it comes not back
    assert not connections.close_oldest_idle()
    connections.close(busy)
    connections.close(busy)
    assert len(connections) == 0


def test_what_happens_often_is_logged_once_a_minute(capfd: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    report = Report("odd", clock=lambda: now[0])
    for second in range(121):
        now[0] = float(second)
        report.add(error="none")
    flush_log(60)
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line["times"] for line in lines] == [1, 60, 60]


class FailingListener:
    """A listener without descriptors for what comes."""

    def __init__(self) -> None:
        self.socket = socket.socket()
        self.num_accepts = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.socket, name)

    def accept(self) -> None:
        """Fails."""
        self.num_accepts += 1
        raise OSError(errno.EMFILE, "Too many open files")


def test_an_accept_error_is_one_line_and_a_pause(capfd: pytest.CaptureFixture[str]) -> None:
    """And closes a connection that sent nothing, whose descriptor can be had then."""
    closed, metrics, listener = list[str](), Metrics(), FailingListener()

    async def run() -> None:
        connections = Connections(8)
        for name in "abc":
            connections.open(Idle(name, closed))
        made: Any = None
        acceptor = Acceptor(listener, connections, metrics, made)  # type: ignore[arg-type]
        acceptor.accept()
        acceptor.accept()
        await acceptor.stop()

    asyncio.run(run())
    listener.socket.close()
    assert closed == ["a", "b"] and listener.num_accepts == 2
    assert metrics.registry.get_sample_value("vlmill_accept_errors_total") == 2
    flush_log(60)
    (line,) = capfd.readouterr().err.splitlines()
    assert json.loads(line)["error"] == "Too many open files"


@pytest.mark.parametrize(
    ("soft", "hard", "possible", "raised"),
    [
        (10_000, 20_000, 500, None),  # there are enough
        (300, 20_000, 500, 500 + 100 + RESERVED),
        (300, 400, 300 - RESERVED, 400),  # fewer connections
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 500, None),
        (300, resource.RLIM_INFINITY, 500, 500 + 100 + RESERVED),
    ],
)
def test_descriptors_bound_connections(
    soft: int, hard: int, possible: int, raised: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = list[tuple[int, int]]()
    monkeypatch.setattr("os.listdir", lambda path: ["0"] * 100)
    monkeypatch.setattr("resource.getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr("resource.setrlimit", lambda which, pair: limits.append(pair))
    assert raise_descriptor_limit(500) == possible
    assert limits == ([] if raised is None else [(raised, hard)])
    assert RESERVED > SPARE


def test_too_few_descriptors_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (64, 64))
    monkeypatch.setattr("resource.setrlimit", lambda which, pair: None)
    with pytest.raises(InputError, match=r"may open 64 files, .*ulimit -n"):
        raise_descriptor_limit(500)


async def application(scope: object, receive: object, send: object) -> None:
    """Is not called."""


def probed() -> list[str]:
    async def probe() -> list[str]:
        return probe_uvicorn(uvicorn.Config(application, http="h11", ws="none", lifespan="off"))

    return asyncio.run(probe())


def test_uvicorn_has_what_is_used_of_it() -> None:
    assert probed() == []


def test_an_uvicorn_that_differs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HttpConnection, "handle_events", lambda self: None)
    assert probed() == ["send_400_response"]


class Writes(ProbeTransport):
    """Notes each write."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = list[bytes]()

    def write(self, data: bytes) -> None:
        """Notes it."""
        self.parts.append(data)


def test_headers_are_written_with_the_body() -> None:
    transport, large = Writes(), b"x" * (LARGEST_COPY + 1)
    writer = AnswerWriter(transport)
    for body in (b"body", b"", large):
        writer.hold_next()
        writer.write(b"head ")
        assert not transport.parts
        writer.write(body)
        joined = [b"head ", body] if body is large else [b"head " + body]
        assert transport.parts == joined
        transport.parts.clear()
    writer.write(b"alone")
    writer.hold_next()
    writer.write(b"head")
    writer.close()
    assert transport.parts == [b"alone", b"head"] and transport.is_closed
