"""Finds the positions of images in tar shards of WebDataset's layout, without reading them.

Members are read by their offsets. A member's name is only used as an id: no file is ever created
from an archive.
"""

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from vlmill.extract.images.discovery import Kind, Skipped, Why, is_hidden, kind_by_name
from vlmill.schemas.errors import InputError
from vlmill.schemas.images.formats import HEAD_BYTES, format_name

BLOCK = tarfile.BLOCKSIZE
MAX_KEY = 1_000
COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"(\xb5": "zstd"}


class BrokenArchive(Exception):
    """Raised for an archive that is truncated or damaged after its start."""


class NotATar(InputError):
    """Raised for a file that cannot be read as a tar from its start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """Holds a member's name, the offset of its bytes in the archive, and their number."""

    name: str
    offset: int
    size: int


def members(path: Path, skipped: Skipped) -> Iterator[Member]:
    """Yields the images of a tar in its order and counts the other members.

    Reads headers, and the first bytes of members without an image extension. Raises NotATar for a
    file that is not a tar or is compressed, and BrokenArchive for damage after its start, after the
    members before it were yielded.
    """
    with path.open("rb") as file:
        check_plain(file, path)
        try:
            archive = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115 - closed with the file
        except tarfile.TarError as error:
            raise NotATar(
                f"INPUT {path}: not a readable tar ({error}); give another file"
            ) from None
        last = -1
        while member := next_member(archive, path):
            archive.members = []  # type: ignore[attr-defined] # it would keep every header
            if archive.offset <= last or member.size < 0:
                raise BrokenArchive(f"{path}: a header that points backwards")
            last = archive.offset
            if is_image(file, member, skipped):
                name = member.name.removeprefix("./")
                yield Member(name=name, offset=member.offset_data, size=member.size)
        check_end(file, archive.offset)


def is_image(file: BinaryIO, member: tarfile.TarInfo, skipped: Skipped) -> bool:
    """Returns whether a member is an image; counts other members except folders."""
    if member.isdir():
        return False
    why = Why.OTHER
    if is_hidden(member.name):
        why = Why.HIDDEN_FILE
    elif member.islnk() or member.issym():
        why = Why.LINK
    elif not member.isreg() or member.sparse is not None:
        why = Why.SPECIAL
    elif kind_by_name(member.name) is Kind.IMAGE:
        return True
    else:
        file.seek(member.offset_data)
        if format_name(file.read(min(member.size, HEAD_BYTES))):
            return True
    skipped.add(why, member.name)
    return False


def check_plain(file: BinaryIO, path: Path) -> None:
    """Raises NotATar for a compressed archive: its members have no offsets."""
    start = file.read(2)
    file.seek(0)
    if start in COMPRESSED:
        raise NotATar(f"INPUT {path} is compressed with {COMPRESSED[start]}; unpack it to .tar")


def next_member(archive: tarfile.TarFile, path: Path) -> tarfile.TarInfo | None:
    """Reads the next header; None at the end."""
    try:
        return archive.next()
    except (tarfile.TarError, OSError, ValueError, OverflowError, RecursionError) as error:
        raise BrokenArchive(f"{path}: {error}") from None


def check_end(file: BinaryIO, offset: int) -> None:
    """Raises BrokenArchive unless the archive ends with a block of zeros or with its file."""
    file.seek(offset)
    block = file.read(BLOCK)
    if block and block != bytes(BLOCK):
        raise BrokenArchive(f"no header at byte {offset}")


def id_in(name: str) -> str:
    """Returns a member's id: ``a/b.jpg`` is ``a/b``, WebDataset's key.

    WebDataset's key ends at the first dot, where ``b.left.jpg`` and ``b.right.jpg`` are two parts
    of one sample. Here each image needs its own id: they are ``b.left`` and ``b.right``.
    """
    folder, slash, base = name.rpartition("/")
    stem, _, _ = base.rpartition(".")
    return f"{folder}{slash}{stem or base}"


def read_member(path: Path, offset: int, size: int) -> bytes:
    """Reads a member's bytes. Raises BrokenArchive if the file ends too early."""
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(size)
    if len(data) != size:
        raise BrokenArchive(f"the archive ends after {len(data)} of the member's {size} bytes")
    return data
