"""WACZ files: a zip with the archives of a crawl in its folder ``archive/``.

Nothing is unpacked to disk, so no name in the zip can lead anywhere; what is stored, as the format
asks, is read where it lies, and what is compressed is read as a stream.
"""

import io
import re
import zipfile
from collections.abc import Iterator
from typing import Any, BinaryIO

from vlmill.pipelines.web.archives.packing import MIB
from vlmill.runtime.files.seekable import PositionedFile

MAX_DIRECTORY = 64 * MIB  # of the zip: zipfile reads it whole
MAX_ENTRIES = 1 << 14
MAX_EXPANSION = 50  # archives are compressed already; plain WARC packs 5 to 10 times

_END, _LOCAL = b"PK\5\6", b"PK\3\4"
_ARCHIVE = re.compile(r"archive/[^/\\]+\.w?arc(?:\.gz|\.zst)?", re.IGNORECASE)


class Window(PositionedFile):
    """A part of a file as a file of its own."""

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        super().__init__()
        self._file, self._start, self._size = file, start, size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Goes to a position in the part."""
        if whence == io.SEEK_END:
            offset += self._size
        self._position = max(0, offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Returns at most ``size`` bytes of the part; none behind its end."""
        left = max(0, self._size - self._position)
        self._file.seek(self._start + self._position)
        data = self._file.read(left if size < 0 else min(size, left))
        self._position += len(data)
        return data


def is_zip(file: BinaryIO) -> bool:
    """Says whether the file begins like a zip with something in it."""
    file.seek(0)
    return file.read(4) == _LOCAL


def open_entries(file: BinaryIO) -> Iterator[tuple[int, str, BinaryIO | str]]:
    """Yields (number, name, file or why not) for each archive in a zip, in the zip's order.

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
            return "no entry where the zip's directory says"
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
    """Returns how many bytes the zip's directory has, as its end says; 0 where none is found."""
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - (1 << 16) - 22))
    tail = file.read((1 << 16) + 22)
    position = tail.rfind(_END)
    return int.from_bytes(tail[position + 12 : position + 16], "little") if position >= 0 else 0
