"""``extract-rois serve`` gives the rows of ``extract-rois run``, and refuses bad images."""

import base64
import io
import json
import os
import signal
import subprocess
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tests.mutations import mutations
from tests.serving import Reply, Served, form, served, until
from tests.web import LOCAL, file_server

from vlmill.client import Client, ServiceError
from vlmill.extract.cli import command
from vlmill.extract.service.rows import RejectedImage, choose_kind, make_response
from vlmill.runtime.client.forms import ARROW, JSON, PARQUET
from vlmill.runtime.readers.regions import RegionRow
from vlmill.runtime.service.refusals import RequestRefused
from vlmill.schemas.rejects import Reason

FLAGS = (
    *("--arch", "tiny", "--short-side", "64", "--long-side", "112", "--max-boxes", "8"),
    *("--class-probs", "topk:3", "--max-pixels", "50000"),
)


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    web = ("--allow-urls", "--contact", "me@example.org", "--allow-address", LOCAL)
    limits = ("--max-bytes", "300000", "--max-images", "12", "--queue", "24")
    words = ("-m", "vlmill.extract.cli", "serve", "--port", "0", *FLAGS, *limits, *web)
    with served(words) as running:
        yield running
        assert running.process.poll() is None
        assert running.count("vlmill_worker_restarts_total") == 0
        assert running.count("vlmill_errors_total") == 0


