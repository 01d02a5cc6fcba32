"""``/v1/similar``: the items of an index, without a checkpoint, and another index meanwhile."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.inference.search.test_items import save
from tests.inference.search.test_search import answers, unit_vectors, write_vectors
from tests.serving import form

from vlmill.inference.search.index import INDEX
from vlmill.inference.service.app import model_service
from vlmill.inference.service.served_index import ServedIndex
from vlmill.runtime.service.settings import ServiceSettings
from vlmill.train.cli import main


def open_service(index: ServedIndex) -> TestClient:
    shell, application = model_service(ServiceSettings(), index=index)
    assert not shell.workers
    return TestClient(application, base_url="http://localhost")


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    return open_service(ServedIndex(save(tmp_path), seconds=1_000))


def ask(client: TestClient, **words: Any) -> dict[str, Any]:
    reply = client.post("/v1/similar", json=words)
    assert reply.status_code == 200, reply.text
    content: dict[str, Any] = reply.json()
    return content


def test_the_items_are_those_of_the_command(
    client: TestClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["search", "--index", str(tmp_path / "index"), "--item", "i4", "--item", "i9"]
    capsys.readouterr()
    assert main([*argv, "--top", "6", "--where", "colour=red"]) == 0
    (line,) = answers(capsys)
    content = ask(client, items=["i4", "i9", "none"], top=6, where=["colour=red"])
    assert content == {"answers": line["answers"], "missing": ["none"]}
    body, kind = form([], items="i4", top="2")
    reply = client.post("/v1/similar", content=body, headers={"content-type": kind})
    assert reply.json() == ask(client, items="i4", top=2)
    (first, *_) = ask(client, items=["i4"])["answers"]
    assert first["item_id"] not in [
        row["item_id"] for row in ask(client, items=["i4"], seen=[first["item_id"]])["answers"]
    ]
    about = client.get("/v1/about").json()
    assert about["methods"] == ["similar"] and about["index"]["columns"] == ["colour"]
    assert client.get("/readyz").status_code == 200


REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {
    "no item": ({}, 400, "1 to 100 ids"),
    "many items": ({"items": ["a"] * 101}, 400, "1 to 100 ids"),
    "unknown item": ({"items": ["none"]}, 404, "none of the items"),
    "top": ({"items": ["i4"], "top": 0}, 400, "top: expected"),
    "where": ({"items": ["i4"], "where": "red"}, 400, "COLUMN=VALUE"),
    "column": ({"items": ["i4"], "where": "size=1"}, 400, "there are colour"),
    "field": ({"items": ["i4"], "texts": "a"}, 400, "unknown field"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_a_request_is_refused(name: str, client: TestClient) -> None:
    words, status, said = REFUSED[name]
    reply = client.post("/v1/similar", json=words)
    assert (reply.status_code, said in reply.json()["error"]) == (status, True)
    assert client.post("/v1/search", json={"text": "a"}).json()["reason"] == "no_such_method"


def test_the_direct_path_is_like_the_others(client: TestClient) -> None:
    """The method, parameters, headers and counts are those of FastAPI's paths."""
    assert client.get("/v1/similar").status_code == 405
    reply = client.post("/v1/similar?top=1", json={"items": ["i4"]})
    assert (reply.status_code, reply.json()["reason"]) == (400, "bad_request")
    assert reply.json()["request_id"] == reply.headers["x-request-id"]
    assert client.post("/v1/similar", content=b"{").json()["reason"] == "unsupported_type"
    good = client.post("/v1/similar", json={"items": ["i4"]})
    assert good.headers["content-type"] == "application/json"
    metrics = client.get("/metrics").text
    assert 'vlmill_requests_total{path="/v1/similar",status="200"} 1.0' in metrics
    assert "/v1/similar" in client.get("/openapi.json").json()["paths"]
    _, application = model_service(ServiceSettings())
    without = TestClient(application, base_url="http://localhost")
    assert without.post("/v1/similar", json={"items": ["i4"]}).status_code == 404


