"""Finds rows of a table by image_id: the index of the ids, and what readers of shards share."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from vlmill.runtime.files.contract import check_values, naming_damage
from vlmill.runtime.files.paths import readable
from vlmill.runtime.files.reading import find_shards
from vlmill.runtime.readers.mapped import Footer, read_footer
from vlmill.schemas.errors import InputError
from vlmill.schemas.ids import key64
from vlmill.schemas.names import Difference, compose_nfc, difference, extract_core, without_ending
from vlmill.schemas.tables import Table

ABSENT = -1
MOST_ALIKE = 64  # ids with the same last part that are compared: every folder may have a frame_0001
IDS_AT_ONCE = 65_536
Numbers = npt.NDArray[np.int64]


class _Keys:
    """Indexes rows by 64 bits of a text, 16 bytes per row; several rows may have the same key."""

    def __init__(self, texts: Iterable[str], count: int) -> None:
        unordered = np.fromiter((key64(text) for text in texts), dtype=np.uint64, count=count)
        self.order = np.argsort(unordered, kind="stable")
        self.keys = unordered[self.order]

    def find_rows(self, text: str) -> Iterator[int]:
        """Yields the rows with the key of a text."""
        key = np.uint64(key64(text))
        start = int(np.searchsorted(self.keys, key))
        for position in range(start, len(self.keys)):
            if self.keys[position] != key:
                return
            yield int(self.order[position])


class IdIndex:
    """Finds the rows of ids: of equal ones, and of those that may name the same image.

    Uses about 16 bytes per row in addition to the ids, and 32 more once an id was searched by name.
    """

    def __init__(self, ids: pa.LargeStringArray) -> None:
        self._ids = ids
        self._exact = _Keys(self._texts(), len(ids))

    @classmethod
    def from_ids(cls, ids: Sequence[str]) -> "IdIndex":
        """Returns the index of a list."""
        return cls(pa.array(ids, pa.large_string()))

    def _texts(self) -> Iterator[str]:
        for start in range(0, len(self._ids), IDS_AT_ONCE):
            yield from self._ids.slice(start, IDS_AT_ONCE).to_pylist()

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, image_id: object) -> bool:
        return isinstance(image_id, str) and bool(self.find([image_id])[0] != ABSENT)

    def ids(self) -> list[str]:
        """Returns all ids."""
        ids: list[str] = self._ids.to_pylist()
        return ids

    def get_id(self, row: int) -> str:
        """Returns the id of a row."""
        return str(self._ids[row].as_py())

    def number(self, image_id: str) -> int:
        """Returns the row of an id. Raises KeyError if it has none."""
        number = int(self.find([image_id])[0])
        if number == ABSENT:
            raise KeyError(image_id)
        return number

    def find(self, image_ids: Sequence[str]) -> Numbers:
        """Returns row numbers, :data:`ABSENT` for unknown ids."""
        keys = np.fromiter((key64(i) for i in image_ids), dtype=np.uint64, count=len(image_ids))
        numbers = np.full(len(image_ids), ABSENT, dtype=np.int64)
        known, order = self._exact.keys, self._exact.order
        for i, position in enumerate(np.searchsorted(known, keys).tolist()):
            while position < len(known) and known[position] == keys[i]:
                if self._ids[int(order[position])].as_py() == image_ids[i]:
                    numbers[i] = order[position]
                    break
                position += 1
        return numbers

    @cached_property
    def _ids_without_ending(self) -> _Keys:
        return _Keys((without_ending(compose_nfc(text)) for text in self._texts()), len(self))

    @cached_property
    def _core_ids(self) -> _Keys:
        return _Keys(map(extract_core, self._texts()), len(self))

    def find_matches(self, image_id: str) -> dict[str, Difference]:
        """Returns the ids that may name an id's image, and the parts that only one of the two has.

        Only those that differ least: 46.jpg for 46 rather than train/46. Empty if there is none, or
        if so many ids have the same last part that it identifies nothing.
        """
        rows = list(self._ids_without_ending.find_rows(without_ending(compose_nfc(image_id))))
        return self._nearest(image_id, rows) or self._nearest(
            image_id, list(islice(self._core_ids.find_rows(extract_core(image_id)), MOST_ALIKE + 1))
        )

    def _nearest(self, image_id: str, rows: Sequence[int]) -> dict[str, Difference]:
        if len(rows) > MOST_ALIKE:
            return {}
        ids = [self.get_id(row) for row in rows]
        kinds = {
            candidate: kind
            for candidate in ids
            if (kind := difference(image_id, candidate)) is not None
        }
        return {candidate: kind for candidate, kind in kinds.items() if kind == min(kinds.values())}


class RowIndex(IdIndex):
    """Holds the ids of a table's rows, in the order of shards and rows, and finds rows by id.

    Uses about 100 bytes per row. ``columns`` are int32 columns to store too. Raises InputError for
    an id with two rows, and for values that break the contract of ``spec``.
    """

    def __init__(
        self, paths: Sequence[Path], spec: Table, flag: str, columns: Sequence[str] = ()
    ) -> None:
        tables = [_read(path, spec, ["image_id", *columns]) for path in paths]
        table = pa.concat_tables(tables)
        ids = table.column("image_id").cast(pa.large_string()).combine_chunks()
        if isinstance(ids, pa.ChunkedArray):
            ids = (
                pa.concat_arrays(ids.chunks) if ids.num_chunks else pa.array([], pa.large_string())
            )
        super().__init__(ids)
        self._counts = {name: table.column(name).to_numpy() for name in columns}
        for position in np.flatnonzero(self._exact.keys[1:] == self._exact.keys[:-1]).tolist():
            row, other = int(self._exact.order[position]), int(self._exact.order[position + 1])
            if self._ids[row] == self._ids[other]:
                ends = np.cumsum([part.num_rows for part in tables])
                path = paths[int(np.searchsorted(ends, other, side="right"))]
                raise InputError(f"{flag}: {self._ids[other]} has two rows ({path})")

    def counts(self, column: str) -> npt.NDArray[np.int32]:
        """Returns one of the ``columns``."""
        counts: npt.NDArray[np.int32] = self._counts[column]
        return counts


def _read(path: Path, spec: Table, columns: Sequence[str]) -> pa.Table:
    with naming_damage(path):
        table = pq.read_table(readable(path), columns=list(columns), partitioning=None)
        check_values(path, table, spec)
    return table


class ShardReader:
    """Finds rows of a table's shards by image_id; a pickled reader reads the ids again."""

    spec: ClassVar[Table]
    counted: ClassVar[Sequence[str]] = ()  # int32 columns in the index

    def __init__(self, argument: str | Path, flag: str) -> None:
        self.paths, self.flag = find_shards(argument, self.spec, flag), flag
        self._index: RowIndex | None = None

    def _read_footer(self, shard: int) -> Footer:
        return read_footer(self.paths[shard])

    @property
    def index(self) -> RowIndex:
        """Returns the index of the ids. Raises InputError for a repeated id."""
        if self._index is None:
            self._index = RowIndex(self.paths, self.spec, self.flag, self.counted)
        return self._index

    def __contains__(self, image_id: object) -> bool:
        return image_id in self.index

    @property
    def image_ids(self) -> list[str]:
        """Returns all ids, in the order of shards and rows."""
        return self.index.ids()

    def find(self, image_ids: Sequence[str]) -> Numbers:
        """Returns the row numbers of images, :data:`ABSENT` for those without a row."""
        return self.index.find(image_ids)
