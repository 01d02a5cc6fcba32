"""Reads the records stored in an archive, and continues after damaged bytes.

After unreadable bytes, the reader searches for the next record: the next gzip member or zstd frame
that begins one, or the next line in a plain archive. The bytes between are a gap, with its length.
"""

import io
import itertools
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from vlmill.pipelines.web.archives.packing import (
    GZIP,
    MAX_WARC_HEADER,
    MIB,
    Layout,
    Unpacked,
    begins_record,
    check_expansion,
)

# Per archive. After this many gaps the rest is unlikely to be useful, and time is bounded.
MAX_GAPS, MAX_FALSE_STARTS = 1_000, 10_000
MAX_HEADER_BEHIND_DAMAGE = 1 << 16
_OVERLAP = 1 << 14  # longest line of an ARC record
_PIECE = 64 * MIB


class BrokenArchive(Exception):
    """Reports that the archive cannot be read further: cut off, damaged, or not an archive."""


@dataclass(slots=True)
class Stored:
    """Holds a record and its offset; ``block`` is empty unless selected and below the bound."""

    offset: int
    record: Any  # FastWARC's, or an ArcRecord; valid until the next one is read
    block: bytes
    is_whole: bool  # the archive has all the bytes that the record's header announces


@dataclass(slots=True)
class Gap:
    """Holds the range of bytes that belong to no readable record."""

    offset: int
    num_bytes: int


