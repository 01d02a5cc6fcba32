"""What parsers hold is bounded: by a body's size, and by one large body at a time."""

import asyncio
import base64
import json
import threading
import tracemalloc
from contextlib import suppress

import pytest
from tests.serving import form

from vlmill.runtime.service.bodies import Form, read_form
from vlmill.runtime.service.refusals import RequestRefused
from vlmill.runtime.service.shell import LARGE_BYTES, BodyParser

MIB = 2**20
IMAGE = bytes(range(256)) * (8 * MIB // 256)


def peak(content_type: str, body: bytes) -> float:
    """Returns how many times the body's size parsing holds in addition to it."""
    tracemalloc.start()
    try:
        with suppress(RequestRefused):
            read_form(content_type, body, words=("do",), most_images=64)
        return tracemalloc.get_traced_memory()[1] / len(body)
    finally:
        tracemalloc.stop()


def test_images_are_copied_once() -> None:
    encoded = base64.b64encode(IMAGE).decode()
    for words in ("a kite", "où?", "\U0001f600"):
        for is_ascii in (True, False):
            text = json.dumps({"pictures": [encoded], "do": words}, ensure_ascii=is_ascii)
            assert peak("application/json", text.encode()) < 0.8
    body, kind = form([("a.jpg", IMAGE), ("b.jpg", IMAGE)], do="\U0001f600")
    assert peak(kind, body) < 1.1
    assert peak("image/jpeg", IMAGE) < 0.1


def test_what_hostile_bodies_take() -> None:
    """Text of which each letter takes four bytes, and bodies that nearly are something."""
    texts = ("\U0001f600" + "a" * 19_000,) * 400
    assert peak("application/json", json.dumps({"do": texts}).encode()) < 9.1
    long = ("\U0001f600" + "a" * 8_000_000).encode()
    assert peak("application/json", b'{"do": "%s"}' % long) < 9.1
    assert peak("application/json", b'{"do": "%s%s"}' % (long, long)) < 1.1  # refused
    nearly = b"A" * 1_024 + b"\\"
    assert peak("application/json", b'{"pictures": "%s"}' % (nearly * 9_000)) < 0.1  # refused
    kind = "multipart/form-data; boundary=edge"
    for content in (b"\r", b"\r\n--", b"\r\n--edg", b"\n"):
        head = b'--edge\r\nContent-Disposition: form-data; name="p"; filename="a"\r\n\r\n'
        body = head + content * (MIB // len(content)) + b"\r\n--edge--\r\n"
        assert peak(kind, body) < 1.2, content


def test_a_form_without_a_boundary_in_its_header() -> None:
    """Its first line has the boundary."""
    body = (
        b'--edge\r\nContent-Disposition: form-data; name="p"; filename="a"\r\n\r\nx\r\n--edge--\r\n'
    )
    for start in (b"", b"\r\n"):
        read = read_form("multipart/form-data", start + body, most_images=1)
        assert [image.content for image in read.images] == [b"x"]
    for wrong in (b"", b"--", b"--\r\n", b"x" + body, b"--" + b"e" * 71 + b"\r\n"):
        with pytest.raises(RequestRefused) as refused:
            read_form("multipart/form-data", wrong, most_images=1)
        assert refused.value.status == 400


def test_images_are_found_among_texts() -> None:
    """A long text that might be an image is a text; a quote in a text begins no image."""
    long, image = "A" * 2_000, base64.b64encode(IMAGE[:3_000]).decode()
    said = {"do": [long, f'x"{image}', image, "\\"], "pictures": [image, "AAAA", image]}
    for text in (json.dumps(said), json.dumps(said, indent=1)):
        read = read_form("application/json", text.encode(), words=("do",), most_images=3)
        assert read.words == {"do": said["do"]}
        assert [image.content for image in read.images] == [IMAGE[:3_000], b"\0\0\0", IMAGE[:3_000]]
    for wrong in (f'{{"{image}": 1}}', f'["{image}"]', f'"{image}"', f'{{"pictures": "{image}'):
        with pytest.raises(RequestRefused) as refused:
            read_form("application/json", wrong.encode(), most_images=3)
        assert refused.value.status == 400
    with pytest.raises(RequestRefused) as refused:
        read_form(
            "application/json", b'{"do": "%s"}' % (b"A" * 30_000), words=("do",), most_images=3
        )
    assert refused.value.reason == "too_long"


def test_a_long_text_of_a_form_is_refused_before_it_is_decoded() -> None:
    body, kind = form([], do="\U0001f600" * 100_000)
    with pytest.raises(RequestRefused) as refused:
        read_form(kind, body, words=("do",), most_images=3)
    assert refused.value.reason == "too_long"


def test_large_bodies_are_parsed_one_at_a_time() -> None:
    """Small ones pass them."""
    running, most = list[int](), list[int]()
    small = threading.Event()

    def parse(content_type: str, body: bytes, *, words: object, most_images: int) -> Form:
        if len(body) < LARGE_BYTES:
            small.set()
            return Form()
        running.append(1)
        most.append(len(running))
        small.wait(60)
        running.pop()
        return Form()

    async def run() -> None:
        parser = BodyParser(3, parse=parse)
        large = [parser.parse("", bytes(LARGE_BYTES + 1), words=()) for _ in range(4)]
        jobs = [asyncio.create_task(job) for job in large]
        await asyncio.sleep(0)
        await parser.parse("", b"small", words=())
        await asyncio.gather(*jobs)

    asyncio.run(run())
    assert most == [1, 1, 1, 1]
