"""Finds where the pictures lie in tar shards of WebDataset's layout, without reading them.

Members are read by their offsets. A member's name serves as an id and for nothing else: no file is
ever made from an archive.
"""

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from vlmill.schemas.errors import InputError

BLOCK = tarfile.BLOCKSIZE
MAX_KEY = 1_000
COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"(\xb5": "zstd"}


class BrokenArchive(Exception):
    """Is raised for an archive that ends or goes wrong in the middle."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """Holds a member's key (its path to the first dot of its name), ending, place and size."""

    key: str
    suffix: str
    offset: int
    size: int


def members(path: Path) -> Iterator[Member]:
    """Yields the regular files of a tar, in its order. Reads headers only.

    Raises InputError for what is no tar or compressed, BrokenArchive where it goes wrong after its
    start: the members before that have been given.
    """
    with path.open("rb") as file:
        check_plain(file, path)
        try:
            archive = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115 - closed with the file
        except tarfile.TarError as error:
            raise InputError(
                f"INPUT {path}: no readable tar ({error}); give another file"
            ) from None
        last = -1
        while member := next_member(archive, path):
            archive.members = []  # type: ignore[attr-defined] # it would keep every header
            if archive.offset <= last or member.size < 0:
                raise BrokenArchive(f"{path}: a header that leads backwards")
            last = archive.offset
            if member.isreg() and member.sparse is None:
                key, suffix = key_and_suffix(member.name)
                offset = member.offset_data
                yield Member(key=key, suffix=suffix, offset=offset, size=member.size)
        check_end(file, archive.offset)


def check_plain(file: BinaryIO, path: Path) -> None:
    """Refuses a compressed archive: its members have no offsets."""
    start = file.read(2)
    file.seek(0)
    if start in COMPRESSED:
        raise InputError(f"INPUT {path} is compressed with {COMPRESSED[start]}; unpack it to .tar")


def next_member(archive: tarfile.TarFile, path: Path) -> tarfile.TarInfo | None:
    """Reads the next header; None at the end."""
    try:
        return archive.next()
    except (tarfile.TarError, OSError, ValueError, OverflowError, RecursionError) as error:
        raise BrokenArchive(f"{path}: {error}") from None


def check_end(file: BinaryIO, offset: int) -> None:
    """Raises BrokenArchive unless a block of zeros ends the archive, or, where none is, its
    file.
    """
    file.seek(offset)
    block = file.read(BLOCK)
    if block and block != bytes(BLOCK):
        raise BrokenArchive(f"no header at byte {offset}")


def key_and_suffix(name: str) -> tuple[str, str]:
    """WebDataset's split: ``a/b.c.jpg`` is ``a/b`` and ``.c.jpg``."""
    folder, slash, base = name.removeprefix("./").rpartition("/")
    stem, dot, rest = base.partition(".")
    return f"{folder}{slash}{stem}", f"{dot}{rest}".lower()


def read_member(path: Path, offset: int, size: int) -> bytes:
    """Reads a member's bytes. Raises BrokenArchive where the file ends too early."""
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(size)
    if len(data) != size:
        raise BrokenArchive(f"the archive ends after {len(data)} of the member's {size} bytes")
    return data
