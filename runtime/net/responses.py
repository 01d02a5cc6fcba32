"""Parses HTTP responses in crawlers' archives: the head, and the decoded body.

Nothing is trusted: sizes are bounded before decompression, and a body that is not in the encoding
of its header is used unchanged, because many crawlers store it decoded.
"""

import io
import re
import zlib
from typing import Any

from fastwarc.stream_io import BrotliReader, ZstdReader

MAX_HEAD = 1 << 20
MAX_ENCODINGS, MAX_CHUNKS = 5, 200_000

_STATUS = re.compile(rb"HTTP/\d(?:\.\d)? +(\d{3})")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,8})[^\r\n]{0,100}\r?\n")
# The values of these are joined if the header is repeated; for others the last one counts.
_LISTS = ("x-robots-tag", "content-encoding", "transfer-encoding")


def split_http(block: bytes) -> tuple[int, dict[str, str], bytes]:
    """Returns status, headers (names in lower case) and body of an HTTP response.

    Status 0 if the block does not start like HTTP. Headers beyond ``MAX_HEAD`` bytes are dropped.
    """
    status = _STATUS.match(block)
    if status is None:
        return 0, {}, block
    end = _HEAD_END.search(block)
    head = block[: min(end.start(), MAX_HEAD)] if end else block[:MAX_HEAD]
    headers: dict[str, str] = {}
    for line in head.decode("latin-1").split("\n")[1:]:
        name, colon, value = line.partition(":")
        if not colon:
            continue
        name, value = name.strip().lower(), value.strip()
        if name in _LISTS and name in headers:
            # A line end separates directives that headers give to different robots.
            value = f"{headers[name]}{chr(10) if name == 'x-robots-tag' else ','}{value}"
        headers[name] = value
    return int(status[1]), headers, block[end.end() :] if end else b""


def decode_body(body: bytes, headers: dict[str, str], max_bytes: int) -> bytes | None:
    """Undoes transfer and content encodings; None if the result exceeds ``max_bytes``.

    None too for a body of more than ``MAX_CHUNKS`` chunks.
    """
    if "chunked" in headers.get("transfer-encoding", "").lower():
        unchunked = unchunk(body)
        if unchunked is None:
            return None
        body = unchunked
    encodings = headers.get("content-encoding", "").lower().split(",")
    for encoding in reversed(encodings[:MAX_ENCODINGS]):
        decoded = decompress(body, encoding.strip(), max_bytes)
        if decoded is not None and len(decoded) > max_bytes:
            return None
        body = body if decoded is None else decoded
    return body


def unchunk(body: bytes) -> bytes | None:
    """Joins the chunks of a chunked body; a body that does not look chunked is returned unchanged.

    None if there are more than ``MAX_CHUNKS``, because each costs time.
    """
    chunks: list[bytes] = []
    position = 0
    while position < len(body):
        size = _CHUNK.match(body, position)
        if size is None:
            return body if not chunks else b"".join(chunks)
        length = int(size[1], 16)
        if length == 0:
            break
        if len(chunks) == MAX_CHUNKS:
            return None
        chunks.append(body[size.end() : size.end() + length])
        position = size.end() + length
        position += 2 if body[position : position + 2] == b"\r\n" else 1
    return b"".join(chunks)


def decompress(body: bytes, encoding: str, max_bytes: int) -> bytes | None:
    """Returns at most ``max_bytes`` + 1 decoded bytes; None if ``body`` is not in this encoding.

    For a truncated body, the readable part.
    """
    if encoding in ("gzip", "x-gzip"):
        return _inflate(body, zlib.MAX_WBITS | 16, max_bytes)
    if encoding == "deflate":  # zlib by the standard, raw deflate by some servers
        inflated = _inflate(body, zlib.MAX_WBITS, max_bytes)
        return _inflate(body, -zlib.MAX_WBITS, max_bytes) if inflated is None else inflated
    if encoding == "zstd":
        return _read(ZstdReader(io.BytesIO(body), fsspec_args=False), max_bytes)[0]
    if encoding == "br":
        decoded, is_whole = _read(BrotliReader(io.BytesIO(body), fsspec_args=False), max_bytes)
        # Brotli has no magic bytes: failing with less output than input means no Brotli.
        return decoded if is_whole or len(decoded or b"") > len(body) else None
    return None


def _inflate(body: bytes, window: int, max_bytes: int) -> bytes | None:
    """Joins the members of a zlib or gzip stream; None if the first bytes are neither."""
    parts: list[bytes] = []
    left = max_bytes + 1
    while body and left > 0:
        member = zlib.decompressobj(window)
        try:
            parts.append(member.decompress(body, left))
        except zlib.error:
            break
        left -= len(parts[-1])
        body = member.unused_data
    return b"".join(parts) if parts else None


def _read(stream: Any, max_bytes: int) -> tuple[bytes | None, bool]:
    """Reads a FastWARC stream; returns its bytes, or None, and whether it was complete."""
    parts: list[bytes] = []
    left = max_bytes + 1
    try:
        while left > 0 and (part := stream.read(min(left, 1 << 20))):
            parts.append(part)
            left -= len(part)
    except OSError:
        return b"".join(parts) or None, False
    return b"".join(parts), True
