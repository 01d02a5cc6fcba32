"""Reads the regions table: rows, encoding, and random access by image_id, also of rows in memory.

R boxes of an image, D feature width, K class probabilities.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from vlmill.runtime.files.contract import read_parquet_footer
from vlmill.runtime.files.paths import readable
from vlmill.runtime.files.reading import read_array_formats, read_producer
from vlmill.runtime.files.shards import is_marked_finite
from vlmill.runtime.readers.mapped import MappedShard, RegionGroup, read_group
from vlmill.runtime.readers.region_rows import (
    PER_BOX,
    RegionRow,
    encode_regions,
    from_stored,
    region_arrays,
    to_stored,
)
from vlmill.runtime.readers.row_index import ABSENT, IdIndex, ShardReader
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import REGIONS

OPEN_FOOTERS = 64
UNKNOWN = -1  # state of a row that was not checked for finite numbers


class Regions(ABC):
    """Finds the regions of images: in a table, or in memory.

    ``arrays`` is the metadata of the binary columns, ``name`` the regions' name in messages.
    """

    arrays: dict[str, Any]
    name: str

    @property
    @abstractmethod
    def index(self) -> IdIndex:
        """Returns the index of the ids."""

    @abstractmethod
    def box_counts(self) -> npt.NDArray[np.int32]:
        """Returns R of each row, without reading rows."""

    @abstractmethod
    def locate_row(self, number: int) -> tuple[RegionGroup, int]:
        """Returns a row's group and its number in it: to read only some columns."""

    @cached_property
    def feature_dim(self) -> int:
        """Returns D, the width of a region's feature."""
        try:
            return int(self.arrays["features"]["dim"])
        except (KeyError, TypeError, ValueError):
            raise InputError(f"{self.name}: the metadata lacks the features' width") from None

    def row(self, number: int) -> RegionRow:
        """Returns row ``number``; its arrays are read-only views if a file allows it.

        Raises InputError if the file is inconsistent.
        """
        group, within = self.locate_row(number)
        return group.row(within)


