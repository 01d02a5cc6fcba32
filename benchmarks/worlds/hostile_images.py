"""Images that ask a decoder for far more time or memory than their bytes; none is stored."""

import io
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from PIL import Image

from vlmill.schemas.rejects import Reason

SIDE = 4_000  # pixels: 16 million in an image
MANY = 300_000  # parts


@dataclass(frozen=True, kw_only=True)
class Hostile:
    """How an image is made, why it is rejected, and for ``too_expensive`` which part is counted.

    Without ``reason`` it decodes, within the memory that an image may take.
    """

    make: Callable[[], bytes]
    reason: Reason | None = Reason.TOO_EXPENSIVE
    part: str | None = None


# --- JPEG -----------------------------------------------------------------------------------------


def segment(code: int, content: bytes = b"") -> bytes:
    return b"\xff" + bytes([code]) + struct.pack(">H", len(content) + 2) + content


def frame(code: int, side: int = SIDE) -> bytes:
    components = b"".join(bytes([number, 0x11, 0]) for number in (1, 2, 3))
    return segment(code, struct.pack(">BHHB", 8, side, side, 3) + components)


def scan(components: Sequence[int], first: int, last: int, high: int, low: int) -> bytes:
    tables = b"".join(bytes([component, 0]) for component in components)
    return segment(0xDA, bytes([len(components)]) + tables + bytes([first, last, high << 4 | low]))