class StoredRecords:
    """Iterates over the records and gaps of an archive, from ``start`` on.

    ``is_selected`` decides for each (offset, record) whether its content is read, if that is at
    most ``max_bytes``. Raises BrokenArchive at the end, if nothing is readable after damaged bytes
    or at all. With ``stop`` the records end before the first one that begins there or later, whose
    offset is then ``next_start``, and any damage before it raises BrokenArchive.
    """

    def __init__(
        self,
        file: BinaryIO,
        layout: Layout,
        *,
        is_selected: Callable[[int, Any], bool],
        max_bytes: int,
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        self.file, self.layout, self.wanted, self.max_bytes = file, layout, is_selected, max_bytes
        self._start, self._stop, self._max_header = start, stop, MAX_WARC_HEADER
        self.next_start: int | None = None
        self._count = self._false_starts = 0
        self._last: tuple[int, int, bool] | None = None  # offset, length, whether it is complete
        self._error = ""

    def __iter__(self) -> Iterator[Stored | Gap]:
        """Yields records in the order of the file, and a gap before the one that follows it."""
        start, gap = self._start, None
        for _ in range(MAX_GAPS):
            for stored in self._from(start):
                if gap is not None:
                    yield Gap(gap, max(0, stored.offset - gap))
                    gap = None
                self._count += 1
                yield stored
            if self.next_start is not None:
                return
            if not self._is_broken(start):
                self._require_records()
                return
            if self._stop is not None:
                raise BrokenArchive(f"near byte {self._gap_start(start)}: {self._error}")
            gap = self._gap_start(start) if gap is None else gap
            search_start = max(start, self._last[0] if self._last else start) + 1
            position = self._find_start(search_start)
            if position is None:
                break
            start, self._max_header = position, MAX_HEADER_BEHIND_DAMAGE
        self._require_records()
        raise BrokenArchive(f"cut after {self._count} records, near byte {gap}: {self._error}")

    def _require_records(self) -> None:
        if not self._count:
            raise BrokenArchive(f"no record in it{self._error and f': {self._error}'}")

    def _from(self, start: int) -> Iterator[Stored]:
        """Yields records from ``start`` to where they end or break; ``_error`` holds the cause."""
        self._stream = stream = self.layout.open(self.file, start)
        self._error = ""
        try:
            for record in self.layout.records(stream, self._max_header):
                offset, length = self.layout.get_offset(stream, record), record.content_length
                if self._stop is not None and offset >= self._stop:
                    self.next_start = offset
                    return
                self._last = offset, length, False
                block = b""
                if length <= self.max_bytes and self.wanted(offset, record):
                    block = record.reader.read(length)
                is_whole = len(block) + self._skip(stream, record, length) >= length
                self._last = offset, length, is_whole
                yield Stored(offset, record, block, is_whole)
                if not is_whole:
                    self._error = f"a record of {length} bytes is cut"
                    return
        except OSError as error:
            self._error = str(error)

    def _skip(self, stream: Any, record: Any, length: int) -> int:
        """Skips the rest of a record, and returns how many bytes that were."""
        skipped = 0
        while part := record.reader.consume(min(_PIECE, length)):
            skipped += part
            if self.layout.packing:
                check_expansion(stream.inner_tell(), stream.tell())
        return skipped

    def _is_broken(self, start: int) -> bool:
        """Returns whether the records of ``_from`` ended too early."""
        if self._error:
            return not self._is_blank(self._gap_start(start))
        if self.layout.packing is None:
            if isinstance(self.file, Unpacked):
                self._error = self.file.damage
            elif self._last and not self._is_blank(self._gap_start(start)):
                self._error = "a header is cut"
            return bool(self._error)
        end = self._stream.inner_tell()
        if not self._is_blank(end):
            return True
        if self.layout.packing is GZIP and _is_cut(self.file, self._gap_start(start)):
            self._error = "its last member is cut"
            return True
        return False

    def _gap_start(self, start: int) -> int:
        """Returns where the readable part ends, as far as that is known."""
        if self._last is None or self._last[0] < start:
            return start
        offset, length, is_whole = self._last
        if not is_whole:
            return offset
        if self.layout.packing:
            return max(offset, self._stream.frame_start_position() or 0)
        self.file.seek(offset)
        head = re.search(rb"\r?\n\r?\n", self.file.read(MAX_WARC_HEADER))
        if self.layout.is_arc or head is None:
            self.file.seek(offset)
            return offset + len(self.file.read(_OVERLAP).split(b"\n")[0]) + 1 + length
        return offset + head.end() + length

    def _is_blank(self, offset: int) -> bool:
        """Returns whether only NULs and white space follow from ``offset`` on."""
        self.file.seek(offset)
        while chunk := self.file.read(MIB):
            if chunk.strip(b"\0\r\n \t"):
                return False
        return True

    def skip_to(self, position: int) -> int | None:
        """Starts at the first record at or after ``position`` and before ``stop``.

        Returns where it begins, or None if no record does.
        """
        self._start = self._find_start(position) or 0
        return self._start or None

    def _find_start(self, position: int) -> int | None:
        """Returns where the first record begins at or after ``position``, and before ``stop``."""
        packing = self.layout.packing
        for candidate in self._candidates(position):
            if self._stop is not None and candidate >= self._stop:
                break
            if packing is None or begins_record(self.file, self.layout, candidate):
                return candidate
            self._false_starts += 1
            if self._false_starts > MAX_FALSE_STARTS:
                break
        return None

    def _candidates(self, position: int) -> Iterator[int]:
        packing = self.layout.packing
        marks = re.compile(re.escape(packing.magic)) if packing else self.layout.line_start
        last_start = position - 1
        for number in itertools.count():
            # One byte more, so that the line end before a start is included.
            chunk_start = max(0, position - 1) + number * MIB
            self.file.seek(chunk_start)
            chunk = self.file.read(MIB + _OVERLAP)
            if not chunk or (self._stop is not None and chunk_start > self._stop):
                return
            for match in marks.finditer(chunk):
                if chunk_start + match.start() > last_start:
                    last_start = chunk_start + match.start()
                    yield last_start


def _is_cut(file: BinaryIO, offset: int) -> bool:
    """Returns whether the gzip members from ``offset`` on are cut; FastWARC does not report it."""
    file.seek(offset, io.SEEK_SET)
    chunk = file.read(1 << 16)
    member = zlib.decompressobj(zlib.MAX_WBITS | 16)
    while chunk:
        try:
            member.decompress(chunk, 1 << 20)
        except zlib.error:
            return True
        if member.eof:
            remainder = member.unused_data or file.read(1 << 16)
            if not remainder.strip(b"\0"):
                return False
            member, chunk = zlib.decompressobj(zlib.MAX_WBITS | 16), remainder
        else:
            chunk = member.unconsumed_tail or file.read(1 << 16)
    return True
