"""The clients against a scripted service: retries, batches, errors, and no heavy import."""

import asyncio
import io
import json
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.runtime.client.scripted import Answer, Asked, scripted

from vlmill.client import AsyncClient, Client, Retries, ServiceError, ServiceUnreachable, calls
from vlmill.runtime.client.connections import find_pause, parse_retry_after

BUSY = {"error": "the queue is full", "reason": "busy", "request_id": "1"}
SMALL = {"limits": {"pictures": 2, "bytes": 10_000}}


def in_turn(*answers: Answer) -> Callable[[Asked], Answer]:
    """Gives one answer after the other."""
    rest = iter(answers)
    return lambda asked: next(rest)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of the client, which does not make them."""
    made: list[float] = []
    monkeypatch.setattr("vlmill.runtime.client.sending.time.sleep", made.append)
    return made


def test_a_busy_service_is_asked_again_after_the_time_that_it_states(pauses: list[float]) -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=9), usegmt=True)
    answers = in_turn(
        (429, BUSY, {"retry-after": "3"}),
        (503, BUSY, {"retry-after": later}),
        (503, BUSY),
        (502, b"<html>Bad gateway"),
        (200, {"answer": "a kite"}),
    )
    with scripted(answers) as service, Client(service.url, token="s3cret-token") as client:
        assert client.answer(b"image", "what is this?") == "a kite"
    first, second, third, fourth = pauses
    assert 3 <= first <= 3.75 and 7 <= second <= 11.25
    assert 2 <= third <= 2.5 and 4 <= fourth <= 5  # 0.5 s, doubled at each attempt
    assert len(service.asked) == 5 and len({asked.body for asked in service.asked}) == 5
    assert {asked.headers["authorization"] for asked in service.asked} == {"Bearer s3cret-token"}
    assert service.asked[4].files == [b"image"]
    assert service.asked[4].words == {"question": ["what is this?"]}


def test_it_gives_up(pauses: list[float]) -> None:
    with scripted(lambda asked: (429, BUSY, {"retry-after": "45"})) as service:
        with pytest.raises(ServiceError, match="429 busy: the queue is full"):
            Client(service.url).answer(b"image", "what?")
        assert len(service.asked) == 3  # 45 to 57 seconds each; a third pause would be over 120
        with pytest.raises(ServiceError):
            Client(service.url, retries=Retries(tries=1)).answer(b"image", "what?")
        assert len(service.asked) == 4
    with scripted(lambda asked: (422, {"error": "no word", "reason": "no_text"})) as service:
        with pytest.raises(ServiceError) as raised:
            Client(service.url).search(text=" ")
        assert (raised.value.status, raised.value.reason) == (422, "no_text")
        assert len(service.asked) == 1


def test_pauses() -> None:
    retries = Retries(tries=3, seconds=10)
    assert find_pause(retries, 1, 0, 404) is None and find_pause(retries, 1, 0, 413) is None
    assert find_pause(retries, 3, 0, 503) is None and find_pause(retries, 1, 9.9, 503) is None
    assert find_pause(retries, 1, 0, 429, "11") is None  # never earlier than requested
    assert parse_retry_after("soon") is None and parse_retry_after("-1") is None
    assert parse_retry_after(" 7 ") == 7.0
    assert parse_retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0


def test_lost_connections(pauses: list[float]) -> None:
    answers = in_turn((200, {"answer": "1"}), (0, b""), (0, b""), (200, {"answer": "2"}))
    with scripted(answers) as service, Client(service.url) as client:
        assert client.answer(b"image", "what?") == "1"
        assert client.answer(b"image", "what?") == "2"
        numbers = [asked.connection for asked in service.asked]
        assert numbers[0] == numbers[1] != numbers[2]  # kept open; then opened again
    assert len(pauses) == 1  # a kept connection that is closed costs none
    with pytest.raises(ServiceUnreachable, match=r"127.0.0.1.*refused"):
        Client(service.url, retries=Retries(tries=2)).about()
    with pytest.raises(ServiceUnreachable, match=r"no-such-host\.invalid"):
        Client("http://no-such-host.invalid").about()
    assert len(pauses) == 2  # an unknown host is not tried again
    with pytest.raises(ValueError, match="expected an address such as"):
        Client("ftp://host")


def test_what_is_no_service_is_said(tmp_path: Path) -> None:
    with scripted(in_turn((200, b"<html>"), (200, {}), (302, b"", {"location": "/"}))) as service:
        client = Client(service.url)
        for message in ("200 bad_response: /v1/answer", "bad_response", "302 unknown"):
            with pytest.raises(ServiceError, match=message):
                client.answer(b"image", "what?")
        assert len(service.asked) == 3  # a redirect is not followed: it would take the token along
        with pytest.raises(FileNotFoundError):
            client.answer(tmp_path / "none.jpg", "what?")


def scores(asked: Asked) -> Answer:
    """Scores are the lengths of image and text."""
    if asked.path == "/v1/about":
        return 200, SMALL
    texts = asked.words.get("texts", [])
    if asked.path == "/v1/embed":
        pictures = [[len(file)] for file in asked.files]
        return 200, {"pictures": pictures, "texts": [[len(text)] for text in texts]}
    return 200, {
        "scores": [[len(file) + len(text) / 1e3 for text in texts] for file in asked.files]
    }


def test_inputs_beyond_the_limits_are_sent_in_parts(tmp_path: Path) -> None:
    images: list[Any] = [b"x" * n for n in (5, 4_000, 9_000, 1, 2)]
    (tmp_path / "a.jpg").write_bytes(b"x" * 7)
    images[3] = tmp_path / "a.jpg"
    lengths, texts = [5, 4_000, 9_000, 7, 2], ["w" * n for n in range(1, 301)]
    expected = [[n + len(text) / 1e3 for text in texts] for n in lengths]
    with scripted(scores) as service, Client(service.url) as client:
        assert client.score(images, texts) == expected
        sent = [asked for asked in service.asked if asked.path == "/v1/score"]
        sizes = {tuple(map(len, asked.files)) for asked in sent}
        assert sizes == {(5, 4_000), (9_000,), (7, 2)} and len(sent) == 6
        assert max(len(asked.words["texts"]) for asked in sent) == 256
        vectors = client.embed(images, texts)
        assert vectors == {
            "pictures": [[n] for n in lengths],
            "texts": [[len(text)] for text in texts],
        }
        assert sum(asked.path == "/v1/about" for asked in service.asked) == 1
        assert client.score([], ["a"]) == []


def test_calls_are_answered_in_order_and_taken_as_needed() -> None:
    taken = 0

    def many() -> Any:
        nonlocal taken
        while True:
            taken += 1
            yield calls.answer(b"image", str(taken))

    def answer(asked: Asked) -> Answer:
        (word,) = asked.words["question"]
        time.sleep(0.02 if word == "1" else 0)
        if word == "3":
            return 422, {"error": "cannot be read", "reason": "unreadable"}
        return 200, {"answer": word}

    with scripted(answer) as service, Client(service.url, concurrency=2) as client:
        results = client.send_all(many())
        first = [next(results) for _ in range(5)]
        assert isinstance(results, Generator)
        results.close()
        assert [first[0], first[1], first[3], first[4]] == ["1", "2", "4", "5"]
        assert isinstance(first[2], ServiceError) and first[2].reason == "unreadable"
        assert taken <= 5 + 2 * 2


def regions(asked: Asked) -> Answer:
    """A row for each image whose bytes are letters; others are rejected."""
    if asked.path == "/v1/about":
        return 200, SMALL
    bad = [at for at, file in enumerate(asked.files) if not file.isalpha()]
    if len(bad) == len(asked.files):
        rejects = [{"picture": at, "name": str(at), "reason": "unreadable_image"} for at in bad]
        return 422, {"error": "all", "reason": "unreadable_image", "rejects": rejects}
    ids = [file.decode() for file in asked.files if file.isalpha()]
    table, sink = pa.table({"image_id": ids}), io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    header = json.dumps([[at, "unreadable_image"] for at in bad])
    return 200, sink.getvalue(), {"vlmill-rejects": header}


def test_regions_of_many_images() -> None:
    images: list[Any] = [b"a", b"1", b"2", b"3", b"b"]
    with scripted(regions) as service, Client(service.url) as client:
        batches = list(client.iter_regions(iter(images)))
        assert [batch.table and batch.table["image_id"].to_pylist() for batch in batches] == [
            *(["a"], None, ["b"])
        ]
        assert [row.index for batch in batches for row in batch.rejects] == [1, 2, 3]
        assert client.regions(images)["image_id"].to_pylist() == ["a", "b"]
        with pytest.raises(ServiceError, match="no image has a row: unreadable_image"):
            client.regions([b"1", b"2", b"3"])
        with pytest.raises(ServiceError, match="422 unreadable_image"):
            client.regions([b"1"])


def test_the_asynchronous_client() -> None:
    """Gives what the other one gives; a cancelled wait ends at once."""

    async def ask(url: str) -> None:
        async with AsyncClient(url, concurrency=3) as client:
            images: list[Any] = [b"a", b"bb", b"ccc", b"dd", b"e"]
            rows, vectors = await asyncio.gather(
                client.score(images, ["w", "ww"]), client.embed(images)
            )
            assert rows == [[len(image) + n / 1e3 for n in (1, 2)] for image in images]
            assert vectors["pictures"] == [[1], [2], [3], [2], [1]]
            found = [
                result
                async for result in client.send_all(calls.score([image], ["w"]) for image in images)
            ]
            assert found == [[[len(image) + 1 / 1e3]] for image in images]

    with scripted(scores) as service:
        asyncio.run(ask(service.url))

    async def ask_regions(url: str) -> None:
        async with AsyncClient(url) as client:
            assert (await client.regions([b"a", b"1", b"b"]))["image_id"].to_pylist() == ["a", "b"]

    with scripted(regions) as service:
        asyncio.run(ask_regions(service.url))

    async def cancel(url: str) -> None:
        async with AsyncClient(url) as client:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.answer(b"image", "what?"), 0.2)

    with scripted(lambda asked: (429, BUSY, {"retry-after": "60"})) as service:
        begin = time.monotonic()
        asyncio.run(cancel(service.url))
        assert time.monotonic() - begin < 20 and len(service.asked) == 1


def test_the_clients_need_no_network_of_ours() -> None:
    """The import loads neither torch nor any package that is not Python's own."""
    source = (
        "import sys, vlmill.client\n"
        "print([name for name in ('torch', 'numpy', 'pyarrow', 'fastapi', 'httpx', 'requests',"
        " 'pycurl', 'PIL') if name in sys.modules])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert printed.stdout == "[]\n"
