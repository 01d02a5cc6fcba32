"""Maps a shard into memory, and reads a row group of regions from it: small columns as arrays,
large ones by their position.
"""

import mmap
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from vlmill.runtime.files.contract import check_values, naming_damage
from vlmill.runtime.files.value_offsets import (
    LENGTH,
    NULL,
    ShardByteRanges,
    binary_columns,
    list_valid,
)
from vlmill.runtime.readers import region_rows
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import REGIONS, breaks_contract

Array = npt.NDArray[Any]
BINARY = tuple(binary_columns(REGIONS))
SMALL = tuple(name for name in REGIONS.schema.names if name not in BINARY)
# The index of ids has checked them.
CHECKED = {name: REGIONS.fields[name] for name in SMALL if name != "image_id"}
LISTS: dict[str, np.dtype[Any]] = {
    "class_ids": np.dtype(np.int16),
    "class_scores": np.dtype(np.float32),
    "attribute_ids": np.dtype(np.int16),
    "attribute_scores": np.dtype(np.float32),
}
# Views of arrays: a row's number is found as fast as in a list, and no list of all is made.
Numbers = memoryview
Places = dict[str, tuple[Numbers, Numbers]]  # offsets and sizes of a column's bytes in a file
COLUMNS = (*region_rows.PER_BOX, "global_feature")
SCORES = ("class_scores", "attribute_scores")


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


@dataclass(frozen=True, kw_only=True, slots=True)
class _List:
    """Holds a list column: the values of row i are ``values[starts[i] : starts[i + 1]]``."""

    values: Array
    starts: Numbers
    valid: list[bool]

    def __getitem__(self, row: int) -> Array | None:
        return self.values[self.starts[row] : self.starts[row + 1]] if self.valid[row] else None


