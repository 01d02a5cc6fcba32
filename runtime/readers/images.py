"""Provides random access to images, of an ``images`` table or in memory."""

from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow.parquet as pq

from vlmill.runtime.files.contract import naming_damage
from vlmill.runtime.files.paths import readable
from vlmill.runtime.files.value_offsets import NULL, ByteRanges
from vlmill.runtime.readers.joining import Indexed
from vlmill.runtime.readers.mapped import MappedShard
from vlmill.runtime.readers.row_index import IdIndex, ShardReader
from vlmill.schemas.tables import IMAGES

OPEN_FOOTERS = 64
CACHED_GROUPS = 1024  # shards with known positions of their images: 12 bytes per row each


@runtime_checkable
class Images(Indexed, Protocol):
    """Finds the encoded bytes of images: in a table, or in memory."""

    def read_bytes(self, number: int) -> bytes | None:
        """Returns the bytes of row ``number``, None if it has none."""
        ...


class ImageReader(ShardReader):
    """Reads the encoded bytes of images, by image_id or by row number in the order of the shards.

    ``argument`` is a folder, a file or a glob. The index uses about 100 bytes per image. Files are
    memory-mapped. If a shard records the positions of its images, reading one costs a copy of its
    bytes; otherwise its row group is decoded, and the last one is kept. A pickled reader does not
    include the ids.
    """

    spec = IMAGES

    def __init__(self, argument: str | Path, *, flag: str = "--images") -> None:
        super().__init__(argument, flag)
        groups: list[tuple[int, int]] = []
        rows = [0]
        for shard, path in enumerate(self.paths):
            metadata = pq.read_metadata(readable(path))
            for group in range(metadata.num_row_groups):
                groups.append((shard, group))
                rows.append(metadata.row_group(group).num_rows)
        self._groups, self._starts = groups, np.cumsum(rows, dtype=np.int64)
        self._open()
        self.index  # noqa: B018  # raises InputError for a repeated id

    def _open(self) -> None:
        self._shards = [MappedShard(path) for path in self.paths]
        self._footer = lru_cache(maxsize=OPEN_FOOTERS)(self._read_footer)
        self._places = lru_cache(maxsize=CACHED_GROUPS)(self._read_byte_ranges)
        self._group = lru_cache(maxsize=1)(self._read_group)

    def _read_byte_ranges(self, group_index: int) -> ByteRanges | None:
        shard, group = self._groups[group_index]
        return self._footer(shard).byte_ranges.find_ranges(group, "bytes")

    def _read_group(self, group_index: int) -> Any:
        shard, group = self._groups[group_index]
        return self._footer(shard).file.read_row_group(group, columns=["bytes"]).column(0)

    def __getstate__(self) -> dict[str, Any]:
        unpicklable = ("_shards", "_footer", "_places", "_group", "_index")
        return {name: value for name, value in self.__dict__.items() if name not in unpicklable}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._index = None
        self._open()

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, image_id: str) -> bytes | None:
        """Returns an image's bytes, None if there are none. Raises KeyError for an unknown id."""
        return self.read_bytes(self.index.number(image_id))

    def read_bytes(self, number: int) -> bytes | None:
        """Returns the bytes of row ``number``, None without any. Raises InputError for damage."""
        if not 0 <= number < len(self):
            raise IndexError(f"row {number} of {len(self)}")
        group_index = int(np.searchsorted(self._starts, number, side="right")) - 1
        within, shard = number - int(self._starts[group_index]), self._groups[group_index][0]
        with naming_damage(self.paths[shard]):
            byte_ranges = self._places(group_index)
            if byte_ranges is None:
                value: bytes | None = self._group(group_index)[within].as_py()
                return value
        offset, size = int(byte_ranges.offsets[within]), int(byte_ranges.sizes[within])
        if size == NULL:
            return None
        if not self._shards[shard].holds(offset, size):
            raise self._shards[shard].misplaced_error(
                f"image {within} of row group {self._groups[group_index][1]}"
            )
        return self._shards[shard].bytes[offset : offset + size].tobytes()


class HeldImages:
    """Holds the encoded bytes of images in memory, by image_id."""

    def __init__(self, contents: Mapping[str, bytes]) -> None:
        self._ids, self._contents = list(contents), list(contents.values())

    @cached_property
    def index(self) -> IdIndex:
        """Returns the index of the ids."""
        return IdIndex.from_ids(self._ids)

    def read_bytes(self, number: int) -> bytes:
        """Returns the bytes of row ``number``."""
        return self._contents[number]
