"""Maps a shard into memory when it is first read."""

import mmap
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from vlmill.runtime.files.value_offsets import LENGTH, ShardByteRanges
from vlmill.schemas.errors import InputError


class Footer(NamedTuple):
    """Holds a shard's footer: ``file`` reads row groups, ``byte_ranges`` gives their values."""

    file: pq.ParquetFile
    byte_ranges: ShardByteRanges


def read_footer(path: Path) -> Footer:
    """Opens a shard. Raises InputError if its positions cannot be read."""
    # Without buffering ahead, which takes four times as long for the small columns of a row group.
    file = pq.ParquetFile(path, memory_map=True, pre_buffer=False)
    return Footer(file, ShardByteRanges(path, file.metadata))


class MappedShard:
    """Holds a shard of a regions table, mapped into memory when it is first read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bytes: npt.NDArray[np.uint8] | None = None
        self._map: mmap.mmap | None = None

    @property
    def bytes(self) -> npt.NDArray[np.uint8]:
        """Returns the whole file."""
        if self._bytes is None:
            with open(self.path, "rb") as file:  # in a store: its local copy
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._bytes = np.frombuffer(self._map, dtype=np.uint8)
        return self._bytes

    def holds(self, offset: int, size: int) -> bool:
        """Returns whether the length before ``offset`` is that of a value of ``size`` bytes."""
        if not size:
            return True
        assert self.bytes is not None and self._map is not None
        if self._map.size() < len(self._map):
            # Reading gives zeros up to the end of the last page, and SIGBUS after it
            # (runtime/bus_errors.py).
            raise InputError(
                f"{self.path} has shrunk from {len(self._map)} to {self._map.size()} bytes while "
                "it was read; put the whole file back and run the command again"
            )
        before = self._map[max(0, offset - LENGTH.size) : offset]
        return offset + size <= len(self._map) and before == LENGTH.pack(size)

    def misplaced_error(self, what: str) -> InputError:
        """Returns the error for a value that is not at its recorded position."""
        return InputError(
            f"{self.path} is damaged: {what} is not at its recorded position; write the shard again"
        )

    def read_ahead(self, offset: int, size: int) -> None:
        """Makes the system read these bytes in the background."""
        assert self.bytes is not None and self._map is not None
        start = offset - offset % mmap.PAGESIZE
        self._map.madvise(mmap.MADV_WILLNEED, start, offset + size - start)
