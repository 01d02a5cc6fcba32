"""The Internet Archive's ARC files, which came before WARC.

A record is a line ``URL address date type length`` (five more fields stand before the length in
version 2) and as many bytes of an HTTP response. The first record describes the file.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fastwarc.warc import WarcRecordType

MAX_LINE = 16_384
_BUFFER = 1 << 16

# Where a record may begin in damaged bytes; ``parse_line`` then says whether it does.
ARC_START = re.compile(
    rb"(?<=\n)[a-zA-Z][a-zA-Z0-9+.-]{1,20}:[^\n ]{1,8192}+ [0-9a-fA-F.:]{1,45}+ \d{8,17} "
)
_SCHEME = re.compile(rb"[a-zA-Z][a-zA-Z0-9+.-]{1,20}:")
_ADDRESS = re.compile(rb"[0-9a-fA-F.:]{1,45}")


def parse_line(line: bytes) -> tuple[str, int] | None:
    """Returns URL and length of the line that a record begins with, or None for another line."""
    fields = line.split(b"\n", 1)[0].rstrip(b"\r").split(b" ")
    if len(fields) < 5 or not _SCHEME.match(line) or not _is_number(fields[-1], 1, 15):
        return None
    # Types and URLs with spaces in them exist: the date is third from the left, or from the right.
    for date in (2, len(fields) - 3, len(fields) - 8):
        if date >= 2 and _is_number(fields[date], 8, 17) and _ADDRESS.fullmatch(fields[date - 1]):
            return b" ".join(fields[: date - 1]).decode("utf-8", "replace"), int(fields[-1])
    return None


def _is_number(field: bytes, shortest: int, longest: int) -> bool:
    return shortest <= len(field) <= longest and field.isdigit()


class _Lines:
    """A stream of bytes as lines, and as contents between them."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._buffer = stream, b""
        self.position: int = stream.tell()

    def read(self, size: int) -> bytes:
        """Returns at most ``size`` bytes; none at the end."""
        if not self._buffer:
            self._buffer = self._stream.read(_BUFFER)
        part, self._buffer = self._buffer[:size], self._buffer[size:]
        self.position += len(part)
        return part

    def line(self) -> bytes:
        """Returns the rest of a line with its end, cut at ``MAX_LINE``; none at the end."""
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
    """Reads one record's content and no further."""

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
    """A record with the attributes of FastWARC's that are read here."""

    stream_pos: int
    content_length: int
    headers: dict[str, str]
    reader: _Content
    record_type: WarcRecordType


def arc_records(stream: Any) -> Iterator[ArcRecord]:
    """Yields the records of an unpacked ARC file. Raises OSError where a line is no record's."""
    lines = _Lines(stream)
    while True:
        start = lines.position
        line = lines.line()
        if not line:
            return
        if not line.strip():
            continue  # one empty line stands behind each record, by some writers more
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
