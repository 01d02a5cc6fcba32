"""Reads the size of an image from the first bytes of its file, without a decoder.

For unusual files it returns None, and a decoder reads them.
"""

import struct
from contextlib import suppress
from typing import NamedTuple

from vlmill.schemas.images.formats import format_name

_MAX_MARKERS = 200  # of a JPEG before its size; cameras write up to 100
_NO_SIZE = {0xC4, 0xC8, 0xCC}  # of the markers 0xC0 to 0xCF
_BARE = {0x01, *range(0xD0, 0xD9)}  # markers without a length


class Header(NamedTuple):
    """Holds an image's format in lower case, and its width and height in pixels as it is stored."""

    format: str
    width: int
    height: int
    is_animated: bool


def read_header(data: bytes) -> Header | None:
    """Returns the header of a common JPEG, PNG, GIF or WebP; None for other files."""
    name = format_name(data)
    with suppress(struct.error, IndexError):
        match name:
            case "JPEG":
                return _jpeg(data)
            case "PNG":
                return _png(data)
            case "GIF":
                width, height = struct.unpack_from("<HH", data, 6)
                return Header("gif", width, height, is_animated=False)
            case "WEBP":
                return _webp(data)
    return None


def _jpeg(data: bytes) -> Header | None:
    offset = 2
    for _ in range(_MAX_MARKERS):
        start, marker, length = struct.unpack_from(">BBH", data, offset)
        if start != 0xFF or marker in _BARE or marker == 0xFF or length < 2:
            return None
        if 0xC0 <= marker <= 0xCF and marker not in _NO_SIZE:
            height, width = struct.unpack_from(">HH", data, offset + 5)
            return Header("jpeg", width, height, is_animated=False) if width and height else None
        offset += 2 + length
    return None


def _png(data: bytes) -> Header | None:
    if data[12:16] != b"IHDR":
        return None
    width, height = struct.unpack_from(">LL", data, 16)
    pixels = data.find(b"IDAT")
    is_animated = data.find(b"acTL", 0, pixels if pixels > 0 else len(data)) > 0
    return None if is_animated else Header("png", width, height, is_animated=False)


def _webp(data: bytes) -> Header | None:
    kind = data[12:16]
    if kind == b"VP8X":
        width, height = (int.from_bytes(data[n : n + 3], "little") + 1 for n in (24, 27))
        return Header("webp", width, height, is_animated=bool(data[20] & 2))
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
        return Header("webp", width, height, is_animated=False)
    if kind == b"VP8L" and data[20] == 0x2F:
        (bits,) = struct.unpack_from("<L", data, 21)
        return Header("webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, is_animated=False)
    return None
