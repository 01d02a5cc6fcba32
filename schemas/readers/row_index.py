"""Rows of a table by image_id."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from vlmill.schemas.errors import InputError
from vlmill.schemas.files.contract import check_values
from vlmill.schemas.ids import key64
from vlmill.schemas.tables import Table

ABSENT = -1
Numbers = npt.NDArray[np.int64]


class RowIndex:
    """Holds the ids of a table's rows, in the order of shards and rows, and finds rows by id.

    Takes some 100 bytes a row. ``columns`` are int32 columns that it keeps too. Raises InputError
    for an id that has two rows, and for values that break the contract of ``spec``.
    """

    def __init__(
        self, paths: Sequence[Path], spec: Table, flag: str, columns: Sequence[str] = ()
    ) -> None:
        tables = [_read(path, spec, ["image_id", *columns]) for path in paths]
        table = pa.concat_tables(tables)
        self._ids = table.column("image_id").cast(pa.large_string()).combine_chunks()
        if isinstance(self._ids, pa.ChunkedArray):
            self._ids = pa.concat_arrays(self._ids.chunks) if self._ids.num_chunks else pa.array([])
        self._counts = {name: table.column(name).to_numpy() for name in columns}
        keys = (key64(i) for path in tables for i in path.column("image_id").to_pylist())
        unordered = np.fromiter(keys, dtype=np.uint64, count=len(self._ids))
        self._order = np.argsort(unordered, kind="stable")
        self._keys = unordered[self._order]
        for at in np.flatnonzero(self._keys[1:] == self._keys[:-1]).tolist():
            one, other = int(self._order[at]), int(self._order[at + 1])
            if self._ids[one] == self._ids[other]:
                ends = np.cumsum([part.num_rows for part in tables])
                path = paths[int(np.searchsorted(ends, other, side="right"))]
                raise InputError(f"{flag}: {self._ids[other]} has two rows ({path})")

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, image_id: object) -> bool:
        return isinstance(image_id, str) and bool(self.find([image_id])[0] != ABSENT)

    def ids(self) -> list[str]:
        """Returns all ids."""
        ids: list[str] = self._ids.to_pylist()
        return ids

    def counts(self, column: str) -> npt.NDArray[np.int32]:
        """Returns one of the ``columns``."""
        counts: npt.NDArray[np.int32] = self._counts[column]
        return counts

    def number(self, image_id: str) -> int:
        """Returns the row of an id. Raises KeyError if it has none."""
        number = int(self.find([image_id])[0])
        if number == ABSENT:
            raise KeyError(image_id)
        return number

    def find(self, image_ids: Sequence[str]) -> Numbers:
        """Returns row numbers, :data:`ABSENT` where there is none."""
        keys = np.fromiter((key64(i) for i in image_ids), dtype=np.uint64, count=len(image_ids))
        numbers = np.full(len(image_ids), ABSENT, dtype=np.int64)
        places = np.searchsorted(self._keys, keys)
        for i, at in enumerate(places.tolist()):
            while at < len(self._keys) and self._keys[at] == keys[i]:
                if self._ids[int(self._order[at])].as_py() == image_ids[i]:
                    numbers[i] = self._order[at]
                    break
                at += 1
        return numbers


def _read(path: Path, spec: Table, columns: Sequence[str]) -> pa.Table:
    try:
        table = pq.read_table(path, columns=list(columns), partitioning=None)
        check_values(path, table, spec)
        return table
    except InputError:
        raise
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path} is damaged: {reason}") from None
