"""Reads archives for jobs: all records once in order, and single bodies again by their offset.

A WACZ file is a zip with the archives of a crawl in its folder ``archive/``. Nothing is unpacked
to disk, so no name in the zip can lead to another path. Stored entries, as the format requires,
are read in the zip file; compressed entries are read as a stream.
"""

import io
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, BinaryIO, NamedTuple

from vlmill.pipelines.web.archives.content import CONTENT_TYPES, Record, bare_url, extract_content
from vlmill.pipelines.web.archives.index import Ranges, coalesce_ranges
from vlmill.pipelines.web.archives.packing import MAX_WARC_HEADER, MIB, Unpacked, sniff_layout
from vlmill.pipelines.web.archives.records import BrokenArchive, Gap, Stored, StoredRecords
from vlmill.runtime.files.paths import is_web, to_path
from vlmill.runtime.files.remote import is_remote
from vlmill.runtime.files.seekable import PositionedFile
from vlmill.runtime.net.remote_file import open_web
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason

MAX_DIRECTORY = 64 * MIB  # of the zip: zipfile reads all of it
MAX_ENTRIES = 1 << 14
MAX_EXPANSION = 50  # archives are compressed already; plain WARC compresses 5 to 10 times

_END, _LOCAL = b"PK\5\6", b"PK\3\4"
_ARCHIVE = re.compile(r"archive/[^/\\]+\.w?arc(?:\.gz|\.zst)?", re.IGNORECASE)


class Window(PositionedFile):
    """Presents a part of a file as a file."""

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        super().__init__()
        self._file, self._start, self._size = file, start, size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Seeks to a position in the part."""
        if whence == io.SEEK_END:
            offset += self._size
        self._position = max(0, offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Returns at most ``size`` bytes of the part; b"" after its end."""
        left = max(0, self._size - self._position)
        self._file.seek(self._start + self._position)
        data = self._file.read(left if size < 0 else min(size, left))
        self._position += len(data)
        return data


def is_zip(file: BinaryIO) -> bool:
    """Returns whether the file begins like a zip that has an entry."""
    file.seek(0)
    return file.read(4) == _LOCAL


def open_entries(file: BinaryIO) -> Iterator[tuple[int, str, BinaryIO | str]]:
    """Yields (number, name, file or error) for each archive in a zip, in the zip's order.

    Raises OSError for a zip that cannot be read, or has no archive.
    """
    if _directory_bytes(file) > MAX_DIRECTORY:
        raise OSError(f"a zip whose directory is above {MAX_DIRECTORY} bytes")
    try:
        with zipfile.ZipFile(file) as zip_file:
            entries = [e for e in zip_file.infolist() if _ARCHIVE.fullmatch(e.filename)]
            if not entries:
                raise OSError("a zip without archive/*.warc.gz")
            for number, entry in enumerate(entries[:MAX_ENTRIES]):
                yield number, entry.filename, _open_entry(file, zip_file, entry)
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise OSError(f"no readable zip: {error}") from None


def _open_entry(
    file: BinaryIO, zip_file: zipfile.ZipFile, entry: zipfile.ZipInfo
) -> BinaryIO | str:
    if entry.flag_bits & 1:
        return "encrypted"
    stream: Any
    if entry.compress_type == zipfile.ZIP_STORED:
        file.seek(entry.header_offset)
        head = file.read(30)
        if len(head) < 30 or head[:4] != _LOCAL:
            return "no entry at the offset that the zip's directory gives"
        names = int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
        stream = Window(file, entry.header_offset + 30 + names, entry.compress_size)
        return stream  # type: ignore[no-any-return]
    if entry.file_size > MAX_EXPANSION * entry.compress_size + MIB:
        return f"{entry.compress_size} bytes that unpack to {entry.file_size}"
    try:
        stream = zip_file.open(entry)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        return str(error)
    return stream  # type: ignore[no-any-return]


def _directory_bytes(file: BinaryIO) -> int:
    """Returns the size of the zip's directory, from its end record; 0 without one."""
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - (1 << 16) - 22))
    tail = file.read((1 << 16) + 22)
    position = tail.rfind(_END)
    return int.from_bytes(tail[position + 12 : position + 16], "little") if position >= 0 else 0


__all__ = [
    "BrokenArchive",
    "Contents",
    "PartReader",
    "Record",
    "open_archive",
    "read_archive",
    "read_bodies",
    "read_ranges",
]

# An offset in a WACZ holds the number of the entry above these bits, and the offset in it below.
ENTRY_BITS = 48
GAP_BYTES, AT_ONCE_BYTES = 64 << 10, 8 << 20  # of records that are read together


