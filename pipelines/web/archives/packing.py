"""Detects by its bytes how an archive is packed: uncompressed, by members, or as one stream.

Common Crawl, Heritrix, warcio, wget and browsertrix write every record as its own gzip member (or
zstd frame), so that it can be read by its offset. Compressing a whole archive again leaves one
member: such an archive is read as the unpacked stream, from its beginning.

The Internet Archive's ARC files came before WARC. An ARC record is a line ``URL address date type
length`` (version 2 has five more fields before the length) and as many bytes of an HTTP response.
The first record describes the file.
"""

import io
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from fastwarc.stream_io import GzipReader, ZstdReader
from fastwarc.warc import ArchiveIterator, WarcRecordType

from vlmill.runtime.files.seekable import PositionedFile

MAX_LINE = 16_384
_BUFFER = 1 << 16

# Matches possible starts of records in damaged bytes; ``parse_line`` then checks them.
ARC_START = re.compile(
    rb"(?<=\n)[a-zA-Z][a-zA-Z0-9+.-]{1,20}:[^\n ]{1,8192}+ [0-9a-fA-F.:]{1,45}+ \d{8,17} "
)
_SCHEME = re.compile(rb"[a-zA-Z][a-zA-Z0-9+.-]{1,20}:")
_ADDRESS = re.compile(rb"[0-9a-fA-F.:]{1,45}")


def parse_line(line: bytes) -> tuple[str, int] | None:
    """Returns URL and length from the first line of a record, or None for another line."""
    fields = line.split(b"\n", 1)[0].rstrip(b"\r").split(b" ")
    if len(fields) < 5 or not _SCHEME.match(line) or not _is_number(fields[-1], 1, 15):
        return None
    # Types and URLs may contain spaces: the date is third from the left, or from the right.
    for date in (2, len(fields) - 3, len(fields) - 8):
        if date >= 2 and _is_number(fields[date], 8, 17) and _ADDRESS.fullmatch(fields[date - 1]):
            return b" ".join(fields[: date - 1]).decode("utf-8", "replace"), int(fields[-1])
    return None


def _is_number(field: bytes, shortest: int, longest: int) -> bool:
    return shortest <= len(field) <= longest and field.isdigit()


class _Lines:
    """Reads a stream of bytes as lines, and the contents between them."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._buffer = stream, b""
        self.position: int = stream.tell()

    def read(self, size: int) -> bytes:
        """Returns at most ``size`` bytes; b"" at the end."""
        if not self._buffer:
            self._buffer = self._stream.read(_BUFFER)
        part, self._buffer = self._buffer[:size], self._buffer[size:]
        self.position += len(part)
        return part

    def line(self) -> bytes:
        """Returns the rest of a line with its end, cut at ``MAX_LINE``; b"" at the end."""
        parts, length = list[bytes](), 0
        while length < MAX_LINE and not (parts and parts[-1].endswith(b"\n")):
            if not self._buffer:
                self._buffer = self._stream.read(_BUFFER)
            end = self._buffer.find(b"\n") + 1 or len(self._buffer)
            part = self.read(min(end, MAX_LINE - length))
            if not part:
                break
            parts.append(part)
            length += len(part)
        return b"".join(parts)


@dataclass(slots=True)
class _Content:
    """Reads the content of one record only."""

    lines: _Lines
    left: int

    def read(self, size: int) -> bytes:
        parts = []
        while size > 0 and self.left > 0 and (part := self.lines.read(min(size, self.left))):
            parts.append(part)
            size -= len(part)
            self.left -= len(part)
        return b"".join(parts)

    def consume(self, size: int) -> int:
        skipped = 0
        while skipped < size and (part := self.read(min(_BUFFER, size - skipped))):
            skipped += len(part)
        return skipped


@dataclass(slots=True, kw_only=True)
class ArcRecord:
    """Holds an ARC record, with the attributes of FastWARC's records that are used here."""

    stream_pos: int
    content_length: int
    headers: dict[str, str]
    reader: _Content
    record_type: WarcRecordType