TABLES = (
    segment(0xDB, b"\0" + b"\1" * 64)
    + segment(0xC4, bytes([0x00, 1, *[0] * 15, 0]))
    + segment(0xC4, bytes([0x10, 1, 1, *[0] * 14, 0xE0, 0]))
)
RUNS = b"\x3f\xff\x00" * (SIDE * SIDE // 64 // 32_000 + 1)  # each ends the band of 32,767 blocks
PIXELS = scan([1, 2, 3], 0, 0, 0, 1)


def progressive(scans: bytes, code: int = 0xC2, header: bytes = b"") -> bytes:
    return b"\xff\xd8" + header + TABLES + frame(code) + PIXELS + scans + b"\xff\xd9"


def photograph(kind: str, side: int = 64) -> bytes:
    out = io.BytesIO()
    Image.radial_gradient("L").resize((side, side)).convert("RGB").save(out, kind)
    return out.getvalue()


def with_header(header: bytes) -> bytes:
    """A photograph with more between its start and its first marker."""
    plain = photograph("JPEG")
    return plain[:2] + header + plain[2:]


def exif_segments(block: bytes, size: int = 65_000) -> bytes:
    """A block of EXIF cut into segments, each with the prefix."""
    parts = (block[start : start + size] for start in range(0, len(block), size))
    return b"".join(segment(0xE1, b"Exif\0\0" + part) for part in parts)


# --- TIFF -----------------------------------------------------------------------------------------


def directory(entries: Sequence[tuple[int, int, int, int]], following: int = 0) -> bytes:
    """A directory of (tag, type, count, value) in little-endian order."""
    packed = b"".join(struct.pack("<HHLL", *entry) for entry in entries)
    return struct.pack("<H", len(entries)) + packed + struct.pack("<L", following)


def overlapping(entries: int, size: int, first: Sequence[tuple[int, int, int, int]] = ()) -> bytes:
    """A TIFF of ``size`` bytes whose tags all have most of them as their value."""
    tags = [*first, *((40_000 + number % 20_000, 7, size - 8, 8) for number in range(entries))]
    return (b"II*\0" + struct.pack("<L", 8) + directory(tags)).ljust(size, b"\0")


def grey_tags(
    side: int, *, compression: int = 1, offsets: tuple[int, int], counts: tuple[int, int]
) -> list[tuple[int, int, int, int]]:
    """The tags of a grey image; ``offsets`` and ``counts`` of strips are (number, value)."""
    return [
        (256, 4, 1, side),
        (257, 4, 1, side),
        (258, 3, 1, 8),
        (259, 3, 1, compression),
        (262, 3, 1, 1),
        (273, 4, *offsets),
        (277, 3, 1, 1),
        (278, 4, 1, 1),
        (279, 4, *counts),
    ]


def strips(number: int, size: int, *, compression: int, content: bytes) -> bytes:
    """A TIFF of ``number`` strips that all are the same ``size`` bytes."""
    begin = 8 + 2 + 9 * 12 + 4
    content_at = begin + 8 * number
    offsets = struct.pack(f"<{number}L", *[content_at] * number)
    counts = struct.pack(f"<{number}L", *[size] * number)
    tags = grey_tags(
        number,
        compression=compression,
        offsets=(number, begin),
        counts=(number, begin + 4 * number),
    )
    return b"II*\0" + struct.pack("<L", 8) + directory(tags) + offsets + counts + content


def tile(side: int) -> bytes:
    """A TIFF of 64 x 64 pixels in one tile of ``side`` pixels a side."""
    tags = [
        *grey_tags(64, compression=8, offsets=(1, 0), counts=(1, 0))[:5],
        (277, 3, 1, 1),
        (322, 4, 1, side),
        (323, 4, 1, side),
        (324, 4, 1, 200),
        (325, 4, 1, 1_000),
    ]
    start = b"II*\0" + struct.pack("<L", 8) + directory(tags)
    return start.ljust(200, b"\0") + zlib.compress(bytes(900_000))


def pages(number: int, tags: int = 1) -> bytes:
    """A TIFF of pages with ``tags`` tags each, every one after the other."""
    size = 2 + 12 * tags + 4
    entries = [(40_000 + tag, 4, 1, 0) for tag in range(tags)]
    chain = (directory(entries, 8 + size * page) for page in range(1, number))
    return b"II*\0" + struct.pack("<L", 8) + b"".join(chain) + directory(entries)


def rationals(number: int) -> bytes:
    """A TIFF with ``number`` fractions in one tag, which turning it would make objects of."""
    return overlapping(0, 8 * number + 100, [(274, 3, 1, 6), (40_000, 5, number, 40)])


def hidden_directory(tag: int) -> bytes:
    """A TIFF whose first directory is good, and leads to one of overlapping tags."""
    size = 600_000
    first = directory([*grey_tags(8, offsets=(1, 8), counts=(1, 64)), (tag, 4, 1, 200)])
    tags = directory([(40_000 + number, 7, size - 8, 8) for number in range(5_000)])
    start = (b"II*\0" + struct.pack("<L", 8) + first).ljust(200, b"\0")
    return (start + tags).ljust(size, b"\0")


def big_tiff() -> bytes:
    """A TIFF with offsets of 64 bits, whose tags overlap."""
    size, number = 600_000, 5_000
    entry = struct.Struct("<HHQQ")
    tags = b"".join(entry.pack(40_000 + n, 7, size - 16, 16) for n in range(number))
    head = b"II+\0\x08\0\0\0" + struct.pack("<QQ", 16, number)
    return (head + tags).ljust(size, b"\0")


def jpeg_in_tiff() -> bytes:
    """A TIFF whose only strip is a JPEG of many scans."""
    content = progressive(scan([1], 1, 63, 0, 1) * 3_000)
    tags = [
        (256, 4, 1, SIDE),
        (257, 4, 1, SIDE),
        (258, 3, 1, 8),
        (259, 3, 1, 7),
        (262, 3, 1, 6),
        (273, 4, 1, 200),
        (277, 3, 1, 3),
        (278, 4, 1, SIDE),
        (279, 4, 1, len(content)),
    ]
    return (b"II*\0" + struct.pack("<L", 8) + directory(tags)).ljust(200, b"\0") + content


# --- PNG ------------------------------------------------------------------------------------------


def chunk(kind: bytes, content: bytes = b"") -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">L", len(content)) + kind + content + struct.pack(">L", checksum)


def png(
    *, before: bytes = b"", after: bytes = b"", side: int = 64, depth: int = 8, empty: int = 0
) -> bytes:
    """A grey PNG of black pixels, with more before them and after, and empty chunks of pixels."""
    header = struct.pack(">LLBBBBB", side, side, depth, 0, 0, 0, 0)
    row = bytes(1 + side * depth // 8)
    squeeze = zlib.compressobj(9)
    pixels = b"".join(squeeze.compress(row) for _ in range(side)) + squeeze.flush()
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + before
        + chunk(b"IDAT") * empty
        + chunk(b"IDAT", pixels)
        + after
        + chunk(b"IEND")
    )


def bomb(kind: bytes, head: bytes) -> bytes:
    """A chunk whose compressed text is 200 MB."""
    return chunk(kind, head + zlib.compress(bytes(200_000_000)))


