"""Counts the parts of an image file before decoding, because each part has a known cost.

A file of some 100 KB can make a decoder use minutes or gigabytes: with thousands of scans that each
touch every pixel, with tags that share their bytes, with millions of empty markers. No photograph
has a hundredth of these. The parsers here read the same parts as the decoders, stop when a count
exceeds its limit, and do not report damage, which the decoder does.
"""

import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt

from vlmill.schemas.rejects import Reason, Rejected

Parts = Iterator[tuple[str, int]]  # part and count

# Measured on a core of a Xeon (2.1 GHz), with Pillow 12.3; benchmarks/RESULTS.md has the table.
LIMITS: Mapping[str, int] = {
    "scans": 64,  # of a JPEG: 2 ms for each million pixels; encoders write up to 20
    "markers": 2_000,  # of a JPEG: 100 bytes of memory each, empty or not; cameras write up to 200
    "padding bytes": 1 << 20,  # of a JPEG's header: 0.2 s
    "EXIF segments": 32,  # of a JPEG: joining n of them copies n * n / 2; the standard has 1
    "tags": 100_000,  # of a TIFF's directories, or of EXIF: 3 us each
    "directories": 4_096,  # of a TIFF, its pages
    "tag values": 1_000_000,  # numbers: 32 to 200 bytes each as objects of Python
    "times the file's bytes in tags": 2,  # tags of a file do not overlap
    "times the file's bytes in strips": 2,
    "strips": 250_000,  # or tiles of a TIFF
    "pixels of a tile": 1 << 25,  # of a TIFF: at most 8 bytes each, for images of any size
    "chunks": 50_000,  # of a PNG or WebP: 5 us each; of a PNG of 64 MB in 8 KB each 8,000
    "blocks": 100_000,  # of a GIF, up to its second image: 1 us each
    "comment bytes": 1 << 20,  # of a GIF: n blocks of a comment copy n * n / 2
    "bytes of runs": 4 << 20,  # of a compressed BMP, which is decoded by a loop in Python
    "pixels across": 1 << 14,  # of a compressed BMP: one run may skip 255 rows
    "items": 4_096,  # of a HEIC or AVIF: 50 million pixels in tiles of 256 x 256 are 763
}
SLACK_BYTES = 64 << 10  # of a small file, whose tags may share some bytes


def check_structure(data: bytes, name: str | None) -> None:
    """Refuses a file of the format ``name`` with more parts than decoding may cost.

    Raises Rejected with ``too_expensive``.
    """
    for kind, count in count_parts(data, name).items():
        if count > LIMITS[kind]:
            raise Rejected(Reason.TOO_EXPENSIVE, f"{name} of {count} {kind}, limit {LIMITS[kind]}")


def count_parts(data: bytes, name: str | None) -> Counter[str]:
    """Counts the parts of an image file of the format ``name`` (vlmill.schemas.images.formats).

    Counting ends with the first count above its limit, which is then the last one.
    """
    counts: Counter[str] = Counter()
    parse = PARSERS.get(name or "")
    if parse is None:
        return counts
    # A file that ends early is damaged: the decoder will find that, too.
    with suppress(struct.error, IndexError):
        for kind, count in parse(data):
            counts[kind] += count
            if counts[kind] > LIMITS[kind]:
                break
    return counts


# --- JPEG -----------------------------------------------------------------------------------------

EOI, SOS = 0xD9, 0xDA
EXIF, MPF = b"Exif\0\0", b"MPF\0"
BARE = {0x01, *range(0xD0, 0xDA)}  # markers without a length
# Inside a scan 0xFF is followed by 0 if it is data, and by another byte in restart markers.
_PADDING = re.compile(rb"\xff+")
_NEXT_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")


