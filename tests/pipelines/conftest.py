"""Tiny archives and images, made on the spot."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from PIL import Image
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

Response = tuple[str, bytes, str]
"""URL, body, content type"""


def make_image(width: int, height: int, *, seed: int = 0, format: str = "JPEG") -> bytes:
    """A gradient; another ``seed`` gives other bytes."""
    red = Image.linear_gradient("L").resize((width, height))
    plain = Image.new("L", (width, height), seed * 37 % 256)
    out = io.BytesIO()
    Image.merge("RGB", (red, plain, red)).save(out, format)
    return out.getvalue()


def make_response(
    url: str,
    body: bytes,
    content_type: str,
    *,
    status: str = "200 OK",
    gzip: bool = True,
    **more: str,
) -> bytes:
    """One record; ``more`` are further HTTP headers."""
    out = io.BytesIO()
    writer = WARCWriter(out, gzip=gzip)
    extra = [(name.replace("_", "-"), value) for name, value in more.items()]
    http = StatusAndHeaders(status, [("Content-Type", content_type), *extra], protocol="HTTP/1.1")
    writer.write_record(
        writer.create_warc_record(url, "response", payload=io.BytesIO(body), http_headers=http)
    )
    return out.getvalue()


def write_archive(path: Path, responses: Sequence[Response]) -> Path:
    """A gzipped archive of these responses."""
    path.write_bytes(b"".join(make_response(*response) for response in responses))
    return path


@pytest.fixture(scope="session")
def image() -> Callable[..., bytes]:
    return make_image


@pytest.fixture(scope="session")
def response() -> Callable[..., bytes]:
    return make_response


@pytest.fixture(scope="session")
def archive() -> Callable[[Path, Sequence[Response]], Path]:
    return write_archive