# --- GIF, BMP, WebP, HEIC -------------------------------------------------------------------------


def gif(side: int = 64, before: bytes = b"", blocks: bytes = b"\x02\x44\x01\0") -> bytes:
    screen = struct.pack("<HHBBB", side, side, 0x80, 0, 0) + bytes(6)
    image = b"," + struct.pack("<HHHHB", 0, 0, side, side, 0) + b"\x02" + blocks
    return b"GIF89a" + screen + before + image + b";"


def bmp(width: int, height: int, runs: bytes) -> bytes:
    """A BMP of 8 bits a pixel, compressed by runs."""
    colors = bytes(4 * 256)
    begin = 14 + 40 + len(colors)
    header = struct.pack("<LllHHLLllLL", 40, width, height, 1, 8, 1, len(runs), 0, 0, 256, 0)
    return b"BM" + struct.pack("<LLL", begin + len(runs), 0, begin) + header + colors + runs


def webp(chunks: bytes, side: int = 64) -> bytes:
    """A WebP of the extended form, announced as an animation, with any chunks."""
    canvas = (side - 1).to_bytes(3, "little")
    extended = b"VP8X" + struct.pack("<L", 10) + b"\x02\0\0\0" + canvas * 2
    body = b"WEBP" + extended + chunks
    return b"RIFF" + struct.pack("<L", len(body)) + body


def items(brand: bytes, number: int) -> bytes:
    """A HEIC or AVIF that lists so many items."""

    def box(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">L4s", len(content) + 8, kind) + content

    info = b"".join(
        box(b"infe", b"\2\0\0\0" + struct.pack(">HH4s", n % 65_536, 0, b"hvc1") + b"\0")
        for n in range(number)
    )
    listed = box(b"iinf", b"\0\0\0\0" + struct.pack(">H", number) + info)
    head = box(b"ftyp", brand + b"\0\0\0\0" + brand)
    return head + box(b"meta", b"\0\0\0\0" + listed)


def empty_boxes(number: int) -> bytes:
    return items(b"heic", 1) + struct.pack(">L4s", 8, b"free") * number


def animation_frame() -> bytes:
    """The chunks of an animation of one small frame."""
    still = photograph("WEBP")[12:]
    control = b"ANIM" + struct.pack("<L", 6) + bytes(6)
    where = bytes(6) + (63).to_bytes(3, "little") * 2 + bytes(4)
    return control + b"ANMF" + struct.pack("<L", len(where) + len(still)) + where + still


