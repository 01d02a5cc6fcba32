"""Limits the length of texts in a Parquet file before any of them is decoded.

A file of some kilobytes can contain a gigabyte of text: compressed, or as one dictionary entry that
every row repeats. The footer limits the first case. For dictionaries that could expand so, the
entries are checked.
"""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vlmill.runtime.files.paths import readable
from vlmill.schemas.errors import InputError

MAX_TEXT_BYTES = 1 << 20
MAX_BATCH_BYTES = 256 << 20  # of a column's texts that are decoded together
# A column that expands more than this, to texts of more than a line, is a bomb: pages of prose
# expand 3 to 10 times, and repeated texts are in a dictionary.
MAX_RATIO, LINE_BYTES, MIN_BOMB_BYTES = 1_000, 1_024, 64 << 20
_REMEDY = "write the file again without it"


def limit_batch_rows(path: Path, rows: int) -> int:
    """Returns how many rows of a file may be decoded together, at most ``rows``.

    Raises InputError for a file with a text that may be longer than ``MAX_TEXT_BYTES``, and for one
    that is not Parquet.
    """
    status = path.stat()
    longest = _longest_repeated(path, status.st_size, status.st_mtime_ns)
    return max(1, min(rows, MAX_BATCH_BYTES // longest)) if longest else rows


@lru_cache(maxsize=10_000)
def _longest_repeated(path: Path, *_: int) -> int:
    """Returns the bytes of the longest text in dictionaries that could expand; 0: none could."""
    try:
        return max(_chunk_sizes(path, pq.read_metadata(readable(path))), default=0)
    except (OSError, pa.ArrowException) as error:
        reason = (str(error).splitlines() or ["unreadable"])[0]
        raise InputError(f"{path} is not a readable Parquet file: {reason}; give another") from None


def _chunk_sizes(path: Path, footer: pq.FileMetaData) -> Iterator[int]:
    texts = [
        index
        for index in range(footer.num_columns)
        if footer.schema.column(index).converted_type == "UTF8"
    ]
    for group in range(footer.num_row_groups):
        row_group = footer.row_group(group)
        for chunk in (row_group.column(index) for index in texts):
            size, count = chunk.total_uncompressed_size, chunk.num_values
            is_bomb = (
                size > max(MIN_BOMB_BYTES, LINE_BYTES * count)
                and size > MAX_RATIO * chunk.total_compressed_size
            )
            if is_bomb or size > MAX_TEXT_BYTES * (count + 1):
                raise InputError(
                    f"{path}: column {chunk.path_in_schema} expands from "
                    f"{chunk.total_compressed_size} to {size} bytes (rows: {count}), and a text "
                    f"may have {MAX_TEXT_BYTES}; {_REMEDY}"
                )
            if chunk.has_dictionary_page and size * count > MAX_BATCH_BYTES:
                yield _longest_entry(path, group, chunk.path_in_schema)


def _longest_entry(path: Path, group: int, column: str) -> int:
    """Returns the bytes of the longest text in a dictionary, after decoding one row."""
    with pq.ParquetFile(readable(path), read_dictionary=[column]) as file:
        batches = file.iter_batches(batch_size=1, row_groups=[group], columns=[column])
        values = next(batches).column(0)
    while isinstance(values, pa.ListArray | pa.LargeListArray):
        values = values.flatten()
    entries = values.dictionary if isinstance(values, pa.DictionaryArray) else values
    longest = pc.max(pc.binary_length(entries)).as_py() or 0
    _require_short(path, column, longest)
    return int(longest)


def require_short_texts(path: Path, batch: pa.RecordBatch) -> None:
    """Raises InputError for a decoded text that is longer than ``MAX_TEXT_BYTES``."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_string_view(column.type):
            column = column.cast(pa.large_string())
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            _require_short(path, name, pc.max(pc.binary_length(column)).as_py() or 0)


def _require_short(path: Path, column: str, size: int) -> None:
    if size > MAX_TEXT_BYTES:
        raise InputError(
            f"{path}: a text of column {column} has {size} bytes, at most {MAX_TEXT_BYTES} are "
            f"read; {_REMEDY}"
        )
