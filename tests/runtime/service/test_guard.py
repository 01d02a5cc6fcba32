"""What all requests hold together is bounded, and the oldest of them are not refused for others."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from vlmill.runtime.service.guard import HOLD, Guard
from vlmill.runtime.service.metrics import Metrics
from vlmill.runtime.service.settings import ServiceSettings

SETTINGS = ServiceSettings(max_bytes=100, max_images=1)


class Client:
    """Sends a body part by part, and keeps the status of the answer."""

    def __init__(self, guard: Guard, length: int | None = None) -> None:
        self.parts: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self.status, self.body = 0, b""
        headers = [(b"host", b"localhost"), (b"transfer-encoding", b"chunked")]
        if length is not None:
            headers[1] = (b"content-length", b"%d" % length)
        scope = {
            **{"type": "http", "method": "POST", "path": "/", "http_version": "1.1"},
            **{"headers": headers, "state": {}},
        }
        self.task = asyncio.create_task(guard(scope, self.parts.get, self.take))

    async def send(self, size: int, *, is_last: bool = False) -> None:
        """Sends a part, and lets the service read it."""
        await self.parts.put(
            {"type": "http.request", "body": bytes(size), "more_body": not is_last}
        )
        for _ in range(10):
            await asyncio.sleep(0)

    async def take(self, message: MutableMapping[str, Any]) -> None:
        """Takes a part of the answer."""
        self.status = message.get("status", self.status)
        self.body += message.get("body", b"")


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> Guard:
    """One with room for 150 bytes; the application reads a body and waits for the word."""
    monkeypatch.setattr(ServiceSettings, "bytes_in_flight", 150)
    monkeypatch.setattr("vlmill.runtime.service.guard.LINGER_SECONDS", 0.0)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"read"})

    return Guard(application, SETTINGS, Metrics(), frozenset("/"))


def refusals(guard: Guard, reason: str) -> float | None:
    return guard.metrics.registry.get_sample_value("vlmill_refusals_total", {"reason": reason})


def test_the_newest_body_makes_room_for_the_others(guard: Guard) -> None:
    """Whosever part comes to the limit; also where the newest sends nothing more."""

    async def run() -> None:
        first, second = Client(guard), Client(guard)
        await first.send(60)
        await second.send(80)
        assert guard.held_bytes == 140
        await first.send(20)
        await second.task
        assert second.status == 429 and b"retry later" in second.body
        assert guard.held_bytes == 80
        third = Client(guard)
        await third.send(71)  # to the limit itself
        await third.task
        assert third.status == 429
        await first.send(20, is_last=True)
        await first.task
        assert (first.status, first.body) == (200, b"read")
        assert guard.held_bytes == 0 and not guard.reading

    asyncio.run(run())
    assert refusals(guard, "busy") == 2


def test_a_body_for_which_there_is_no_room_is_not_begun(guard: Guard) -> None:
    async def run() -> None:
        first = Client(guard)
        await first.send(60)
        second = Client(guard, length=91)
        await second.task
        assert second.status == 429
        await first.send(0, is_last=True)
        await first.task
        assert first.status == 200 and guard.held_bytes == 0

    asyncio.run(run())


def test_what_a_request_fetches_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServiceSettings, "bytes_in_flight", 150)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        scope[HOLD](100)
        scope[HOLD](-90)
        scope[HOLD](200)

    guard = Guard(application, SETTINGS, Metrics(), frozenset("/"))

    async def run() -> None:
        client = Client(guard)
        await client.send(10, is_last=True)
        await client.task
        assert client.status == 429 and guard.held_bytes == 0

    asyncio.run(run())
