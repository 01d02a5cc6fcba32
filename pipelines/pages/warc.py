"""Web archives: the pages and pictures in a WARC file, and one picture's bytes again by offset.

Nothing in an archive is trusted: block lengths, HTTP headers, declared types and encodings are
read with bounds, and what a record is follows from its bytes.
"""

import io
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from fastwarc.stream_io import BrotliReader
from fastwarc.warc import ArchiveIterator, WarcRecord, WarcRecordType

from vlmill.pipelines.counting.funnel import Drop
from vlmill.pipelines.pages.urls import resolve
from vlmill.schemas.rejects import Reason

Kind = Literal["page", "picture"]

CONTENT_TYPES = WarcRecordType.response | WarcRecordType.resource | WarcRecordType.revisit

_STATUS = re.compile(rb"HTTP/\d(?:\.\d)? +(\d{3})")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:-]{1,40})", re.IGNORECASE)
_PAGE_START = re.compile(
    rb"(?:<!doctype\s+html|<html|<head|<body|<title|<meta|<div|<p[\s>]|<h1|<table)", re.IGNORECASE
)
_COMMENTS = re.compile(rb"(?:\s+|<!--.*?-->|<\?xml.*?\?>)+", re.DOTALL)
_PICTURE_STARTS = (
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n",
    b"GIF87a",
    b"GIF89a",
    b"II*\0",
    b"MM\0*",
    b"\0\0\1\0",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A page or a picture of an archive; ``offset`` is where its record starts in the file."""

    archive: str
    offset: int
    url: str
    kind: Kind
    charset: str | None
    body: bytes


class BrokenArchive(Exception):
    """The archive cannot be read further: cut off, damaged, or no WARC at all."""


def read_archive(
    file: BinaryIO, archive: str, *, max_bytes: int
) -> Iterator[tuple[str, Record | Drop]]:
    """Yields (key, record or why not) for each record with content in ``file``.

    The key is the record's URL, or its place where it has none. Raises BrokenArchive at the point
    behind which nothing can be read; everything before it has been yielded then. Memory: one
    record of at most ``max_bytes``, which bounds the stored and the decoded body.
    """
    last_offset, seen = 0, 0
    try:
        for record in ArchiveIterator(
            file, record_types=WarcRecordType.any_type, parse_http=False, fsspec_args=False
        ):
            last_offset, seen = record.stream_pos, seen + 1
            if not record.record_type & CONTENT_TYPES:
                continue
            key = record.headers.get("WARC-Target-URI") or f"{archive}:{last_offset}"
            yield key, _read_record(record, archive, max_bytes)
    except OSError as error:
        raise BrokenArchive(f"after {seen} records, near byte {last_offset}: {error}") from None
    if seen == 0:
        raise BrokenArchive("no record in it")
    if _is_cut(file, last_offset):
        raise BrokenArchive(f"cut after {seen} records, near byte {last_offset}")


def read_body(file: BinaryIO, offset: int, *, max_bytes: int) -> bytes:
    """Returns the decoded body of the record at ``offset``. Raises BrokenArchive without one."""
    file.seek(offset)
    try:
        for record in ArchiveIterator(file, parse_http=False, fsspec_args=False):
            content = _read_record(record, "", max_bytes)
            if isinstance(content, Record):
                return content.body
            break
    except OSError as error:
        raise BrokenArchive(f"at byte {offset}: {error}") from None
    raise BrokenArchive(f"no page or picture at byte {offset} any more")


def _read_record(record: WarcRecord, archive: str, max_bytes: int) -> Record | Drop:
    if record.record_type == WarcRecordType.revisit:
        return Drop(Reason.REVISIT)
    length = record.content_length
    if length > max_bytes:
        return Drop(Reason.TOO_LARGE, f"{length} bytes")
    block = record.reader.read(max_bytes + 1)
    if len(block) < length:
        return Drop(Reason.BROKEN_ARCHIVE, f"{len(block)} of {length} bytes")
    url = resolve("", record.headers.get("WARC-Target-URI") or "")
    if url is None:
        return Drop(Reason.BAD_URL)
    headers: dict[str, str] = {}
    if record.record_type == WarcRecordType.response:
        status, headers, block = split_http(block)
        if status != 200:
            return Drop(Reason.BAD_STATUS, str(status))
    body = decode_body(block, headers, max_bytes)
    if body is None:
        return Drop(Reason.TOO_LARGE, f"more than {max_bytes} bytes when decoded")
    if not body:
        return Drop(Reason.EMPTY)
    kind = sniff_kind(body)
    if kind is None:
        return Drop(Reason.OTHER_TYPE, headers.get("content-type"))
    charset = _CHARSET.search(headers.get("content-type", ""))
    return Record(
        archive=archive,
        offset=record.stream_pos,
        url=url,
        kind=kind,
        charset=charset[1] if charset else None,
        body=body,
    )


def split_http(block: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers (names in lower case, the last value wins) and body of an HTTP response.

    Status 0 if the block does not start like HTTP.
    """
    status = _STATUS.match(block)
    if status is None:
        return 0, {}, block
    end = re.compile(rb"\r?\n\r?\n").search(block)
    head = block[: end.start()] if end else block
    headers = {}
    for line in head.decode("latin-1").splitlines()[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    return int(status[1]), headers, block[end.end() :] if end else b""


def decode_body(body: bytes, headers: dict[str, str], max_bytes: int) -> bytes | None:
    """Undo transfer and content encodings; None when more than ``max_bytes`` come out.

    Crawlers often store the decoded body and keep the header, so a body that cannot be decoded is
    taken as it is.
    """
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body = unchunk(body)
    for encoding in reversed(headers.get("content-encoding", "").lower().split(",")):
        decoded = _decompress(body, encoding.strip(), max_bytes)
        if decoded is not None and len(decoded) > max_bytes:
            return None
        body = body if decoded is None else decoded
    return body


def unchunk(body: bytes) -> bytes:
    """Join the chunks of a chunked body; a body that does not look chunked stays as it is."""
    chunks: list[bytes] = []
    position = 0
    while position < len(body):
        size = re.compile(rb"([0-9a-fA-F]{1,8})[^\r\n]{0,100}\r?\n").match(body, position)
        if size is None:
            return body if not chunks else b"".join(chunks)
        length = int(size[1], 16)
        if length == 0:
            break
        chunks.append(body[size.end() : size.end() + length])
        position = size.end() + length
        position += 2 if body[position : position + 2] == b"\r\n" else 1
    return b"".join(chunks)


def _decompress(body: bytes, encoding: str, max_bytes: int) -> bytes | None:
    """At most ``max_bytes`` + 1 decoded bytes; None if ``body`` is not in this encoding."""
    try:
        if encoding in ("gzip", "x-gzip"):
            return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(body, max_bytes + 1)
        if encoding == "deflate":  # zlib by the standard, raw deflate by some servers
            window = zlib.MAX_WBITS if body[:1] == b"\x78" else -zlib.MAX_WBITS
            return zlib.decompressobj(window).decompress(body, max_bytes + 1)
        if encoding == "br":
            decoded: bytes = BrotliReader(io.BytesIO(body)).read(max_bytes + 1)
            return decoded
    except (zlib.error, OSError):
        return None
    return None


def sniff_kind(body: bytes) -> Kind | None:
    """Returns ``page``, ``picture`` (any format, readable by us or not) or None."""
    start = body[:4_096].lstrip(b"\xef\xbb\xbf\xff\xfe")
    if body.startswith(_PICTURE_STARTS) or (body[:4] == b"RIFF" and body[8:12] == b"WEBP"):
        return "picture"
    if body[:2] == b"BM" and body[6:10] == b"\0\0\0\0":
        return "picture"
    if body[4:8] == b"ftyp" and body[8:12] in (b"avif", b"avis", b"heic", b"heix", b"mif1"):
        return "picture"
    if body[:2] in (b"\xff\xfe", b"\xfe\xff"):  # UTF-16 markup, every second byte a NUL
        start = start.replace(b"\0", b"")
    comments = _COMMENTS.match(start)
    start = start[comments.end() :] if comments else start
    if start[:4].lower() == b"<svg" or start[:13].lower() == b"<!doctype svg":
        return "picture"
    return "page" if _PAGE_START.match(start) else None


def _is_cut(file: BinaryIO, offset: int) -> bool:
    """Says whether the last gzip member ends too early. FastWARC ends in silence there."""
    file.seek(offset)
    chunk = file.read(1 << 16)
    if chunk[:2] != b"\x1f\x8b":
        return False  # in a plain file the length of the last block has told
    member = zlib.decompressobj(zlib.MAX_WBITS | 16)
    while chunk:
        try:
            member.decompress(chunk, 1 << 20)
        except zlib.error:
            return True
        if member.eof:
            rest = member.unused_data or file.read(1 << 16)
            if not rest.strip(b"\0"):
                return False
            member, chunk = zlib.decompressobj(zlib.MAX_WBITS | 16), rest
        else:
            chunk = member.unconsumed_tail or file.read(1 << 16)
    return True


def open_archive(path: str) -> Any:
    """Opens the archive's stored bytes, seekable, on any file system that Beam knows."""
    return FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)