def arc_records(stream: Any) -> Iterator[ArcRecord]:
    """Yields the records of an unpacked ARC file. Raises OSError for an invalid line."""
    lines = _Lines(stream)
    while True:
        start = lines.position
        line = lines.line()
        if not line:
            return
        if not line.strip():
            continue  # one empty line follows each record, and some writers add more
        head = parse_line(line)
        if head is None:
            raise OSError("Invalid ARC header")
        url, length = head
        record = ArcRecord(
            stream_pos=start,
            content_length=length,
            headers={"WARC-Target-URI": url},
            reader=_Content(lines, length),
            record_type=(
                WarcRecordType.warcinfo if url.startswith("filedesc:") else WarcRecordType.response
            ),
        )
        yield record
        while record.reader.consume(_BUFFER):
            pass


MIB = 1 << 20
MAX_WARC_HEADER = 2 * MIB  # of one record; URLs of a megabyte exist
MAX_DICTIONARY = 16 * MIB
# Text compresses 5 to 10 times, single-colour images 1,000 times: a whole archive never does.
HARMLESS_BYTES, MAX_EXPANSION = 256 * MIB, 200

_DICTIONARY_FRAME = b"\x5d\x2a\x4d\x18"  # a skippable frame before the first record (.warc.zst)
_WARC_LINE = re.compile(rb"WARC/\d")
_WARC_START = re.compile(rb"WARC/\d\.\d+\r?\n[A-Za-z-]+:")
_BARE_LF = re.compile(rb"WARC/[\d.]+\n")


@dataclass(frozen=True, slots=True)
class Packing:
    """Holds a compression: its reader, and the first bytes of its members."""

    reader: Callable[..., Any]
    magic: bytes


GZIP = Packing(GzipReader, b"\x1f\x8b\x08")
ZSTD = Packing(ZstdReader, b"\x28\xb5\x2f\xfd")
_PACKINGS = {GZIP.magic[:2]: GZIP, ZSTD.magic: ZSTD, _DICTIONARY_FRAME: ZSTD}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Holds where records begin: at the members of ``packing``, or anywhere if it is None."""

    packing: Packing | None
    is_arc: bool = False
    has_bare_lf: bool = False  # header lines end with only LF, against the standard
    dictionary: bytes | None = None  # of zstd

    @property
    def line_start(self) -> re.Pattern[bytes]:
        """Returns a pattern for possible starts of records in unpacked bytes."""
        return ARC_START if self.is_arc else _WARC_START

    def open(self, file: BinaryIO, offset: int) -> Any:
        """Opens the bytes of the records from ``offset`` on."""
        file.seek(offset)
        return unpack(file, self.packing, self.dictionary) if self.packing else file

    def records(self, stream: Any, max_header: int = MAX_WARC_HEADER) -> Iterable[Any]:
        """Iterates over the records of an opened stream. Raises OSError for invalid records."""
        if self.is_arc:
            return arc_records(stream)
        return ArchiveIterator(
            stream,
            parse_http=False,
            fsspec_args=False,
            stream_detect=False,
            # This mode also skips invalid records silently, so it is used only for those files.
            quirks_mode=self.has_bare_lf,
            max_header_len=max_header,
        )

    def get_offset(self, stream: Any, record: Any) -> int:
        """Returns where a record begins; valid until its content is read."""
        # FastWARC's own position is that of the next member if the empty lines are missing.
        offset: int = stream.frame_start_position() if self.packing else record.stream_pos
        return offset


def unpack(file: BinaryIO, packing: Packing, dictionary: bytes | None = None) -> Any:
    """Returns FastWARC's reader of ``file`` from its current position on."""
    if packing is ZSTD:
        return ZstdReader(file, fsspec_args=False, dictionary=dictionary)
    return packing.reader(file, fsspec_args=False)


def check_expansion(packed_size: int, unpacked_size: int) -> None:
    """Raises OSError for a stream that expands more than any archive does."""
    if unpacked_size > HARMLESS_BYTES and unpacked_size > MAX_EXPANSION * packed_size:
        raise OSError(f"{packed_size} bytes unpack to more than {unpacked_size}")