def open_archive(path: str, allowed: Sequence[str] = ()) -> Any:
    """Opens the archive's stored bytes, seekable: from a store, the web, or a Beam file system.

    Archives on the web are read by ranges, and raise Unreachable; ``allowed`` as in
    :func:`vlmill.runtime.net.remote_file.open_web`.
    """
    if is_web(path):
        return open_web(path, allowed)
    if is_remote(path):
        return to_path(path).open("rb")
    if "://" not in path:
        return open(path, "rb")
    from apache_beam.io.filesystem import CompressionTypes  # takes seconds to load
    from apache_beam.io.filesystems import FileSystems

    return FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)


def _has_content(offset: int, record: Any) -> bool:
    return bool(record.record_type & CONTENT_TYPES)


class Contents(NamedTuple):
    """Selects the records of an archive that are read, and extracts their content.

    ``is_selected`` gets an offset and a record. ``extract`` gets the stored record, the archive's
    path, and the offset and ``max_bytes`` by name; it returns None for a record of no interest.
    """

    is_selected: Callable[[int, Any], bool]
    extract: Callable[..., Record | Drop | None]


RESPONSES = Contents(_has_content, extract_content)
"""The responses of an ordinary archive."""


def read_archive(
    file: BinaryIO, archive: str, *, max_bytes: int, contents: Contents = RESPONSES
) -> Iterator[tuple[str, Record | Drop]]:
    """Yields (key, Record or Drop) for each record with content in ``file``.

    WARC and ARC, plain or compressed in any form, and WACZ are detected by their bytes. The key is
    the record's URL, or its location if it has none. Damaged bytes between records are a Drop with
    their number. Raises BrokenArchive at the point after which nothing can be read; everything
    before it has been yielded then. Memory: one record of at most ``max_bytes``, which bounds the
    stored and the decoded body.
    """
    if not is_zip(file):
        yield from _read_entry(file, archive, 0, max_bytes, contents)
        return
    try:
        for number, name, entry in open_entries(file):
            key, base = f"{archive}:{name}", number << ENTRY_BITS
            if isinstance(entry, str):
                yield key, Drop(Reason.BROKEN_ARCHIVE, entry)
                continue
            try:
                yield from _read_entry(entry, archive, base, max_bytes, contents)
            except BrokenArchive as error:
                yield key, Drop(Reason.BROKEN_ARCHIVE, str(error))
    except OSError as error:
        raise BrokenArchive(str(error)) from None


def read_ranges(
    file: BinaryIO, archive: str, ranges: Ranges, *, max_bytes: int
) -> Iterator[tuple[str, Record | Drop]]:
    """Yields (key, Record or Drop) for the records at the locations that an index names.

    Memory: the records that are read together, 8 MiB, or one of at most ``max_bytes``.
    """
    longest = max_bytes + MAX_WARC_HEADER
    short = ranges[ranges[:, 1] <= longest]
    for offset, length in ranges[ranges[:, 1] > longest].tolist():
        yield f"{archive}:{offset}", Drop(Reason.TOO_LARGE, f"{length} bytes")
    for start, stop, entry_ranges in coalesce_ranges(
        short, gap_bytes=GAP_BYTES, most_bytes=AT_ONCE_BYTES
    ):
        file.seek(start)
        block = file.read(stop - start)
        for offset, length in entry_ranges:
            key, stored = f"{archive}:{offset}", block[offset - start :][:length]
            try:
                if len(stored) < length:
                    raise BrokenArchive(f"{len(stored)} of {length} bytes")
                entry = io.BytesIO(stored)
                yield from _read_entry(entry, archive, offset, max_bytes, RESPONSES)
            except BrokenArchive as error:
                yield key, Drop(Reason.BROKEN_ARCHIVE, str(error))


def _read_entry(
    file: BinaryIO, archive: str, base: int, max_bytes: int, contents: Contents
) -> Iterator[tuple[str, Record | Drop]]:
    file, layout = sniff_layout(file)
    stored = StoredRecords(file, layout, is_selected=contents.is_selected, max_bytes=max_bytes)
    yield from _extract_all(stored, archive, base, max_bytes, contents)


def _extract_all(
    stored: Iterable[Stored | Gap], archive: str, base: int, max_bytes: int, contents: Contents
) -> Iterator[tuple[str, Record | Drop]]:
    for item in stored:
        key = f"{archive}:{base + item.offset}"
        if isinstance(item, Gap):
            yield key, Drop(Reason.DAMAGED, f"{item.num_bytes} bytes")
        elif contents.is_selected(item.offset, item.record):
            offset = base + item.offset
            content = contents.extract(item, archive, offset=offset, max_bytes=max_bytes)
            if content is not None:
                yield bare_url(item.record.headers.get("WARC-Target-URI")) or key, content


