"""The regions table: rows, encoding, and random access by image_id.

R boxes of a picture, D feature width, K class probabilities.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from vlmill.schemas.commands import InputError
from vlmill.schemas.ids import key64
from vlmill.schemas.reading import arrays_of, find_shards, producer_of
from vlmill.schemas.region_groups import MappedShard, RegionGroup
from vlmill.schemas.region_rows import (
    PER_BOX,
    RegionRow,
    encode_regions,
    from_stored,
    region_arrays,
    to_stored,
)
from vlmill.schemas.tables import REGIONS

OPEN_FOOTERS = 64
ABSENT = -1
Numbers = npt.NDArray[np.int64]


class RegionReader:
    """Random access to a regions table by image_id, or by row number in the order of the shards.

    ``argument`` is a folder, a file or a glob. Files are mapped into memory: of uncompressed shards
    features and probabilities are read-only views, without a copy. The index takes about 100 bytes
    a picture; of the other columns, the ``cached_rows`` last used stay in memory (3 kB for 100
    boxes). Raises InputError if nothing is found, an id appears twice, or the shards disagree on
    dtype, width or detector. Sent to another process it leaves the ids behind and finds them again
    where they are asked for.
    """

    def __init__(
        self, argument: str | Path, *, flag: str = "--regions", cached_rows: int = 16_384
    ) -> None:
        self.paths, self._flag, self._cached_rows = find_shards(argument, REGIONS, flag), flag, 0
        self.producer = producer_of(self.paths[0])
        self.arrays = arrays_of(self.paths[0])
        for path in self.paths[1:]:
            detector = _fingerprint(producer_of(path))
            if arrays_of(path) != self.arrays or detector != self.detector_fingerprint:
                raise InputError(
                    f"{flag}: {self.paths[0]} and {path} come from different detectors or formats; "
                    "give shards of one run"
                )
        self._limit = cached_rows
        self._open()
        counts = []
        for path in self.paths:
            metadata = pq.read_metadata(path)
            counts.append([metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)])
        flat = [(s, g) for s, groups in enumerate(counts) for g in range(len(groups))]
        self._groups = np.array(flat, dtype=np.int32).reshape(-1, 2)
        self._starts = np.concatenate([[0], np.cumsum([n for groups in counts for n in groups])])
        self._starts = self._starts.astype(np.int64)
        self._index: _Index | None = None
        self._ids  # noqa: B018  # an id that appears twice is found here

    def _open(self) -> None:
        self._shards = [MappedShard(path) for path in self.paths]
        self._footer = lru_cache(maxsize=OPEN_FOOTERS)(self._read_footer)
        self._cache: OrderedDict[int, RegionGroup] = OrderedDict()

    def _read_footer(self, shard: int) -> pq.ParquetFile:
        return pq.ParquetFile(self.paths[shard], memory_map=True)

    def __getstate__(self) -> dict[str, Any]:
        opened = ("_shards", "_footer", "_cache", "_index", "_cached_rows")
        return {name: value for name, value in self.__dict__.items() if name not in opened}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._cached_rows, self._index = 0, None
        self._open()

    @property
    def _ids(self) -> "_Index":
        if self._index is None:
            self._index = _Index(self.paths, self._flag)
        return self._index

    @property
    def detector_fingerprint(self) -> str | None:
        """Identifies the detector's weights and conventions; None if the producer gave none."""
        return _fingerprint(self.producer)

    @property
    def feature_dim(self) -> int:
        """D, the width of a region's feature."""
        try:
            return int(self.arrays["features"]["dim"])
        except (KeyError, TypeError, ValueError):
            raise InputError(f"{self.paths[0]}: the metadata lacks the features' width") from None

    @property
    def image_ids(self) -> list[str]:
        """All ids, in the order of shards and rows."""
        ids: list[str] = self._ids.ids.to_pylist()
        return ids

    def find(self, image_ids: Sequence[str]) -> Numbers:
        """Row numbers of pictures, :data:`ABSENT` for those that have none."""
        return self._ids.find(image_ids)

    def box_counts(self) -> npt.NDArray[np.int32]:
        """R of each row, from the index: no row is read."""
        return self._ids.num_boxes

    def num_boxes(self, image_id: str) -> int:
        """R of a picture, from the index: its row is not read. KeyError if absent."""
        return int(self._ids.num_boxes[self._number(image_id)])

    def _number(self, image_id: str) -> int:
        number = int(self.find([image_id])[0])
        if number == ABSENT:
            raise KeyError(image_id)
        return number

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __contains__(self, image_id: object) -> bool:
        return isinstance(image_id, str) and bool(self.find([image_id])[0] != ABSENT)

    def __iter__(self) -> Iterator[RegionRow]:
        return (self.row(number) for number in range(len(self)))

    def __getitem__(self, image_id: str) -> RegionRow:
        """The row of a picture. KeyError if absent."""
        return self.row(self._number(image_id))

    def row(self, number: int) -> RegionRow:
        """Row ``number``; its arrays are read-only views where the file allows it.

        Raises InputError where the file contradicts itself.
        """
        group, within = self._located(number)
        return group.row(within)

    def place(self, name: str, number: int) -> tuple[int, int, int] | None:
        """Where a row's bytes of ``features`` or ``class_probs`` lie: shard, offset and size.

        None where they have to be copied out (compressed shards), or are missing.
        """
        group, within = self._located(number)
        place = group.place(name, within)
        if place is None:
            return None
        return int(self._groups[self._group_of(number), 0]), *place

    def bytes_at(self, shard: int, offset: int, size: int) -> npt.NDArray[np.uint8]:
        """The mapped bytes of a :meth:`place`."""
        return self._shards[shard].bytes[offset : offset + size]

    def read_ahead(self, shard: int, offset: int, size: int) -> None:
        """Have the system read the bytes of a :meth:`place` in the background."""
        self._shards[shard].read_ahead(offset, size)

    def group_starts(self) -> Numbers:
        """The first row of each row group: rows of one group lie together in the file."""
        return self._starts[:-1]

    def _group_of(self, number: int) -> int:
        if not 0 <= number < len(self):
            raise IndexError(f"row {number} of {len(self)}")
        return int(np.searchsorted(self._starts, number, side="right")) - 1

    def _located(self, number: int) -> tuple[RegionGroup, int]:
        at = self._group_of(number)
        group = self._cache.get(at)
        if group is None:
            shard, place = self._groups[at].tolist()
            group = RegionGroup(self._shards[shard], self._footer(shard), place, self.arrays)
            self._cache[at] = group
            self._cached_rows += group.num_rows
            while self._cached_rows > self._limit and len(self._cache) > 1:
                self._cached_rows -= self._cache.popitem(last=False)[1].num_rows
        else:
            self._cache.move_to_end(at)
        return group, number - int(self._starts[at])