@pytest.fixture(scope="module")
def rows(shared_images: Path, tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    """What a run makes of the same images."""
    output = tmp_path_factory.mktemp("run") / "regions"
    assert command(["run", str(shared_images), "--output", str(output), *FLAGS]) == 0
    return pq.read_table(sorted(output.glob("regions-*.parquet")))


def sent(folder: Path) -> list[tuple[str, bytes]]:
    return [(path.name, path.read_bytes()) for path in sorted(folder.glob("*.jpg"))]


def test_the_rows_are_those_of_a_run(service: Served, shared_images: Path, rows: pa.Table) -> None:
    """Bit for bit, in every form, with the same metadata; and so are the rejects."""
    body, kind = form(sent(shared_images))
    stream = service.post("/v1/regions", body, kind, accept=ARROW)
    assert stream.status == 200, stream.body
    table = pa.ipc.open_stream(stream.body).read_all()
    assert table.replace_schema_metadata(None).equals(rows.replace_schema_metadata(None))
    for name in (b"vlmill.table", b"vlmill.arrays"):
        assert table.schema.metadata[name] == rows.schema.metadata[name]
    ours, theirs = (json.loads(t.schema.metadata[b"vlmill.producer"]) for t in (table, rows))
    assert ours == theirs
    file = service.post("/v1/regions", body, kind, accept=PARQUET)
    assert pq.read_table(io.BytesIO(file.body)).equals(rows)
    plain = service.post("/v1/regions", body, kind).json()
    names = [name for name, _ in sent(shared_images)]
    rejects = {reject["name"]: reject["reason"] for reject in plain["rejects"]}
    assert rejects == {
        "3-empty.jpg": "empty",
        "4-cut.jpg": "unreadable_image",
        "5-again.jpg": "duplicate",
    }
    duplicate = next(one for one in plain["rejects"] if one["reason"] == "duplicate")
    assert duplicate["why"] == "5-again.jpg has the same bytes as the earlier 1.jpg"
    assert [[names.index(n), why] for n, why in rejects.items()] == json.loads(
        stream.headers["vlmill-rejects"]
    )
    first = rows.to_pylist()[0]
    assert base64.b64decode(plain["regions"][0]["features"]) == first["features"]
    assert plain["regions"][0]["boxes"] == first["boxes"]
    assert plain["arrays"] == json.loads(rows.schema.metadata[b"vlmill.arrays"])


def test_one_image_is_the_body(service: Served, jpeg: Callable[[int], bytes]) -> None:
    reply = service.post("/v1/regions", jpeg(3), "image/jpeg")
    assert reply.status == 200 and len(reply.json()["regions"]) == 1


def bomb() -> bytes:
    """A PNG of 40,000 x 40,000 pixels in a few bytes."""
    image = io.BytesIO()
    Image.new("1", (8, 8)).save(image, "PNG")
    head = b"IHDR" + (40_000).to_bytes(4, "big") * 2 + image.getvalue()[24:29]
    return (
        image.getvalue()[:12] + head + zlib.crc32(head).to_bytes(4, "big") + image.getvalue()[33:]
    )


def large() -> bytes:
    image = io.BytesIO()
    Image.new("RGB", (300, 200)).save(image, "PNG")
    return image.getvalue()


def cut() -> bytes:
    image = io.BytesIO()
    Image.new("RGB", (30, 20)).save(image, "PNG")
    return image.getvalue()[:-30]


@pytest.mark.parametrize(
    ("content", "status", "reason"),
    [
        (b"", 422, "empty"),
        (b"no picture at all", 415, "unsupported_format"),
        (bomb(), 413, "too_large"),
        (large(), 413, "too_large"),
        (cut(), 422, "unreadable_image"),
        (b"x" * 300_001, 413, "too_large"),
    ],
    ids=["empty", "text", "bomb", "pixels", "cut", "bytes"],
)
def test_bad_images_are_refused_in_one_line(
    service: Served, content: bytes, status: int, reason: str
) -> None:
    reply = service.post("/v1/regions", content, "image/jpeg")
    said = reply.json()
    assert (reply.status, said["reason"]) == (status, reason), said
    assert "\n" not in said["error"] and "/" not in said["error"].replace("image/", "")


def test_what_no_request_may_be(service: Served, jpeg: Callable[[int], bytes]) -> None:
    no_image = service.post("/v1/regions", b"{}", "application/json")
    assert (no_image.status, no_image.json()["reason"]) == (400, "bad_request")
    wish = service.post("/v1/regions", jpeg(1), "image/jpeg", accept="text/html")
    assert (wish.status, wish.json()["reason"]) == (406, "not_acceptable")
    body, kind = form([("a.jpg", jpeg(1))], threshold="0.3")
    assert service.post("/v1/regions", body, kind).json()["reason"] == "unknown_field"


def test_images_by_urls(service: Served, jpeg: Callable[[int], bytes]) -> None:
    def ask(*urls: str) -> tuple[int, dict[str, object]]:
        body = json.dumps({"urls": urls}).encode()
        reply = service.post("/v1/regions", body, "application/json")
        return reply.status, reply.json()

    with file_server() as web:
        web.files["/a.jpg"] = jpeg(3)
        status, said = ask(f"{web.url}/a.jpg", f"{web.url}/a.jpg")
        assert status == 200 and len(said["regions"]) == 1  # type: ignore[arg-type]
        web.troubles.append("http://169.254.169.254/latest")
        assert ask(f"{web.url}/a.jpg")[1]["reason"] == "bad_address"
        web.troubles.append(f"{web.url}/a.jpg")
        assert ask(f"{web.url}/b.jpg")[0] == 200
        assert ask(f"{web.url}/none.jpg")[1]["reason"] == "not_fetched"
    for url in ("http://10.0.0.1/", "http://[::1]/", "file:///etc/passwd", "http://0x7f.1/", "x"):
        status, said = ask(url)
        assert (status, said["reason"]) == (400, "bad_address"), said


def test_the_client(service: Served, shared_images: Path, rows: pa.Table) -> None:
    client = Client(service.url)
    images: list[Path | bytes] = [shared_images / "0.jpg", (shared_images / "1.jpg").read_bytes()]
    assert client.regions(images)["features"].equals(rows["features"].slice(0, 2))
    assert pq.read_table(io.BytesIO(client.regions_parquet(images))).num_rows == 2
    with pytest.raises(
        ServiceError, match="415 unsupported_format: the image is rejected: none of"
    ):
        client.regions([b"text"])


def test_the_samples_of_the_openapi_document_run(
    service: Served, jpeg: Callable[[int], bytes], tmp_path: Path
) -> None:
    (tmp_path / "image.jpg").write_bytes(jpeg(1))
    (tmp_path / "other.jpg").write_bytes(jpeg(2))
    document = service.ask("GET", "/openapi.json").json()
    samples = [
        sample
        for path in document["paths"].values()
        for operation in path.values()
        for sample in operation.get("x-codeSamples", [])
    ]
    assert {sample["lang"] for sample in samples} == {"Shell", "Python"}
    for sample in samples:
        source = sample["source"].replace("http://127.0.0.1:8080", service.url.rstrip("/"))
        if sample["lang"] == "Shell":
            subprocess.run(source, shell=True, check=True, cwd=tmp_path)
        else:
            source = source.replace('"image.jpg"', repr(str(tmp_path / "image.jpg")))
            exec(source.replace('"other.jpg"', repr(str(tmp_path / "other.jpg"))), {})
    assert pq.read_table(tmp_path / "regions.parquet").num_rows == 2


def test_mutated_images(service: Served, request: pytest.FixtureRequest) -> None:
    """Each has its row or its reason; no status of 500, and no worker ends."""
    count = request.config.getoption("--mutations")
    blobs = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    for kind in ("JPEG", "PNG", "WEBP"):
        content = io.BytesIO()
        Image.fromarray(blobs).save(content, kind)
        for number, changed in mutations(content.getvalue(), kind, count // 3):
            reply = service.post("/v1/regions", changed, "image/jpeg")
            assert reply.status in (200, 413, 415, 422), (kind, number, reply.body)


@pytest.mark.slow
@pytest.mark.long  # the same of a service without a network: tests/runtime/service/test_workers.py
def test_a_worker_is_killed_and_a_stop_asked_for_under_load(jpeg: Callable[[int], bytes]) -> None:
    words = ("-m", "vlmill.extract.cli", "serve", "--port", "0", "--device", "cpu,cpu", *FLAGS)
    with served(words) as service:
        body, stopped, replies = jpeg(1), Event(), list[Reply]()

        def ask() -> None:
            while not stopped.is_set():
                with suppress(OSError, HTTPException):
                    replies.append(service.post("/v1/regions", body, "image/jpeg"))

        jobs = [Thread(target=ask) for _ in range(6)]
        for job in jobs:
            job.start()
        try:
            until(lambda: len(replies) > 10)
            doomed, healthy = service.workers()
            os.kill(doomed, signal.SIGKILL)
            until(lambda: service.count("vlmill_worker_restarts_total") == 1)
            assert healthy in service.workers()
            enough = len(replies) + 10
            until(lambda: len(replies) > enough)
            assert service.stop() == 0
        finally:
            stopped.set()
            for job in jobs:
                job.join()
    statuses = [reply.status for reply in replies]
    assert set(statuses) <= {200, 503} and statuses.count(503) <= 2  # a batch, and the next one
    lost = [reply.json()["reason"] for reply in replies if reply.status == 503]
    assert set(lost) <= {"worker_lost"}
    logged = [line for line in service.log if '"path": "/v1/regions"' in line]
    assert len(logged) == len(replies)  # none that was accepted has gone without its answer


def test_accept_chooses() -> None:
    for accept, kind in (
        ("", JSON),
        ("*/*", JSON),
        (ARROW, ARROW),
        (f"text/html, {PARQUET};q=0.5, {ARROW};q=0.6", ARROW),
        (f"{PARQUET};q=0.5, */*;q=0.1", PARQUET),
    ):
        assert choose_kind(accept) == kind
    for accept in ("text/html", f"{ARROW};q=0", f"{ARROW};q=x"):
        with pytest.raises(RequestRefused):
            choose_kind(accept)


def test_all_rejected_is_the_first_ones_status() -> None:
    bad = RejectedImage(reason=Reason.TOO_LARGE, detail="9 bytes, limit 8")
    row = RegionRow(image_id="a", width=1, height=1, boxes=np.zeros((1, 4), np.float32))
    make_response([bad, row], ["x", "y"]).require_rows()
    with pytest.raises(RequestRefused) as raised:
        make_response([bad, bad], ["x", "y"]).require_rows()
    assert raised.value.status == 413 and len(raised.value.more["rejects"]) == 2  # type: ignore[arg-type]