def test_another_index_takes_over_without_a_lost_request(tmp_path: Path) -> None:
    for name, count in (("a", 300), ("b", 400)):
        (tmp_path / name).mkdir()
        save(tmp_path / name, count=count)
    link = tmp_path / "current"
    link.symlink_to(tmp_path / "a" / "index")
    index = ServedIndex(link, seconds=1_000)
    index._is_quick = False  # so that requests wait for threads
    client = open_service(index)
    statuses, is_done = list[int](), False

    async def send() -> None:
        while not is_done:
            statuses.append(await post(client.app, "/v1/similar", {"items": ["i4", "i5"]}))

    async def replace_index() -> None:
        nonlocal is_done
        senders = [asyncio.create_task(send()) for _ in range(4)]
        await asyncio.sleep(0.1)
        switch(link, tmp_path / "b" / "index")
        await asyncio.to_thread(index.refresh)
        is_done = True
        await asyncio.gather(*senders)

    asyncio.run(replace_index())
    assert statuses and set(statuses) == {200} and ask(client, items=["i399"])["answers"]
    assert client.get("/v1/about").json()["index"]["vectors"] == 400


async def post(application: Any, path: str, words: dict[str, Any]) -> int:
    """Returns the status of a request, in the event loop of the caller."""
    body, statuses, is_read = json.dumps(words).encode(), list[int](), False
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    headers.append((b"content-length", str(len(body)).encode()))
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "root_path": "",
    }
    scope |= {"raw_path": path.encode(), "query_string": b"", "scheme": "http", "state": {}}

    async def receive() -> dict[str, Any]:
        nonlocal is_read
        if is_read:
            await asyncio.sleep(60)
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    address = {"client": ("127.0.0.1", 2), "server": ("127.0.0.1", 80)}
    await application({**scope, **address, "headers": headers}, receive, send)
    (status,) = statuses
    return status


def switch(link: Path, folder: Path) -> None:
    new = link.with_name("new")
    new.symlink_to(folder)
    new.replace(link)


def damage(folder: Path) -> None:
    (folder / "index" / INDEX).write_bytes(b"damaged")


def change_weights(folder: Path) -> None:
    settings = folder / "index" / "index.json"
    content = json.loads(settings.read_text())
    settings.write_text(json.dumps({**content, "weights_sha256": "x"}))


@pytest.mark.parametrize("spoil", [damage, change_weights])
def test_an_index_that_does_not_fit_is_not_used(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    for name, count in (("a", 300), ("b", 400)):
        (tmp_path / name).mkdir()
        save(tmp_path / name, count=count)
    link = tmp_path / "current"
    link.symlink_to(tmp_path / "a" / "index")
    index = ServedIndex(link, seconds=1_000)
    client = open_service(index)
    spoil(tmp_path / "b")
    switch(link, tmp_path / "b" / "index")
    index.refresh()
    index.refresh()
    assert (index.num_loaded, index.num_refused) == (1, 1)
    assert "vlmill_index_refusals 1.0" in client.get("/metrics").text
    assert ask(client, items=["i4"])["answers"]
    switch(link, tmp_path / "a" / "index")
    index.refresh()
    assert index.num_loaded == 1  # it is the current one


def test_what_cannot_be_served_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve"]) == 2
    assert "give --checkpoint DIR, --index DIR or both" in capsys.readouterr().err
    assert main(["serve", "--index", str(tmp_path / "none")]) == 2
    assert "has no index" in capsys.readouterr().err
    for flag, said in (("--reranker", "give --checkpoint"), ("--regions", "goes with")):
        assert main(["serve", "--index", str(tmp_path), flag, "a"]) == 2
        assert said in capsys.readouterr().err
    table = write_vectors(tmp_path / "table", unit_vectors(9), kind="pair")
    assert main(["search", "--vectors", table, "--append", table]) == 2
    assert "--append and --delete need --index" in capsys.readouterr().err