class _Index:
    """Ids and box counts of all rows, and the rows by their ids' keys."""

    def __init__(self, paths: Sequence[Path], flag: str) -> None:
        ids, counts, keys = [], [], []
        for path in paths:
            try:
                table = pq.read_table(path, columns=["image_id", "num_boxes"], partitioning=None)
            except (OSError, ValueError, pa.ArrowException) as error:
                reason = str(error).splitlines()[0]
                raise InputError(f"{path} is damaged: {reason}") from None
            ids.append(table.column("image_id").cast(pa.large_string()))
            counts.append(table.column("num_boxes").to_numpy())
            found = (key64(i) for i in table.column("image_id").to_pylist())
            keys.append(np.fromiter(found, dtype=np.uint64, count=table.num_rows))
        self.ids = pa.chunked_array([c for a in ids for c in a.chunks], pa.large_string())
        self.ids = self.ids.combine_chunks()
        self.num_boxes = np.concatenate(counts).astype(np.int32)
        unordered = np.concatenate(keys)
        self._order = np.argsort(unordered, kind="stable")
        self._keys = unordered[self._order]
        for at in np.flatnonzero(self._keys[1:] == self._keys[:-1]).tolist():
            one, other = self._order[at], self._order[at + 1]
            if self.ids[one] == self.ids[other]:
                number = int(other)
                shard = int(np.searchsorted(np.cumsum([len(c) for c in counts]), number, "right"))
                raise InputError(f"{flag}: {self.ids[number]} has two rows ({paths[shard]})")

    def find(self, image_ids: Sequence[str]) -> Numbers:
        """Row numbers, :data:`ABSENT` where there is none."""
        wanted = np.fromiter((key64(i) for i in image_ids), dtype=np.uint64, count=len(image_ids))
        found = np.full(len(image_ids), ABSENT, dtype=np.int64)
        places = np.searchsorted(self._keys, wanted)
        for i, at in enumerate(places.tolist()):
            while at < len(self._keys) and self._keys[at] == wanted[i]:
                if self.ids[int(self._order[at])].as_py() == image_ids[i]:
                    found[i] = self._order[at]
                    break
                at += 1
        return found


def _fingerprint(producer: dict[str, Any]) -> str | None:
    value = producer.get("detector_fingerprint")
    return value if isinstance(value, str) else None


__all__ = [
    "ABSENT",
    "PER_BOX",
    "RegionReader",
    "RegionRow",
    "encode_regions",
    "from_stored",
    "region_arrays",
    "to_stored",
]
