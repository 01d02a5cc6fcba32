"""A shard is mapped into memory here, as it is first read."""

import mmap
from pathlib import Path

import numpy as np
import numpy.typing as npt


class MappedShard:
    """A shard of a regions table, mapped into memory as it is first read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bytes: npt.NDArray[np.uint8] | None = None
        self._map: mmap.mmap | None = None

    @property
    def bytes(self) -> npt.NDArray[np.uint8]:
        """The whole file."""
        if self._bytes is None:
            with self.path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._bytes = np.frombuffer(self._map, dtype=np.uint8)
        return self._bytes

    def read_ahead(self, offset: int, size: int) -> None:
        """Have the system read these bytes in the background."""
        assert self.bytes is not None and self._map is not None
        start = offset - offset % mmap.PAGESIZE
        self._map.madvise(mmap.MADV_WILLNEED, start, offset + size - start)
