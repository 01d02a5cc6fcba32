import gzip
import io
import zlib
from typing import Any

import pytest
from fastwarc.stream_io import BrotliWriter, ZstdWriter

from vlmill.pipelines.web.archives.content import sniff_kind
from vlmill.runtime.net.responses import MAX_CHUNKS, MAX_HEAD, decode_body, split_http, unchunk

PAGE = b"<html><body>hello</body></html>"
BROTLI = bytes.fromhex("1b1e00f88d942ede929aa70c8d4eb3f9b4bd2d5ad4a94d80819e72920b")  # PAGE
LIMIT = 100_000


def written(writer: Any, data: bytes) -> bytes:
    out = io.BytesIO()
    stream = writer(out)
    stream.write(data)
    stream.finish()
    stream.flush()
    return out.getvalue()


def raw_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(PAGE, mtime=0)),
        ("X-GZIP", gzip.compress(PAGE, mtime=0)),
        ("gzip", gzip.compress(PAGE[:9], mtime=0) + gzip.compress(PAGE[9:], mtime=0)),
        ("gzip", gzip.compress(PAGE, mtime=0) + b"\r\n"),  # junk behind it
        ("deflate", zlib.compress(PAGE)),
        ("deflate", zlib.compress(PAGE, level=1, wbits=9)),
        ("deflate", raw_deflate(PAGE)),
        ("br", BROTLI),
        ("zstd", written(ZstdWriter, PAGE)),
        ("zstd", written(ZstdWriter, PAGE[:9]) + written(ZstdWriter, PAGE[9:])),
        ("br, gzip", gzip.compress(BROTLI, mtime=0)),
        ("identity", PAGE),
        ("gzip", PAGE),  # stored decoded, header kept
        ("deflate", PAGE),
        ("br", PAGE),
        ("zstd", PAGE),
        ("unknown", PAGE),
    ],
)
def test_encodings_are_undone(encoding: str, body: bytes) -> None:
    assert decode_body(body, {"content-encoding": encoding}, LIMIT) == PAGE


@pytest.mark.parametrize(
    ("encoding", "bomb"),
    [
        ("gzip", gzip.compress(bytes(10_000_000), mtime=0)),
        ("gzip", gzip.compress(bytes(60_000), mtime=0) * 9),
        ("deflate", zlib.compress(bytes(10_000_000))),
        ("br", written(BrotliWriter, bytes(10_000_000))),
        ("zstd", written(ZstdWriter, bytes(10_000_000))),
        ("gzip, gzip", gzip.compress(gzip.compress(bytes(100_000_000), mtime=0), mtime=0)),
    ],
)
def test_a_bomb_is_not_unpacked(encoding: str, bomb: bytes) -> None:
    assert decode_body(bomb, {"content-encoding": encoding}, LIMIT) is None


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(PAGE * 99, mtime=0)),
        ("zstd", written(ZstdWriter, PAGE * 99)),
        ("br", written(BrotliWriter, PAGE * 99)),
    ],
)
def test_of_a_cut_body_the_beginning_is_taken(encoding: str, body: bytes) -> None:
    text = decode_body(body[:-9], {"content-encoding": encoding}, LIMIT)
    assert text is not None and (text == body[:-9] or (PAGE * 99).startswith(text))


def test_chunks_that_are_left_in_are_joined() -> None:
    chunked = b"5\r\n<html\r\n" + b"1a;x=y\r\n" + PAGE[5:] + b"\r\n0\r\n\r\n"
    assert len(PAGE[5:]) == 0x1A
    headers = {"transfer-encoding": "chunked"}
    assert decode_body(chunked, headers, LIMIT) == PAGE
    packed = gzip.compress(PAGE)
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(packed), packed)
    assert decode_body(chunked, headers | {"content-encoding": "gzip"}, LIMIT) == PAGE
    assert unchunk(PAGE) == PAGE
    assert unchunk(b"") == b""
    assert unchunk(b"ffffffff\r\nshort") == b"short"


def test_chunks_without_number_are_refused() -> None:
    most = b"1\r\na\r\n" * MAX_CHUNKS
    assert unchunk(most + b"0\r\n\r\n") == b"a" * MAX_CHUNKS
    assert unchunk(most + b"1\r\na\r\n") is None
    chunked = {"transfer-encoding": "chunked"}
    assert decode_body(most + b"1\r\na\r\n", chunked, len(most)) is None


def test_http_head() -> None:
    head = b"HTTP/1.1 200 OK\r\nA: 1\r\nb:2\r\n\r\nbody"
    assert split_http(head) == (200, {"a": "1", "b": "2"}, b"body")
    assert split_http(b"HTTP/1.0 404 x\nA: 1\n\nbody") == (404, {"a": "1"}, b"body")
    assert split_http(b"HTTP/2 200\r\n\r\n") == (200, {}, b"")
    assert split_http(b"junk") == (0, {}, b"junk")
    twice = b"HTTP/1.1 200 OK\r\nX-Robots-Tag: a\r\nX-Robots-Tag: b\r\nC: 1\r\nC: 2\r\n\r\n"
    assert split_http(twice)[1] == {"x-robots-tag": "a\nb", "c": "2"}
    long = b"HTTP/1.1 200 OK\r\nA: 1\r\nB: " + b"b" * MAX_HEAD + b"\r\nC: 3\r\n\r\nbody"
    status, headers, body = split_http(long)
    assert (status, headers["a"], "c" in headers, body) == (200, "1", False, b"body")


@pytest.mark.parametrize(
    ("body", "declared", "kind"),
    [
        (b"\xef\xbb\xbf <!-- x --> <!DOCTYPE html>", "", "page"),
        (b"<?xml version='1.0'?><html>", "", "page"),
        ("<html>".encode("utf-16"), "", "page"),
        (b"<!--" + b"x" * 5_000 + b"--><html>", "text/html; charset=x", "page"),
        (b"Hello <b>world</b>", "text/html", "page"),
        (b"Hello <b>world</b>", "text/plain", None),
        (b"\0\1\2<b>", "text/html", None),
        (b"<svg xmlns='x'>", "text/html", "picture"),
        (b"RIFF....WEBP", "", "picture"),
        (b"GIF89a", "", "picture"),
        (b"\0\0\0\x1cftypavif", "", "picture"),
        (b"{}", "application/json", None),
        (b"<rss>", "text/xml", None),
        (b"", "text/html", None),
    ],
)
def test_kinds(body: bytes, declared: str, kind: str | None) -> None:
    assert sniff_kind(body, declared) == kind