class RegionGroup:
    """Holds a row group of regions, with the small columns read.

    ``table`` has the small columns, and the binary ones whose bytes are not at ``places`` in the
    ``shard`` of number ``shard_number``: their offsets and sizes. ``arrays`` is the metadata of the
    binary columns. Raises ValueError for boxes without corners.
    """

    def __init__(
        self,
        table: pa.Table,
        arrays: dict[str, Any],
        *,
        places: Places | None = None,
        shard: MappedShard | None = None,
        shard_number: int = 0,
    ) -> None:
        self.shard_number, self._shard, self._arrays = shard_number, shard, arrays
        self._path = "the regions" if shard is None else str(shard.path)
        self._kinds: dict[str, tuple[np.dtype[Any], int]] = {}
        self._places = places or {}
        columns = {
            name: column.chunk(0) if column.num_chunks else pa.array([], column.type)
            for name, column in zip(table.column_names, table.combine_chunks().columns, strict=True)
        }
        self._copied = {name: columns[name] for name in BINARY if name in columns}
        self.num_rows = table.num_rows
        self._ids: list[str] = columns["image_id"].to_pylist()
        self._sizes = {n: _numbers(columns[n]) for n in ("width", "height", "num_boxes")}
        self._lists = {name: _list(columns[name], kind) for name, kind in LISTS.items()}
        boxes = columns["boxes"]
        corners = boxes.values.flatten().to_numpy(zero_copy_only=False).reshape(-1, 4)
        starts = _numbers(boxes.offsets)
        if len(starts) and starts[-1] > len(corners):
            raise ValueError("boxes without corners")
        self._boxes = _List(values=corners, starts=starts, valid=[True] * self.num_rows)

    def row(self, number: int, columns: Collection[str] = COLUMNS) -> region_rows.RegionRow:
        """Returns row ``number`` of the group: its boxes and the requested columns.

        Arrays are read-only views if the file allows it.
        """
        boxes = self.boxes(number)
        width, height = self.size(number)
        arrays: dict[str, Array | None] = {}
        for name in columns:
            if name in self._lists:
                arrays[name] = self._lists[name][number]
            elif name == "global_feature":
                # Its width may differ from the regions' if other networks computed it.
                like = name if name in self._arrays else "features"
                stored_rows = self._values(name, like, number, 1)
                arrays[name] = None if stored_rows is None else stored_rows[0]
            else:
                arrays[name] = self._values(name, name, number, len(boxes))
        return region_rows.RegionRow(
            image_id=self._ids[number], width=width, height=height, boxes=boxes, **arrays
        )

    def is_finite(self, number: int) -> bool:
        """Returns whether all numbers of a row are finite and none overflows: boxes (also relative
        to the image's size), scores and arrays. Reads the row.
        """
        row = self.row(number, SCORES)
        if min(row.width, row.height) < 1:
            return False
        small = (row.boxes, *(getattr(row, name) for name in SCORES))
        if not all(region_rows.is_in_range(array) for array in small if array is not None):
            return False
        for name in region_rows.ARRAYS:
            stored = self.stored_bytes(name, number)
            like = name if name in self._arrays else "features"
            if stored is not None and not region_rows.are_finite(stored, self._dtype(like)):
                return False
        return True

    def _dtype(self, name: str) -> str:
        self._kind(name)  # raises InputError if the metadata lacks it
        dtype: str = self._arrays[name]["dtype"]
        return dtype

    def image_id(self, number: int) -> str:
        """Returns the image_id of a row."""
        return self._ids[number]

    def size(self, number: int) -> tuple[int, int]:
        """Returns width and height of a row's image."""
        return self._sizes["width"][number], self._sizes["height"][number]

    def boxes(self, number: int) -> Array:
        """Returns a row's boxes, float32 [R, 4]. Raises InputError for another number of them."""
        boxes, count = self._boxes[number], self._sizes["num_boxes"][number]
        assert boxes is not None
        if len(boxes) != count:
            where = f"{self._path}, {self.image_id(number)}"
            raise InputError(f"{where}: {len(boxes)} boxes, num_boxes says {count}")
        return boxes

    def locate_value(self, name: str, number: int) -> tuple[int, int] | None:
        """Returns the position of a binary column's bytes in the file: offset and size.

        None if they must be copied (compressed), or are missing. Raises InputError if the file has
        no value of that size there.
        """
        if name not in self._places:
            return None
        offsets, sizes = self._places[name]
        offset, size = offsets[number], sizes[number]
        if size == NULL:
            return None
        assert self._shard is not None  # it has the places
        if not self._shard.holds(offset, size):
            raise self._shard.misplaced_error(f"{name} of {self.image_id(number)}")
        return offset, size

    def stored_bytes(self, name: str, number: int) -> npt.NDArray[np.uint8] | None:
        """Returns the stored bytes of a binary column; None if they are missing."""
        if name in self._copied:
            value = self._copied[name][number]
            return np.frombuffer(value.as_buffer(), np.uint8) if value.is_valid else None
        location = self.locate_value(name, number)
        if location is None:
            return None
        assert self._shard is not None
        return self._shard.bytes[location[0] : sum(location)]

    def _values(self, name: str, like: str, number: int, count: int) -> Array | None:
        """Returns a binary column as [count, width] in the type of the metadata for ``like``."""
        data = self.stored_bytes(name, number)
        if data is None:
            return None
        kind, width = self._kind(like)
        self._check_size(name, like, number, count, len(data))
        # Not ndarray.view: values in a file are not aligned.
        values = np.frombuffer(data, dtype=kind).reshape(count, width)
        return region_rows.from_stored(values, self._arrays[like]["dtype"])

    def locate_features(self, number: int) -> tuple[int, int] | None:
        """Returns :meth:`locate_value` of features. Raises InputError unless each box has one."""
        location = self.locate_value("features", number)
        if location is not None:
            count = self._sizes["num_boxes"][number]
            self._check_size("features", "features", number, count, location[1])
        return location

    def _check_size(self, name: str, like: str, number: int, count: int, actual: int) -> None:
        kind, width = self._kind(like)
        if actual != count * width * kind.itemsize:
            raise InputError(
                f"{self._path}, {self.image_id(number)}: {name} has {actual} bytes, {count} "
                f"boxes x {width} {self._arrays[like]['dtype']} are {count * width * kind.itemsize}"
            )

    def _kind(self, name: str) -> tuple[np.dtype[Any], int]:
        if name in self._kinds:
            return self._kinds[name]
        try:
            about = self._arrays[name]
            kinds = (
                {"uint16": region_rows.CLASS_NUMBERS}
                if name == "class_prob_ids"
                else region_rows.FEATURE_DTYPES
            )
            self._kinds[name] = kinds[about["dtype"]], int(about["dim"])
            return self._kinds[name]
        except (KeyError, TypeError, ValueError):
            where = self._path
            raise InputError(f"{where}: the metadata lacks dtype and width of {name}") from None


def read_group(
    shard: MappedShard, shard_number: int, footer: Footer, group: int, arrays: dict[str, Any]
) -> RegionGroup:
    """Reads row group ``group`` of a shard. Raises InputError for a damaged file."""
    with naming_damage(shard.path):
        places: Places = {}
        for name in BINARY:
            byte_ranges = footer.byte_ranges.find_ranges(group, name)
            if byte_ranges is not None:
                places[name] = (byte_ranges.offsets.data, byte_ranges.sizes.data)
        columns = [name for name in REGIONS.schema.names if name not in places]
        # Starting threads takes longer than reading the small columns.
        threads = len(places) < len(BINARY)
        table = footer.file.read_row_group(group, columns=columns, use_threads=threads)
        if any(
            breaks_contract(chunk, CHECKED[name])
            for name, column in zip(table.column_names, table.itercolumns(), strict=True)
            if name in CHECKED
            for chunk in column.chunks
        ):
            check_values(shard.path, table, REGIONS)
        return RegionGroup(table, arrays, places=places, shard=shard, shard_number=shard_number)


def _numbers(array: pa.Array) -> Numbers:
    numbers: Numbers = array.to_numpy().data
    return numbers


def _list(array: Any, kind: np.dtype[Any]) -> _List:
    return _List(
        values=array.values.to_numpy(zero_copy_only=False).astype(kind, copy=False),
        starts=_numbers(array.offsets),
        valid=list_valid(array),
    )