class RegionReader(ShardReader, Regions):
    """Reads any row of a regions table, by image_id or by row number in the order of the shards.

    ``argument`` is a folder, a file or a glob. Files are memory-mapped: in shards that record the
    positions of their values, features and probabilities are read-only views without a copy. The
    index uses about 100 bytes per image. The other columns of the ``cached_rows`` last used rows
    stay in memory (3 kB for 100 boxes). Raises InputError if nothing is found, an id appears twice,
    or the shards disagree on dtype, width or detector. A pickled reader does not include the ids
    and reads them again on demand.
    """

    spec, counted = REGIONS, ("num_boxes",)

    def __init__(
        self, argument: str | Path, *, flag: str = "--regions", cached_rows: int = 16_384
    ) -> None:
        super().__init__(argument, flag)
        self._cached_rows = 0
        self.name, self.producer = str(self.paths[0]), read_producer(self.paths[0])
        self.arrays = read_array_formats(self.paths[0])
        for path in self.paths[1:]:
            detector = _fingerprint(read_producer(path))
            if read_array_formats(path) != self.arrays or detector != self.detector_fingerprint:
                raise InputError(
                    f"{flag}: {self.paths[0]} and {path} come from different detectors or formats; "
                    "give shards of one run"
                )
        self._limit = cached_rows
        self._open()
        counts = []
        for path in self.paths:
            metadata = pq.read_metadata(readable(path))
            counts.append([metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)])
        self._groups = [(s, g) for s, groups in enumerate(counts) for g in range(len(groups))]
        # A list: bisect takes a tenth of searchsorted's time for one number.
        self._starts: list[int] = [0, *accumulate(n for groups in counts for n in groups)]
        self._marked = [is_marked_finite(read_parquet_footer(path).metadata) for path in self.paths]
        self._looked_at: npt.NDArray[np.int8] | None = None
        self.index  # noqa: B018  # raises InputError for a repeated id

    def _open(self) -> None:
        self._shards = [MappedShard(path) for path in self.paths]
        self._footer = lru_cache(maxsize=OPEN_FOOTERS)(self._read_footer)
        self._cache: OrderedDict[int, RegionGroup] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        unpicklable = ("_shards", "_footer", "_cache", "_index", "_cached_rows", "_looked_at")
        return {name: value for name, value in self.__dict__.items() if name not in unpicklable}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._cached_rows, self._index, self._looked_at = 0, None, None
        self._open()

    @property
    def detector_fingerprint(self) -> str | None:
        """Identifies the detector's weights and conventions; None if the producer gave none."""
        return _fingerprint(self.producer)

    def box_counts(self) -> npt.NDArray[np.int32]:
        """Returns R of each row from the index, without reading rows."""
        return self.index.counts("num_boxes")

    def num_boxes(self, image_id: str) -> int:
        """Returns R of an image from the index, without reading its row. Raises KeyError."""
        return int(self.box_counts()[self.index.number(image_id)])

    def __len__(self) -> int:
        return self._starts[-1]

    def __iter__(self) -> Iterator[RegionRow]:
        return (self.row(number) for number in range(len(self)))

    def __getitem__(self, image_id: str) -> RegionRow:
        """Returns the row of an image. Raises KeyError if it has none."""
        return self.row(self.index.number(image_id))

    def bytes_at(self, shard: int, offset: int, size: int) -> npt.NDArray[np.uint8]:
        """Returns the mapped bytes of a value that a row's group locates in its shard."""
        return self._shards[shard].bytes[offset : offset + size]

    def read_ahead(self, shard: int, offset: int, size: int) -> None:
        """Asks the system to read such bytes in the background."""
        self._shards[shard].read_ahead(offset, size)

    def is_finite(self, number: int) -> bool:
        """Returns whether all numbers of a row are finite.

        If the shard's writer did not check them, they are read here, each row once.
        """
        group = self._find_group(number)
        if self._marked[self._groups[group][0]]:
            return True
        if self._looked_at is None:
            self._looked_at = np.full(len(self), UNKNOWN, dtype=np.int8)
        if self._looked_at[number] == UNKNOWN:
            region_group, within = self.locate_row(number)
            self._looked_at[number] = region_group.is_finite(within)
        return bool(self._looked_at[number])

    def _find_group(self, number: int) -> int:
        if not 0 <= number < self._starts[-1]:
            raise IndexError(f"row {number} of {len(self)}")
        return bisect_right(self._starts, number) - 1

    def locate_row(self, number: int) -> tuple[RegionGroup, int]:
        """Returns a row's group and its number in it: to read only some columns."""
        group_index = self._find_group(number)
        group = self._cache.get(group_index)
        if group is None:
            shard, row_group = self._groups[group_index]
            footer = self._footer(shard)
            group = read_group(self._shards[shard], shard, footer, row_group, self.arrays)
            self._cache[group_index] = group
            self._cached_rows += group.num_rows
            while self._cached_rows > self._limit and len(self._cache) > 1:
                self._cached_rows -= self._cache.popitem(last=False)[1].num_rows
        else:
            self._cache.move_to_end(group_index)
        return group, number - self._starts[group_index]


class HeldRegions(Regions):
    """Holds the regions of images in memory, with the values that a table would store."""

    name = "--regions"

    def __init__(self, rows: Sequence[RegionRow], arrays: dict[str, Any]) -> None:
        self.arrays, self._counts = arrays, np.array([len(row.boxes) for row in rows], np.int32)
        self._group = RegionGroup(encode_regions(rows, dtype=arrays["features"]["dtype"]), arrays)
        self._index = IdIndex.from_ids([row.image_id for row in rows])

    @property
    def index(self) -> IdIndex:
        """Returns the index of the ids."""
        return self._index

    def box_counts(self) -> npt.NDArray[np.int32]:
        """Returns R of each row."""
        return self._counts

    def locate_row(self, number: int) -> tuple[RegionGroup, int]:
        """Returns the only group, and the row's number in it."""
        return self._group, number


def _fingerprint(producer: dict[str, Any]) -> str | None:
    value = producer.get("detector_fingerprint")
    return value if isinstance(value, str) else None


__all__ = [
    "ABSENT",
    "PER_BOX",
    "HeldRegions",
    "RegionReader",
    "RegionRow",
    "Regions",
    "encode_regions",
    "from_stored",
    "region_arrays",
    "to_stored",
]
