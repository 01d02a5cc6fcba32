"""Members of tars, one after the other: each is in memory alone, and nothing is unpacked."""

import lzma
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from vlmill.pipelines.counting.funnel import Drop
from vlmill.pipelines.manifest.pictures import is_unsafe
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason

MAX_MEMBER = 64 << 20  # bytes of a picture, a caption or its metadata
DAMAGED = (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError, ValueError)


class Member(NamedTuple):
    """A plain file of a tar: its bytes, or why they are not read."""

    name: str
    content: bytes | Drop


@contextmanager
def opened_tar(path: Path) -> Iterator[tarfile.TarFile]:
    """Opens a tar, packed or not, to be read once in its order. Raises InputError."""
    try:
        with tarfile.open(path, "r|*") as tar:
            yield tar
    except DAMAGED as error:
        raise InputError(
            f"{path} is no readable tar, or is cut ({error}); fetch it again"
        ) from None


def members_of(tar: tarfile.TarFile) -> Iterator[Member]:
    """The plain files of a tar; links, devices and folders are passed over.

    A name that leads elsewhere and a file that is too large are Drops.
    """
    for info in tar:
        tar.members = []  # type: ignore[attr-defined]  # it would keep all of them
        if not info.isfile():
            continue
        name = info.name.removeprefix("./")
        if is_unsafe(name):
            yield Member(name, Drop(Reason.UNSAFE_PATH, "leads out of the archive"))
        elif info.size > MAX_MEMBER:
            said = f"{info.size} bytes, at most {MAX_MEMBER}"
            yield Member(name, Drop(Reason.IMAGE_TOO_LARGE, said))
        else:
            file = tar.extractfile(info)
            assert file is not None
            yield Member(name, _whole(file, info.size))


def inner_tar(tar: tarfile.TarFile, info: tarfile.TarInfo) -> tarfile.TarFile:
    """A tar inside of a tar, to be read once in its order."""
    file: IO[bytes] | None = tar.extractfile(info)
    assert file is not None
    return tarfile.open(fileobj=file, mode="r|*")


def _whole(file: IO[bytes], size: int) -> bytes:
    content = file.read(size)
    if len(content) != size:
        raise EOFError(f"a member of {size} bytes ends after {len(content)}")
    return content
