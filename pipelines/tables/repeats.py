"""Finds repeated rows of ``concat`` by 64-bit keys of their ids and contents."""

import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from vlmill.pipelines.tables.choice import Dropped, compute_keys
from vlmill.pipelines.tables.inputs import IDS
from vlmill.runtime.files.kept_values import NumberStore
from vlmill.runtime.files.reading import read_group
from vlmill.runtime.readers.trained_on import Keys
from vlmill.schemas.ids import key64
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import IMAGES, Table, add_missing_columns

Verdicts = npt.NDArray[np.uint8]
NO_VERDICTS: Verdicts = np.empty(0, np.uint8)
REASONS = (None, Reason.DUPLICATE, Reason.ID_CONFLICT)  # for the verdicts 0, 1 and 2


def row_marks(file: pq.ParquetFile, path: Path, table: Table) -> Keys:
    """Returns the keys of a file's rows, uint64 [2, rows]: of ids, and of contents.

    An image's content is its bytes, from any source. In a table without ids the content is also the
    id.
    """
    groups = [_group_marks(file, path, group, table) for group in range(file.num_row_groups)]
    return np.concatenate([np.empty((2, 0), np.uint64), *groups], axis=1)


def _group_marks(file: pq.ParquetFile, path: Path, group: int, table: Table) -> Keys:
    names = table.schema.names
    if table is IMAGES:
        digests = read_group(file, path, group, table, ["sha256"]).column("sha256")
        names = ["bytes", "uri"] if digests.null_count else ["sha256"]
    key = IDS.get(table.name)
    there = {*names, *([key] if key else [])} & set(file.schema_arrow.names)
    columns = [name for name in table.schema.names if name in there]
    rows = add_missing_columns(read_group(file, path, group, table, columns), table, names)
    texts = [_texts(rows.column(name)) for name in names]
    contents = [key64("\0".join(values)) for values in zip(*texts, strict=True)]
    marks = np.array(contents, np.uint64).reshape(-1)
    return np.stack([marks if key is None else compute_keys(rows.column(key)), marks])


def _texts(column: pa.ChunkedArray) -> list[str]:
    if pa.types.is_large_binary(column.type):
        return [str(zlib.crc32(v.as_buffer())) if v.is_valid else "" for v in column]
    return [repr(value) for value in column.to_pylist()]


class RepeatFinder:
    """Compares rows with earlier ones. Memory: some 20 MB per table, keys are on the disk."""

    def __init__(self) -> None:
        self._stores: dict[str, NumberStore] = {}

    def judge(self, table: Table, marks: Keys) -> Verdicts:
        """Returns 0 for the first row of each id, 1 for its repeats, and 2 for other contents."""
        store = self._stores.setdefault(table.name, NumberStore())
        verdicts = np.zeros(marks.shape[1], np.uint8)
        for row, (key, mark) in enumerate(zip(*marks.tolist(), strict=True)):
            earlier = store.claim(key, mark)
            if earlier is not None:
                verdicts[row] = 1 if earlier == mark else 2
        return verdicts


def get_verdicts(verdicts: Verdicts, start: int, rows: int) -> Dropped:
    """Returns the rows to drop from ``start`` on, by reason."""
    part = verdicts[start : start + rows]
    return {reason: part == number for number, reason in enumerate(REASONS) if reason is not None}
