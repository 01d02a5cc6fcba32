"""Computes a file's checksum while it grows, so that the complete file need not be read again."""

import hashlib
import mmap
from pathlib import Path
from typing import NamedTuple

# Pages are already in memory: mapping them together costs a tenth of one fault each. Linux only.
MAPPING = mmap.MAP_PRIVATE | getattr(mmap, "MAP_POPULATE", 0)


class MappedRange(NamedTuple):
    """Describes ``mapped[begin:end]`` of a file; ``start`` is where its first mapped byte is."""

    mapped: mmap.mmap
    start: int
    begin: int
    end: int


class GrowingFile:
    """Computes the SHA-256 of a file that another object appends to.

    The bytes are mapped as soon as they have been written. A file object that hashes its writes
    would make Arrow copy each page into Python's memory and wait for the interpreter 50 times per
    row group. This way a row group waits once.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._digest = path, hashlib.sha256()
        self.size = 0  # number of hashed bytes

    def extend(self, size: int) -> MappedRange | None:
        """Hashes the bytes up to ``size``, which must have been written; None adds nothing."""
        if size <= self.size:
            return None
        start = self.size // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        with self._path.open("rb") as file:
            mapped = mmap.mmap(
                file.fileno(), size - start, flags=MAPPING, prot=mmap.PROT_READ, offset=start
            )
        with memoryview(mapped) as view, view[self.size - start :] as added:
            self._digest.update(added)
        added_range = MappedRange(mapped, start, self.size - start, size - start)
        self.size = size
        return added_range

    def sha256(self) -> str:
        """Returns the checksum of the bytes hashed so far, in hexadecimal."""
        return self._digest.hexdigest()