IMAGES: Mapping[str, Hostile] = {
    "JPEG, 3,000 scans": Hostile(
        make=lambda: progressive(scan([1], 1, 63, 0, 1) + (scan([1], 1, 63, 1, 0) + RUNS) * 3_000),
        part="scans",
    ),
    "JPEG, scans of all components": Hostile(
        make=lambda: progressive((scan([1, 2, 3], 0, 0, 1, 0) + b"\x55" * 900) * 300), part="scans"
    ),
    "JPEG, arithmetic scans": Hostile(
        make=lambda: progressive(scan([1], 1, 63, 0, 1) * 1_000, code=0xCA), part="scans"
    ),
    "JPEG, repeated scans": Hostile(
        make=lambda: progressive(
            b"".join(scan([n % 3 + 1], 0, 63, 0, 0) for n in range(999)), 0xC0
        ),
        part="scans",
    ),
    "JPEG, scans with runs of 0xFF": Hostile(
        make=lambda: progressive((b"\xff" * 9 + scan([1], 1, 63, 0, 1)) * 500), part="scans"
    ),
    "JPEG, empty segments": Hostile(
        make=lambda: with_header(segment(0xE0) * 7_000_000), part="markers"
    ),
    "JPEG, empty comments": Hostile(make=lambda: with_header(segment(0xFE) * MANY), part="markers"),
    "JPEG, restart markers": Hostile(make=lambda: with_header(b"\xff\xd0" * MANY), part="markers"),
    "JPEG, padding": Hostile(make=lambda: with_header(b"\xff" * 9_000_000), part="padding bytes"),
    "JPEG, junk": Hostile(
        make=lambda: with_header(segment(0xFE) + bytes(9_000_000)), part="padding bytes"
    ),
    "JPEG, stuffed bytes": Hostile(
        make=lambda: with_header(b"\xff\0" * 4_000_000), part="padding bytes"
    ),
    "JPEG, tables between scans": Hostile(
        make=lambda: progressive(segment(0xC4, bytes([0x10, 1, 1, *[0] * 14, 0xE0, 0])) * MANY),
        part="markers",
    ),
    "JPEG, EXIF of several segments": Hostile(
        make=lambda: with_header(exif_segments(overlapping(10_000, 200_000))),
        part="times the file's bytes in tags",
    ),
    "JPEG, EXIF of one segment": Hostile(
        make=lambda: with_header(exif_segments(overlapping(5_000, 65_000))),
        part="times the file's bytes in tags",
    ),
    "JPEG, 1,000 segments of EXIF": Hostile(
        make=lambda: with_header(exif_segments(overlapping(1, 60_000_000))), part="EXIF segments"
    ),
    "JPEG, index of more images": Hostile(
        make=lambda: with_header(segment(0xE2, b"MPF\0" + overlapping(5_000, 65_000))),
        part="times the file's bytes in tags",
    ),
    "JPEG, 65,500 pixels a side": Hostile(
        make=lambda: b"\xff\xd8" + TABLES + frame(0xC0, 65_500) + PIXELS + b"\xff\xd9",
        reason=Reason.TOO_LARGE,
    ),
    "PNG, private chunks": Hostile(
        make=lambda: png(before=chunk(b"abCd") * 2_000_000), part="chunks"
    ),
    "PNG, empty chunks of pixels": Hostile(make=lambda: png(empty=MANY), part="chunks"),
    "PNG, texts": Hostile(make=lambda: png(before=chunk(b"tEXt", b"a\0b") * MANY), part="chunks"),
    "PNG, chunks after the pixels": Hostile(
        make=lambda: png(after=chunk(b"abCd") * MANY), part="chunks"
    ),
    "PNG, frames": Hostile(
        make=lambda: png(
            before=chunk(b"acTL", struct.pack(">LL", MANY, 0)),
            after=chunk(b"fcTL", bytes(26)) * MANY,
        ),
        part="chunks",
    ),
    "PNG, text of 200 MB": Hostile(
        # Its text is not unpacked.
        make=lambda: png(before=bomb(b"zTXt", b"a\0\0")),
        reason=None,
    ),
    "PNG, profile of 200 MB": Hostile(
        make=lambda: png(before=bomb(b"iCCP", b"a\0\0")), reason=Reason.UNREADABLE_IMAGE
    ),
    "PNG, 16 bits, 49 million pixels": Hostile(make=lambda: png(side=7_000, depth=16), reason=None),
    "PNG, 60,000 pixels a side": Hostile(
        make=lambda: png(side=64).replace(
            struct.pack(">LL", 64, 64), struct.pack(">LL", 60_000, 60_000)
        ),
        reason=Reason.UNREADABLE_IMAGE,  # its checksum is wrong
    ),
    "PNG, 8,000 pixels a side": Hostile(make=lambda: png(side=8_000), reason=Reason.TOO_LARGE),
    "TIFF, overlapping tags": Hostile(
        make=lambda: overlapping(4_000, 600_000), part="times the file's bytes in tags"
    ),
    "TIFF, tags of 64 bits": Hostile(make=big_tiff, part="times the file's bytes in tags"),
    "TIFF, tags of EXIF": Hostile(
        make=partial(hidden_directory, 34_665), part="times the file's bytes in tags"
    ),
    "TIFF, tags of GPS": Hostile(
        make=partial(hidden_directory, 34_853), part="times the file's bytes in tags"
    ),
    "TIFF, overlapping strips": Hostile(
        make=lambda: strips(7_000, 900_000, compression=8, content=bytes(900_000)),
        part="times the file's bytes in strips",
    ),
    "TIFF, strips": Hostile(
        make=lambda: strips(MANY, 1, compression=1, content=b"\0"), part="strips"
    ),
    "TIFF, tile of 32,768 pixels a side": Hostile(
        make=partial(tile, 32_768), part="pixels of a tile"
    ),
    "TIFF, pages": Hostile(make=partial(pages, 50_000), part="directories"),
    "TIFF, tags of pages": Hostile(make=partial(pages, 2_000, 100), part="tags"),
    "TIFF, fractions": Hostile(make=partial(rationals, 3_000_000), part="tag values"),
    "TIFF, scans of a JPEG": Hostile(make=jpeg_in_tiff, part="scans"),
    "GIF, blocks of a comment": Hostile(
        make=lambda: gif(before=b"!\xfe" + (b"\xff" + bytes(255)) * 60_000 + b"\0"),
        part="comment bytes",
    ),
    "GIF, small blocks": Hostile(
        make=lambda: gif(before=b"!\xff" + b"\1a" * 9_000_000 + b"\0"), part="blocks"
    ),
    "GIF, comments": Hostile(make=lambda: gif(before=b"!\xfe\1a\0" * MANY), part="blocks"),
    "GIF, junk": Hostile(make=lambda: gif(before=bytes(9_000_000)), part="blocks"),
    "GIF, small blocks of pixels": Hostile(
        make=lambda: gif(blocks=b"\1\x44" * 9_000_000 + b"\0"), part="blocks"
    ),
    "GIF, 65,000 pixels a side": Hostile(make=partial(gif, 65_000), reason=Reason.TOO_LARGE),
    "BMP, runs of no pixel": Hostile(
        make=lambda: bmp(7_000, 7_000, b"\0\2\0\0" * 4_000_000), part="bytes of runs"
    ),
    "BMP, runs of one pixel": Hostile(
        make=lambda: bmp(7_000, 7_000, b"\1\1" * 9_000_000), part="bytes of runs"
    ),
    "BMP, rows of 16 million pixels": Hostile(
        make=lambda: bmp(16_000_000, 3, b"\0\2\xff\xff" * 9), part="pixels across"
    ),
    "WebP, chunks": Hostile(make=lambda: webp(b"ANMF\0\0\0\0" * MANY), part="chunks"),
    "WebP, 16,384 pixels a side": Hostile(
        make=lambda: webp(animation_frame(), 16_384), reason=Reason.TOO_LARGE
    ),
    "HEIC, items": Hostile(make=partial(items, b"heic", 60_000), part="items"),
    "HEIC, boxes": Hostile(make=partial(empty_boxes, MANY), part="items"),
    "AVIF, items": Hostile(make=partial(items, b"avif", 60_000), part="items"),
}