class PartReader:
    """Reads the records of an archive that begin at the bytes of ``part``.

    Yields as :func:`read_archive`. The first record is found by its bytes. Afterwards ``begin`` is
    where it begins, or None if no record begins in the part, and ``end`` is where the first record
    after the part begins, ``size`` after the last record. Parts are right only if each one begins
    where the previous one ends. An archive that cannot be read from its middle is read completely
    by the first part. Raises BrokenArchive for damaged bytes: only reading from the beginning of
    the archive shows the losses.
    """

    def __init__(
        self,
        file: BinaryIO,
        archive: str,
        part: range,
        *,
        size: int,
        max_bytes: int,
        contents: Contents = RESPONSES,
    ) -> None:
        self.begin: int | None = None
        self.end = 0
        self._file, self._archive, self._part = file, archive, part
        self._size, self._max_bytes, self._contents = size, max_bytes, contents

    def __iter__(self) -> Iterator[tuple[str, Record | Drop]]:
        """Yields (key, Record or Drop)."""
        file, layout = (self._file, None) if is_zip(self._file) else sniff_layout(self._file)
        if layout is None or isinstance(file, Unpacked):
            if self._part.start == 0:
                self.begin, self.end = 0, self._size
                yield from read_archive(
                    self._file, self._archive, max_bytes=self._max_bytes, contents=self._contents
                )
            return
        stored = StoredRecords(
            file,
            layout,
            is_selected=self._contents.is_selected,
            max_bytes=self._max_bytes,
            stop=self._part.stop,
        )
        self.begin = stored.skip_to(self._part.start) if self._part.start else 0
        if self.begin is None:
            return
        yield from _extract_all(stored, self._archive, 0, self._max_bytes, self._contents)
        self.end = self._size if stored.next_start is None else stored.next_start


def read_bodies(
    file: BinaryIO, offsets: Sequence[int], *, max_bytes: int
) -> Iterator[bytes | Drop]:
    """Yields the record body or a Drop for each of ``offsets``, which ascend.

    Archives with seekable records are read at the offsets; an archive in one compressed stream is
    read through once. Memory: one record.
    """
    if not is_zip(file):
        yield from _entry_bodies(file, offsets, max_bytes)
        return
    parts = {n: list(part) for n, part in groupby(offsets, key=lambda o: o >> ENTRY_BITS)}
    with suppress(OSError):  # the zip has changed since it was mined: the rest is missing
        for number, _, entry in open_entries(file):
            entry_offsets = [offset - (number << ENTRY_BITS) for offset in parts.pop(number, ())]
            if entry_offsets and not isinstance(entry, str):
                yield from _entry_bodies(entry, entry_offsets, max_bytes)
            else:
                yield from _missing(entry_offsets)
    for part in parts.values():
        yield from _missing(part)


def _missing(offsets: Iterable[int]) -> Iterator[Drop]:
    for offset in offsets:
        yield Drop(Reason.BROKEN_ARCHIVE, f"no page or image at byte {offset} any more")


def _entry_bodies(file: BinaryIO, offsets: Sequence[int], max_bytes: int) -> Iterator[bytes | Drop]:
    file, layout = sniff_layout(file)
    if isinstance(file, Unpacked):
        offset_set = frozenset(offsets)
        records = StoredRecords(
            file,
            layout,
            is_selected=lambda offset, _: offset in offset_set,
            max_bytes=max_bytes,
            start=min(offset_set, default=0),
        )
        yield from _read_in_passing(records, offsets, max_bytes)
        return
    for offset in offsets:
        stream = StoredRecords(
            file, layout, is_selected=_has_content, max_bytes=max_bytes, start=offset
        )
        yield from _read_in_passing(stream, [offset], max_bytes)


def _read_in_passing(
    records: Iterable[Stored | Gap], offsets: Sequence[int], max_bytes: int
) -> Iterator[bytes | Drop]:
    """Yields the bodies at ``offsets`` in one pass, each read up to the next offset."""
    passing = (item for item in records if isinstance(item, Stored))
    body, position = None, -1
    for offset in offsets:
        while position < offset:
            try:
                stored = next(passing)
            except (StopIteration, BrokenArchive):
                break
            position, body = stored.offset, _extract_body(stored, max_bytes)
        if position == offset and body is not None:
            yield body
        else:
            yield from _missing([offset])


def _extract_body(stored: Stored, max_bytes: int) -> bytes | None:
    if not stored.block:
        return None
    content = extract_content(stored, "", offset=0, max_bytes=max_bytes, check_digest=False)
    return content.body if isinstance(content, Record) and content.body else None
