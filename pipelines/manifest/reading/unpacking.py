"""Unpacks untrusted files: the unpacked bytes are counted, and no header is trusted.

A zip whose entries share bytes is refused: with shared bytes, some kilobytes can become a thousand
members (Fifield 2019, "A better zip bomb"). Nothing is unpacked to disk.
"""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO

from vlmill.schemas.errors import InputError

MAX_BYTES = 8 << 30  # of one file, unpacked: the largest, VG's scene graphs, has 0.8
MAX_RATIO = 200  # of one file, unpacked to packed
MAX_RATIO_OF_TAR = 50  # of a packed tar as a whole
FREE_BYTES = 64 << 20  # unpacked size without a ratio limit: small files of equal lines
TARS, PACKED_TARS = (".tar",), (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
    *(EOFError, OSError, ValueError, NotImplementedError),
)
_ZIP_HEADER = 30  # bytes before the name of a zip's entry
_PACKINGS: dict[bytes, Callable[[IO[bytes]], Any]] = {  # by the first bytes of a file
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ": lzma.LZMAFile,
}


def ends(path: Path, endings: Sequence[str]) -> bool:
    """Returns whether a file's name ends like one of these, ignoring case."""
    return path.name.lower().endswith(tuple(endings))


class Bounded(io.RawIOBase):
    """Counts the bytes read from a file, at most ``max_bytes``; messages contain ``display_name``.

    Raises InputError for more bytes, and for damage.
    """

    def __init__(self, file: IO[bytes], max_bytes: int, display_name: str) -> None:
        self._file, self._most, self._said, self._count = file, max_bytes, display_name, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:
            content = self._file.read(len(buffer))
        except DAMAGED as error:
            raise InputError(f"{self._said} is damaged ({error}); fetch it again") from None
        self._count += len(content)
        if self._count > self._most:
            raise InputError(
                f"{self._said} unpacks to more than {self._most} bytes, more than any "
                "published file"
            )
        buffer[: len(content)] = content
        return len(content)


def max_unpacked_bytes(packed_size: int, ratio: int = MAX_RATIO) -> int:
    """Returns the allowed unpacked size of a number of packed bytes."""
    return min(max(FREE_BYTES, packed_size * ratio), MAX_BYTES)


def open_unpacked(path: Path, stack: ExitStack) -> tuple[IO[bytes], bool]:
    """Opens a file, unpacks its content if packed, and returns the stream and whether it is."""
    file = stack.enter_context(path.open("rb"))
    beginning = file.read(8)
    file.seek(0)
    for magic, unpack in _PACKINGS.items():
        if beginning.startswith(magic):
            return stack.enter_context(unpack(file)), True
    return file, False


def open_zip(path: Path) -> zipfile.ZipFile:
    """Opens a zip. Raises BadZipFile if entries share bytes with others or with the directory."""
    archive = zipfile.ZipFile(path)
    try:
        _check_overlaps(archive)
    except BaseException:
        archive.close()
        raise
    return archive


def _check_overlaps(archive: zipfile.ZipFile) -> None:
    free, before = 0, ""
    for entry in sorted(archive.infolist(), key=lambda entry: entry.header_offset):
        if entry.header_offset < free:
            raise zipfile.BadZipFile(f"{entry.filename[:200]!a} overlaps {before[:200]!a}")
        name = entry.orig_filename.encode("utf-8" if entry.flag_bits & 0x800 else "cp437")
        free = entry.header_offset + _ZIP_HEADER + len(name) + entry.compress_size
        before = entry.filename
    if free > archive.start_dir:
        raise zipfile.BadZipFile(f"{before[:200]!a} overlaps the directory")


@contextmanager
def open_tar(path: Path) -> Iterator[tarfile.TarFile]:
    """Opens a tar to be read once in its order; an uncompressed one skips unrequested members.

    Raises InputError for damage, and for a compressed tar that unpacks to 50 times its size.
    """
    with ExitStack() as stack:
        try:
            file, is_packed = open_unpacked(path, stack)
            if is_packed:
                max_bytes = max(FREE_BYTES, path.stat().st_size * MAX_RATIO_OF_TAR)
                file = io.BufferedReader(Bounded(file, max_bytes, str(path)), 1 << 20)
            tar = _stream(file) if is_packed else tarfile.TarFile(fileobj=file)
            yield stack.enter_context(tar)
        except InputError:
            raise
        except DAMAGED as error:
            message = f"{path} is not a readable tar, or is truncated ({error}); fetch it again"
            raise InputError(message) from None


def _stream(file: IO[bytes]) -> tarfile.TarFile:
    return tarfile.open(fileobj=file, mode="r|")


def plain_files(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yields the plain files of a tar; links, devices, folders and sparse files are skipped."""
    for entry in tar:
        tar.members = []  # type: ignore[attr-defined]  # else tarfile keeps all members
        if entry.isfile() and not entry.issparse():
            yield entry


def plain_name(entry: tarfile.TarInfo) -> str:
    """Returns a member's name as published."""
    return entry.name.removeprefix("./")


def inner_tar(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> tarfile.TarFile:
    """Opens an uncompressed tar inside a tar, as published, to be read once in its order."""
    return _stream(member_file(tar, entry))


def member_file(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> BinaryIO:
    """Opens a plain file of a tar."""
    file = tar.extractfile(entry)
    assert file is not None
    return file  # type: ignore[return-value]