class Unpacked(PositionedFile):
    """Reads a compressed file as unpacked bytes; seeking backwards starts again from the beginning.

    Damaged bytes end it: ``damage`` then states the reason.
    """

    def __init__(self, file: BinaryIO, packing: Packing) -> None:
        super().__init__()
        self._file, self._packing, self.damage = file, packing, ""
        self._restart()

    def _restart(self) -> None:
        self._file.seek(0)
        self._stream, self._position = unpack(self._file, self._packing), 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Seeks to ``offset`` from the start, or to the end of the bytes if they end earlier."""
        if whence != io.SEEK_SET:
            raise io.UnsupportedOperation("only from the start")
        if offset < self._position:
            self._restart()
        while self._position < offset and self.read(min(MIB, offset - self._position)):
            pass
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Returns at most ``size`` bytes, b"" at the end."""
        try:
            data: bytes = self._stream.read(size if size >= 0 else MIB)
            check_expansion(self._stream.inner_tell(), self._position)
        except OSError as error:
            self.damage = str(error)
            return b""
        self._position += len(data)
        return data


def sniff_layout(file: BinaryIO) -> tuple[BinaryIO, Layout]:
    """Returns the file to read records from, and its layout.

    That file is ``file`` itself, unless its members and records do not begin together: then it is
    the unpacked file.
    """
    packing = sniff_packing(file)
    dictionary = read_dictionary(file) if packing is ZSTD else None
    file.seek(0)
    try:
        head = (unpack(file, packing) if packing else file).read(MAX_LINE)
    except OSError:
        head = b""
    layout = Layout(
        packing=packing,
        is_arc=parse_line(head) is not None,
        has_bare_lf=_BARE_LF.match(head) is not None,
        dictionary=dictionary,
    )
    if packing is None or (not layout.is_arc and _is_aligned(file, layout)):
        return file, layout
    unpacked: Any = Unpacked(file, packing)
    return unpacked, replace(layout, packing=None)


def sniff_packing(file: BinaryIO) -> Packing | None:
    """Returns the compression that the file begins with, or None."""
    file.seek(0)
    head = file.read(4)
    return next((p for magic, p in _PACKINGS.items() if head.startswith(magic)), None)


def _is_aligned(file: BinaryIO, layout: Layout) -> bool:
    """Returns whether the second record, too, begins a member; True if it is unreadable."""
    stream = layout.open(file, 0)
    starts: list[int] = []
    try:
        for record in layout.records(stream):
            starts.append(layout.get_offset(stream, record))
            if len(starts) == 2:
                break
    except OSError:
        return True
    if len(starts) < 2:
        return True
    return starts[0] != starts[1] and begins_record(file, layout, starts[1]) is not False


def begins_record(file: BinaryIO, layout: Layout, offset: int) -> bool | None:
    """Returns whether a record begins at ``offset``; None if nothing can be unpacked there."""
    file.seek(offset)
    start = file.read(4_096)
    try:
        if layout.packing is GZIP:  # zlib, as FastWARC's readers are slow to create
            head = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(start, 8)
        else:
            # Few bytes: more would include the next member, which may be damaged.
            head = layout.open(io.BytesIO(start), 0).read(8)
    except (OSError, zlib.error):
        return None
    return _WARC_LINE.match(head) is not None


def read_dictionary(file: BinaryIO) -> bytes | None:
    """Returns the dictionary that the frames of a .warc.zst were compressed with, if any."""
    file.seek(0)
    head = file.read(8)
    if head[:4] != _DICTIONARY_FRAME:
        return None
    content = file.read(min(int.from_bytes(head[4:], "little"), MAX_DICTIONARY))
    if not content.startswith(ZSTD.magic):
        return content
    stream, parts = ZstdReader(io.BytesIO(content), fsspec_args=False), list[bytes]()
    try:
        while part := stream.read(MIB):
            parts.append(part)
            if len(parts) * MIB > MAX_DICTIONARY:
                return None
    except OSError:
        return None
    return b"".join(parts)