def jpeg_parts(data: bytes) -> Parts:
    """Yields the parts of a JPEG's header that Pillow reads, then the markers up to its end."""
    exif: list[bytes] = []
    offset = 2
    while True:
        start = data.find(b"\xff", offset)
        if start < 0:
            return
        padding = _PADDING.match(data, start + 1)
        marker = start + 1 if padding is None else padding.end()
        yield "padding bytes", marker - 1 - offset
        code, offset = data[marker], marker + 1
        if code == 0:  # Pillow continues with the next byte
            yield "padding bytes", 2
            continue
        yield "markers", 1
        if code in BARE:
            continue
        end = offset + struct.unpack_from(">H", data, offset)[0]
        if code == SOS:
            yield "scans", 1
            offset = end
            break
        if code == 0xE1 and data.startswith(EXIF, offset + 2):
            yield "EXIF segments", 1
            exif.append(data[offset + 2 + (len(EXIF) if exif else 0) : end])
        if code == 0xE2 and data.startswith(MPF, offset + 2):
            yield from directory_parts(data[offset + 2 + len(MPF) : end])
        offset = max(end, offset + 2)
    block = b"".join(exif)
    while block.startswith(EXIF):
        block = block.removeprefix(EXIF)
    yield from directory_parts(block)
    yield from scan_parts(data, offset)


def scan_parts(data: bytes, offset: int) -> Parts:
    """Yields the scans and markers from the bytes of the first scan to the end of the image."""
    while match := _NEXT_MARKER.search(data, offset):
        code, offset = data[match.end() - 1], match.end()
        if code == EOI:
            return
        yield "markers", 1
        if code == SOS:
            yield "scans", 1
        if code not in BARE:
            offset += max(struct.unpack_from(">H", data, offset)[0], 2)


# --- TIFF and EXIF --------------------------------------------------------------------------------

Order = Literal["<", ">"]
ORDERS: Mapping[bytes, Order] = {b"II": "<", b"MM": ">"}
TILE_SIDES, STRIPS, TILES = (322, 323), (273, 279), (324, 325)  # tags: sides; offsets, bytes
COMPRESSION, JPEG_COMPRESSIONS = 259, (6, 7)
DIRECTORIES = (34665, 34853, 40965)  # tags that lead to further directories, which Pillow reads
NUMBERS = {3: "u2", 4: "u4", 13: "u4", 16: "u8"}  # types of unsigned numbers
SIZES = np.array([0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8], dtype=np.float64)
"""Bytes of a value by its type; types that Pillow does not read are missing."""
TEXTS = (1, 2, 7)  # types whose values stay one string of bytes


