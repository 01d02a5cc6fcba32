import gzip
import io
import zlib
from collections.abc import Callable

import pytest

from vlmill.pipelines.counting.funnel import Drop
from vlmill.pipelines.pages.warc import (
    BrokenArchive,
    Record,
    decode_body,
    read_archive,
    read_body,
    sniff_kind,
    split_http,
    unchunk,
)
from vlmill.schemas.rejects import Reason

Make = Callable[..., bytes]
PAGE = b"<html><body>hello</body></html>"
LIMIT = 100_000


def read(data: bytes, limit: int = LIMIT) -> list[tuple[str, Record | Drop]]:
    return list(read_archive(io.BytesIO(data), "a.warc.gz", max_bytes=limit))


def read_until_broken(data: bytes) -> tuple[list[tuple[str, Record | Drop]], str]:
    """What was readable, and the message of the break."""
    found = []
    try:
        for item in read_archive(io.BytesIO(data), "a.warc.gz", max_bytes=LIMIT):
            found.append(item)
    except BrokenArchive as error:
        return found, str(error)
    return found, ""


def reason(data: bytes, limit: int = LIMIT) -> Reason:
    ((_, drop),) = read(data, limit)
    assert isinstance(drop, Drop)
    return drop.reason


def test_pages_and_pictures_are_told_by_their_bytes(response: Make, picture: Make) -> None:
    photo = picture(8, 8)
    data = response("http://a.org/p", PAGE, "image/png; charset=latin-1")
    data += response("http://a.org/i", photo, "text/html")
    (_, page), (_, image) = read(data)
    assert isinstance(page, Record) and isinstance(image, Record)
    assert (page.kind, page.body, page.charset) == ("page", PAGE, "latin-1")
    assert (image.kind, image.body, image.url) == ("picture", photo, "http://a.org/i")
    assert read_body(io.BytesIO(data), image.offset, max_bytes=LIMIT) == photo


@pytest.mark.parametrize("gzipped", [True, False])
def test_a_cut_archive_gives_what_is_readable(response: Make, gzipped: bool) -> None:
    data = b"".join(
        response(f"http://a.org/{n}", PAGE * 50, "text/html", gzip=gzipped) for n in range(3)
    )
    record = len(data) // 3
    whole, message = read_until_broken(data)
    assert len(whole) == 3 and message == ""
    for cut in range(record, len(data), record // 7 + 1):
        found, message = read_until_broken(data[:cut])
        pages = [item for _, item in found if isinstance(item, Record)]
        # The blank lines behind the last record of a plain file may be missing.
        assert len(pages) in (cut // record, (cut + 4) // record)
        if cut % record:
            assert message or len(found) > len(pages) or len(pages) * record <= cut + 4


@pytest.mark.parametrize(
    "junk", [b"", b"no archive", gzip.compress(b"no archive", mtime=0), b"\x1f\x8b\x08"]
)
def test_what_is_no_archive_is_broken(junk: bytes) -> None:
    found, message = read_until_broken(junk)
    assert found == [] and message


def test_reasons_of_records(response: Make) -> None:
    url = "http://a.org/"
    assert reason(response(url, PAGE, "text/html", status="404 Not Found")) == Reason.BAD_STATUS
    assert reason(response(url, b"", "text/html")) == Reason.EMPTY
    assert reason(response(url, b"var x = 1;", "text/html")) == Reason.OTHER_TYPE
    assert reason(response("urn:x", PAGE, "text/html")) == Reason.BAD_URL
    assert reason(response(url, PAGE * 1000, "text/html"), limit=5_000) == Reason.TOO_LARGE


def test_a_decompression_bomb_is_too_large(response: Make) -> None:
    bomb = gzip.compress(b"<html>" + b"a" * 10_000_000)
    data = response("http://a.org/", bomb, "text/html", Content_Encoding="gzip")
    assert reason(data) == Reason.TOO_LARGE


def test_encodings_are_undone() -> None:
    raw = zlib.compressobj(wbits=-15)
    deflated = raw.compress(PAGE) + raw.flush()
    for name, body in (
        ("gzip", gzip.compress(PAGE, mtime=0)),
        ("deflate", zlib.compress(PAGE)),
        ("deflate", deflated),
        ("gzip", PAGE),  # stored decoded, header kept
        ("br", PAGE),
        ("unknown", PAGE),
    ):
        assert decode_body(body, {"content-encoding": name}, LIMIT) == PAGE
    chunked = b"5\r\n<html\r\n" + b"1a;x=y\r\n" + PAGE[5:] + b"\r\n0\r\n\r\n"
    assert len(PAGE[5:]) == 0x1A
    assert decode_body(chunked, {"transfer-encoding": "chunked"}, LIMIT) == PAGE


def test_what_is_not_chunked_stays() -> None:
    assert unchunk(PAGE) == PAGE
    assert unchunk(b"") == b""
    assert unchunk(b"ffffffff\r\nshort") == b"short"


def test_http_head() -> None:
    assert split_http(b"HTTP/1.1 200 OK\r\nA: 1\r\nb:2\r\n\r\nbody") == (
        200,
        {"a": "1", "b": "2"},
        b"body",
    )
    assert split_http(b"HTTP/1.0 404 x\nA: 1\n\nbody") == (404, {"a": "1"}, b"body")
    assert split_http(b"junk") == (0, {}, b"junk")


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"\xef\xbb\xbf <!-- x --> <!DOCTYPE html>", "page"),
        (b"<?xml version='1.0'?><html>", "page"),
        ("<html>".encode("utf-16"), "page"),
        (b"<svg xmlns='x'>", "picture"),
        (b"RIFF....WEBP", "picture"),
        (b"GIF89a", "picture"),
        (b"{}", None),
        (b"<rss>", None),
        (b"", None),
    ],
)
def test_kinds(body: bytes, kind: str | None) -> None:
    assert sniff_kind(body) == kind


def test_a_changed_archive_is_noticed(response: Make) -> None:
    with pytest.raises(BrokenArchive):
        read_body(io.BytesIO(response("http://a.org/", PAGE, "text/html")), 7, max_bytes=LIMIT)
