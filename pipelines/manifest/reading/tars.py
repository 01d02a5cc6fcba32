"""Reads members of tars one after the other; one is in memory, and nothing is unpacked to disk."""

import tarfile
from collections.abc import Iterator
from typing import IO, NamedTuple

from vlmill.pipelines.manifest.reading.images import is_unsafe
from vlmill.pipelines.manifest.reading.unpacking import member_file, plain_files, plain_name
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason

MAX_MEMBER = 64 << 20  # bytes of an image, a caption or its metadata


class Member(NamedTuple):
    """Holds a plain file of a tar: its bytes, or why they are not read."""

    name: str
    content: bytes | Drop


def read_members(tar: tarfile.TarFile) -> Iterator[Member]:
    """Yields the plain files of a tar with their content.

    A name that leads elsewhere and a file that is too large are Drops.
    """
    for info in plain_files(tar):
        name = plain_name(info)
        if is_unsafe(name):
            yield Member(name, Drop(Reason.UNSAFE_PATH, "leads out of the archive"))
        elif info.size > MAX_MEMBER:
            detail = f"{info.size} bytes, at most {MAX_MEMBER}"
            yield Member(name, Drop(Reason.IMAGE_TOO_LARGE, detail))
        else:
            yield Member(name, _read_exactly(member_file(tar, info), info.size))


def _read_exactly(file: IO[bytes], size: int) -> bytes:
    content = file.read(size)
    if len(content) != size:
        raise EOFError(f"a member of {size} bytes ends after {len(content)}")
    return content