MOST = 7_000  # pixels a side, of an image just below 50 million
AT_LIMITS: Mapping[str, Callable[[], bytes]] = {
    "JPEG, 64 scans": lambda: (
        b"\xff\xd8"
        + TABLES
        + frame(0xC2, MOST)
        + PIXELS
        + scan([1], 1, 63, 0, 1)
        + (scan([1], 1, 63, 1, 0) + RUNS * 4) * 62
        + b"\xff\xd9"
    ),
    "JPEG, 64 arithmetic scans": lambda: (
        b"\xff\xd8"
        + TABLES
        + frame(0xCA, MOST)
        + PIXELS
        + scan([1], 1, 63, 0, 1) * 63
        + b"\xff\xd9"
    ),
    "JPEG, 1,900 segments": lambda: with_header(segment(0xE0, bytes(30_000)) * 1_900),
    "JPEG, 1 MiB of padding": lambda: with_header(b"\xff\0" * 520_000),
    "JPEG, 32 segments of EXIF": lambda: with_header(exif_segments(overlapping(2, 2_000_000))),
    "PNG, 49,000 chunks": lambda: png(before=chunk(b"abCd", bytes(100)) * 49_000),
    "PNG, 16 bits, 49 million pixels": lambda: png(side=MOST, depth=16),
    "TIFF, tags of twice the file": lambda: overlapping(2, 60_000_000),
    "TIFF, 1,000,000 fractions": lambda: rationals(999_000),
    "TIFF, 240,000 strips": lambda: strips(240_000, 1, compression=1, content=b"\0"),
    "TIFF, tile of 5,792 pixels a side": partial(tile, 5_792),
    "TIFF, 4,000 pages": partial(pages, 4_000, 20),
    "GIF, 1 MiB of comments": lambda: gif(before=b"!\xfe" + (b"\xff" + bytes(255)) * 4_100 + b"\0"),
    "GIF, 99,000 blocks": lambda: gif(before=b"!\xff" + b"\1a" * 99_000 + b"\0"),
    "BMP, 4 MiB of runs": lambda: bmp(MOST, MOST, b"\1\1" * 2_097_000),
    "BMP, 4 MiB of runs of no pixel": lambda: bmp(MOST, MOST, b"\0\2\0\0" * 1_048_000),
}