@dataclass(frozen=True)
class Directory:
    """Holds the readable tags of one directory, and the offset of the next directory, or 0."""

    data: bytes
    tags: npt.NDArray[np.void]
    following: int
    order: Order
    is_big: bool

    @classmethod
    def read(cls, data: bytes, offset: int, order: Order, *, is_big: bool) -> "Directory":
        """Reads tags up to one whose bytes are outside the file, where Pillow stops too."""
        count_type, number = ("Q", "u8") if is_big else ("H", "u4")
        (count,) = struct.unpack_from(order + count_type, data, offset)
        entry = np.dtype(
            [("tag", "u2"), ("kind", "u2"), ("count", number), ("value", number)]
        ).newbyteorder(order)
        offset += struct.calcsize(count_type)
        count = min(count, (len(data) - offset) // entry.itemsize)
        tags = np.frombuffer(data, entry, count, offset)
        outside = np.flatnonzero(
            (num_bytes(tags) > entry["value"].itemsize)
            & (num_bytes(tags) + tags["value"] > len(data))
        )
        if len(outside):
            return cls(data, tags[: outside[0]], 0, order, is_big)
        offset += count * entry.itemsize
        following = struct.unpack_from(order + ("Q" if is_big else "L"), data, offset)[0]
        return cls(data, tags, int(following), order, is_big)

    def count(self, tag: int) -> int:
        """Returns the number of values of a tag."""
        return int(self.tags["count"][self.tags["tag"] == tag].sum())

    def values(self, tag: int) -> npt.NDArray[np.float64]:
        """Returns the numbers of a tag, as far as they are in the file; none without the tag."""
        for index in np.flatnonzero(self.tags["tag"] == tag)[-1:]:
            kind = NUMBERS.get(int(self.tags["kind"][index]))
            if kind is None:
                break
            number = np.dtype(kind).newbyteorder(self.order)
            entry = self.tags[index : index + 1]
            field = self.tags.dtype["value"].itemsize
            if int(entry["count"][0]) * number.itemsize <= field:
                inline = entry.tobytes()[-field:]
                return np.frombuffer(inline, number, int(entry["count"][0])).astype(np.float64)
            offset = int(entry["value"][0])
            count = min(int(entry["count"][0]), (len(self.data) - offset) // number.itemsize)
            return np.frombuffer(self.data, number, count, offset).astype(np.float64)
        return np.empty(0)

    def number(self, tag: int) -> int:
        """Returns a tag's first number; 0 without one."""
        return int(self.values(tag)[:1].sum())


def num_bytes(tags: npt.NDArray[np.void]) -> npt.NDArray[np.float64]:
    """Returns the bytes of each tag's values, float64 [T]: as whole numbers they may overflow."""
    kinds = np.where(tags["kind"] < len(SIZES), tags["kind"], 0)
    sizes: npt.NDArray[np.float64] = tags["count"].astype(np.float64) * SIZES[kinds]
    return sizes


def directory_parts(data: bytes, *, pages: bool = False) -> Parts:
    """Yields the parts of a TIFF's directories; of a block of EXIF only the first one is read."""
    order = ORDERS.get(data[:2])
    if order is None:
        return
    is_big = data[2] == 43  # Pillow looks at this byte in either order
    (first,) = struct.unpack_from(order + ("Q" if is_big else "L"), data, 8 if is_big else 4)
    seen, waiting, tag_bytes = set[int](), [int(first)], 0.0
    while waiting:
        offset = waiting.pop()
        if offset in seen or not offset:
            continue
        directory = Directory.read(data, offset, order, is_big=is_big)
        yield "directories", 1
        yield "tags", len(directory.tags)
        tag_bytes += float(num_bytes(directory.tags).sum())
        yield from check_total_bytes("tags", tag_bytes, data)
        are_numbers = ~np.isin(directory.tags["kind"], TEXTS)
        yield "tag values", int(directory.tags["count"][are_numbers].astype(np.float64).sum())
        if not pages:
            return
        if not seen:
            yield from pixel_parts(directory)
        seen.add(offset)
        waiting += [directory.following, *map(directory.number, DIRECTORIES)]


def pixel_parts(directory: Directory) -> Parts:
    """Yields the parts of a page's pixels."""
    across, down = map(directory.number, TILE_SIDES)
    yield "pixels of a tile", across * down
    strips = directory.count(STRIPS[0]) + directory.count(TILES[0])
    yield "strips", strips
    if strips <= LIMITS["strips"]:
        strip_bytes = directory.values(STRIPS[1]).sum() + directory.values(TILES[1]).sum()
        yield from check_total_bytes("strips", float(strip_bytes), directory.data)
    if directory.number(COMPRESSION) in JPEG_COMPRESSIONS:
        yield "scans", max(0, directory.data.count(b"\xff\xda") - strips)


def check_total_bytes(what: str, total: float, data: bytes) -> Parts:
    """Yields how many times larger than the file ``total`` bytes are, if that exceeds the limit.

    The first `SLACK_BYTES` do not count, so that small files may exceed it.
    """
    yield f"times the file's bytes in {what}", 0
    times = int(max(0.0, total - SLACK_BYTES) // len(data))
    if times > LIMITS[f"times the file's bytes in {what}"]:
        yield f"times the file's bytes in {what}", times


# --- others ---------------------------------------------------------------------------------------


def png_parts(data: bytes) -> Parts:
    """Yields the chunks of a PNG up to its end."""
    offset = 8
    while offset < len(data):
        (size,) = struct.unpack_from(">L", data, offset)
        yield "chunks", 1
        if data.startswith(b"IEND", offset + 4):
            return
        offset += size + 12


_EXIF_PROFILE = b"Raw profile type exif\0"  # as text: ImageMagick keeps the orientation there


def without_texts(data: bytes) -> bytes:
    """Returns a PNG without its packed texts: Pillow refuses those above 1 MiB.

    Editors leave such histories; browsers skip them. An EXIF profile stays.
    """
    if b"iTXt" not in data and b"zTXt" not in data:
        return data
    parts, begin, offset = list[bytes](), 0, 8
    with suppress(struct.error):
        while offset < len(data):
            size, kind = struct.unpack_from(">L4s", data, offset)
            following = offset + size + 12
            is_profile = data.startswith(_EXIF_PROFILE, offset + 8)
            if kind in (b"iTXt", b"zTXt") and not is_profile:
                parts.append(data[begin:offset])
                begin = following
            offset = following
    return b"".join((*parts, data[begin:]))


def webp_parts(data: bytes) -> Parts:
    """Yields the chunks of a WebP; an animation has one per frame."""
    offset = 12
    while offset < len(data):
        (size,) = struct.unpack_from("<L", data, offset + 4)
        yield "chunks", 1
        offset += 8 + size + size % 2


def canvas_pixels(data: bytes, name: str | None) -> int:
    """Returns the pixels of a WebP's canvas, or 0 for other formats and without a canvas.

    Pillow's decoder allocates two canvases when it opens the file.
    """
    if name != "WEBP" or data[12:16] != b"VP8X" or len(data) < 30:
        return 0
    width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
    return width * height


def gif_parts(data: bytes) -> Parts:
    """Yields the blocks of a GIF up to its second image, which shows that it is an animation."""
    offset, images = 13 + color_table_bytes(data[10]), 0
    while data[offset] != ord(";"):
        code, offset = data[offset], offset + 1
        yield "blocks", 1
        if code == ord("!"):
            label = data[offset]
            offset, blocks, size = skip_blocks(data, offset + 1)
            yield "blocks", blocks
            if label == 0xFE:
                yield "comment bytes", size
        elif code == ord(","):
            images += 1
            if images == 2:
                return
            offset += 10 + color_table_bytes(data[offset + 8])
            offset, blocks, _ = skip_blocks(data, offset)
            yield "blocks", blocks


def color_table_bytes(flags: int) -> int:
    """Returns the bytes of the colour table that a GIF's flags announce."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def skip_blocks(data: bytes, offset: int) -> tuple[int, int, int]:
    """Returns where a GIF's blocks end, their number and their bytes; ends above the limit."""
    begin, count = offset, 0
    while (size := data[offset]) and count <= LIMITS["blocks"]:
        offset += size + 1
        count += 1
    return offset + 1, count, offset - begin - count


def bmp_parts(data: bytes) -> Parts:
    """Yields the parts of a BMP that is compressed by runs."""
    pixels, header = struct.unpack_from("<LL", data, 10)
    if header < 40:
        return
    width, compression = struct.unpack_from("<L", data, 18) + struct.unpack_from("<L", data, 30)
    if compression in (1, 2):
        yield "bytes of runs", max(0, len(data) - pixels)
        yield "pixels across", width


def heif_parts(data: bytes) -> Parts:
    """Yields the items of a HEIC or AVIF: an image in a grid has one a tile."""
    for kind, begin, end in boxes(data, 0, len(data)):
        yield "items", 1
        if kind != b"meta":
            continue
        for inner, start, _ in boxes(data, begin + 4, end):
            yield "items", 1
            if inner == b"iinf":
                number = ">H" if data[start] == 0 else ">L"
                yield "items", struct.unpack_from(number, data, start + 4)[0]


def boxes(data: bytes, offset: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yields the boxes of ISO's base media format: type, begin and end of the content."""
    while offset + 8 <= end:
        size, kind = struct.unpack_from(">L4s", data, offset)
        begin = offset + 8
        if size == 1:
            (size,) = struct.unpack_from(">Q", data, begin)
            begin += 8
        following = end if size == 0 else offset + size
        if following < begin:
            return
        yield kind, begin, min(following, end)
        offset = following


PARSERS: Mapping[str, Callable[[bytes], Parts]] = {
    "JPEG": jpeg_parts,
    "PNG": png_parts,
    # The tags of all its pages, and the strips or tiles of the first one.
    "TIFF": partial(directory_parts, pages=True),
    "GIF": gif_parts,
    "WEBP": webp_parts,
    "BMP": bmp_parts,
    "HEIC": heif_parts,
    "HEIF": heif_parts,
    "AVIF": heif_parts,
}
