"""Classifies a stored record as a page, an image or a redirect, or drops it.

The bytes of a record decide its type, and its headers only if the bytes are ambiguous.
"""

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from fastwarc.warc import WarcRecordType

from vlmill.pipelines.web.archives.records import Stored
from vlmill.pipelines.web.pages.described import Description
from vlmill.runtime.net.opt_outs import header_opt_outs
from vlmill.runtime.net.responses import decode_body, split_http
from vlmill.runtime.net.urls import resolve
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason

Kind = Literal["page", "picture", "redirect", "revisit", "robots"]

CONTENT_TYPES = WarcRecordType.response | WarcRecordType.resource | WarcRecordType.revisit
REDIRECTS = (301, 302, 303, 307, 308)

_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:-]{1,40})", re.IGNORECASE)
_RANGE = re.compile(r"bytes 0-(\d{1,12})/(\d{1,12})")
_DIGESTS = ("sha1", "sha256", "sha512", "md5")
_PAGE_TYPES = ("text/html", "application/xhtml+xml")
_PAGE_START = re.compile(
    rb"(?:<!doctype\s+html|<html|<head|<body|<title|<meta|<div|<p[\s>]|<h1|<table)", re.IGNORECASE
)
_ANY_TAG = re.compile(rb"<(?:!--|/?[a-z])", re.IGNORECASE)
_COMMENTS = re.compile(rb"(?:\s+|<!--.*?-->|<\?xml.*?\?>)+", re.DOTALL)
_IMAGE_STARTS = (
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n",
    b"GIF87a",
    b"GIF89a",
    b"II*\0",
    b"MM\0*",
    b"\0\0\1\0",
    b"\xff\x0a",
    b"\0\0\0\x0cJXL ",
)
_ISO_BRANDS = (b"avif", b"avis", b"heic", b"heix", b"mif1", b"msf1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Holds a page, an image, a redirect or a revisit of an archive.

    ``offset`` is its position for ``read_bodies``. A redirect has a ``target`` and no body: an HTTP
    redirect's location, or the URL whose content a revisit record repeats. A revisit identifies the
    repeated content only by its ``digest``.
    """

    archive: str
    offset: int
    url: str
    kind: Kind
    body: bytes = b""
    charset: str | None = None
    target: str | None = None
    opt_outs: frozenset[Reason] = frozenset()  # uses that the HTTP headers forbid
    wrong_digest: bool = False  # the block differs from the one that the archive's writer hashed
    digest: str = ""  # of the payload as stated in the header, for an image or a revisit
    described: Description | None = None  # of a page whose markup is not stored

    @property
    def key(self) -> str:
        """Returns the key of the record's rejects: its URL, or its location."""
        return self.url or f"{self.archive}:{self.offset}"


def extract_content(
    stored: Stored, archive: str, *, offset: int, max_bytes: int, check_digest: bool = True
) -> Record | Drop:
    """Returns the content of a record whose block has been read, or the reason for dropping it."""
    record, block = stored.record, stored.block
    if record.content_length > max_bytes:
        return Drop(Reason.TOO_LARGE, f"{record.content_length} bytes")
    if not stored.is_whole:
        return Drop(Reason.BROKEN_ARCHIVE, f"{len(block)} of {record.content_length} bytes")
    url = target_url(record)
    if url is None:
        return Drop(Reason.BAD_URL)
    if record.record_type == WarcRecordType.revisit:
        return _revisit(record, archive, offset, url)
    headers: dict[str, str] = {"content-type": record.headers.get("Content-Type") or ""}
    body = block
    if record.record_type == WarcRecordType.response:
        status, headers, body = split_http(block)
        if status in REDIRECTS and (target := resolve(url, _location(headers))):
            return Record(archive=archive, offset=offset, url=url, kind="redirect", target=target)
        if status == 206 and _is_all(headers.get("content-range", ""), len(body)):
            status = 200  # a browser requested a range, and received the full body
        if status != 200:
            return Drop(Reason.BAD_STATUS, str(status))
    decoded = decode_body(body, headers, max_bytes)
    if decoded is None:
        return Drop(Reason.TOO_LARGE, f"more than {max_bytes} bytes when decoded")
    if not decoded:
        return Drop(Reason.EMPTY)
    declared = headers.get("content-type", "")
    kind = sniff_kind(decoded, declared)
    if kind is None and urlsplit(url).path == "/robots.txt":
        kind = "robots"
    if kind is None:
        return Drop(Reason.OTHER_TYPE, declared)
    return Record(
        archive=archive,
        offset=offset,
        url=url,
        kind=kind,
        body=decoded,
        charset=parse_charset(declared),
        opt_outs=header_opt_outs(headers),
        digest=payload_digest(record) if kind == "picture" else "",
        wrong_digest=check_digest and is_wrong(record.headers.get("WARC-Block-Digest"), block),
    )


def _is_all(content_range: str, num_bytes: int) -> bool:
    """Returns whether a partial response holds all bytes, by its ``Content-Range``."""
    parts = _RANGE.fullmatch(content_range.strip().lower())
    return parts is not None and int(parts[1]) + 1 == int(parts[2]) == num_bytes


def parse_charset(declared: str) -> str | None:
    """Returns the charset of a content type, or None."""
    charset = _CHARSET.search(declared)
    return charset[1] if charset else None


def target_url(record: Any) -> str | None:
    """Returns the normalised URL of a record, or None."""
    return resolve("", bare_url(record.headers.get("WARC-Target-URI")))


def bare_url(value: str | None) -> str:
    """Returns a URL without the angle brackets that wget writes, following WARC 1.0."""
    return (value or "").strip().removeprefix("<").removesuffix(">")


def payload_digest(record: Any) -> str:
    """Returns the payload digest from a record's header, or ""."""
    return record.headers.get("WARC-Payload-Digest") or ""


def _revisit(record: Any, archive: str, offset: int, url: str) -> Record | Drop:
    """Returns the redirect or the revisit of a revisit record.

    A revisit of the same URL adds nothing: the content is already stored under that URL. Older
    crawlers identify the repeated content of another URL only by its digest.
    """
    target = resolve("", bare_url(record.headers.get("WARC-Refers-To-Target-URI")))
    if target is None or target == url:
        if not (digest := payload_digest(record)):
            return Drop(Reason.REVISIT)
        return Record(archive=archive, offset=offset, url=url, kind="revisit", digest=digest)
    return Record(archive=archive, offset=offset, url=url, kind="redirect", target=target)


def _location(headers: Mapping[str, str]) -> str:
    """Returns a redirect's location; browsers read its bytes as UTF-8."""
    return headers.get("location", "").encode("latin-1").decode("utf-8", "replace")


def is_wrong(digest: str | None, block: bytes) -> bool:
    """Returns whether a block's digest differs from the one in its header, in base 32 or 16.

    Unknown algorithms are not checked. The payload digest is not used: writers disagree on whether
    it is computed before or after the body's encodings.
    """
    name, _, value = (digest or "").strip().lower().replace("-", "").partition(":")
    if name not in _DIGESTS or not value:
        return False
    actual = hashlib.new(name, block, usedforsecurity=False).digest()
    if value == actual.hex():
        return False
    return value.rstrip("=") != base64.b32encode(actual).decode("ascii").lower().rstrip("=")


def sniff_kind(body: bytes, declared: str = "") -> Kind | None:
    """Returns ``page``, ``image`` (any format, even an unsupported one) or None.

    ``declared`` is the content type: it decides for markup that does not begin like a page.
    """
    start = body[:4_096].lstrip(b"\xef\xbb\xbf\xff\xfe")
    if body.startswith(_IMAGE_STARTS) or (body[:4] == b"RIFF" and body[8:12] == b"WEBP"):
        return "picture"
    if body[:2] == b"BM" and body[6:10] == b"\0\0\0\0":
        return "picture"
    if body[4:8] == b"ftyp" and body[8:12] in _ISO_BRANDS:
        return "picture"
    if body[:2] in (b"\xff\xfe", b"\xfe\xff"):  # UTF-16 markup, every second byte a NUL
        start = start.replace(b"\0", b"")
    comments = _COMMENTS.match(start)
    start = start[comments.end() :] if comments else start
    if start[:4].lower() == b"<svg" or start[:13].lower() == b"<!doctype svg":
        return "picture"
    if _PAGE_START.match(start):
        return "page"
    is_declared = declared.partition(";")[0].strip().lower() in _PAGE_TYPES
    return "page" if is_declared and b"\0" not in start and _ANY_TAG.search(body) else None
