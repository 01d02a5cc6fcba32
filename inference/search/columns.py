"""Reads columns that search results can be filtered by, such as the category of items."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vlmill.inference.search.table import ABOUT
from vlmill.runtime.files.paths import matches, readable, to_path
from vlmill.runtime.files.reading import find_shards
from vlmill.runtime.files.text_sizes import limit_batch_rows, require_short_texts
from vlmill.runtime.readers.row_index import ABSENT, IdIndex
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import PAIRS

KEYS = ("image_id", "pair_id")
MOST_COLUMNS = 64


def add_columns(about: pa.Table, argument: str, names: Sequence[str]) -> pa.Table:
    """Returns rows with columns of a Parquet table, as texts; null for rows that it lacks.

    The table has image_id, pair_id or both: its first row with the pair_id of a row is used, else
    the first with its image_id. Raises InputError for a table without these columns.
    """
    if taken := [name for name in names if name in ABOUT]:
        raise InputError(f"--columns {taken[0]}: the index has this column already")
    if len(names) > MOST_COLUMNS or len(set(names)) < len(names):
        raise InputError(f"--columns: expected at most {MOST_COLUMNS} different names")
    table = read_columns(argument, names)
    rows: pa.Array = pa.nulls(about.num_rows, pa.int64())
    for key in KEYS:
        if key in table.column_names:
            results = find_first(table.column(key), about.column(key))
            rows = pc.coalesce(results, rows)
    for name in names:
        about = about.append_column(name, table.column(name).combine_chunks().take(rows))
    return about.combine_chunks()


def find_first(known: pa.ChunkedArray, ids_to_find: pa.ChunkedArray) -> pa.Array:
    """Returns the first row of each ids_to_find id, null for an unknown one."""
    ids = known.cast(pa.large_string()).fill_null("").combine_chunks()
    index = IdIndex(ids)
    results = pa.array(index.find(ids_to_find.cast(pa.string()).fill_null("").to_pylist()))
    is_known = pc.and_(pc.not_equal(results, ABSENT), ids_to_find.is_valid().combine_chunks())
    return pc.if_else(is_known, results, None)


def read_columns(argument: str, names: Sequence[str]) -> pa.Table:
    """Reads the ids and some columns of Parquet files: of a folder's table `pairs`, a file or a
    glob. Raises InputError.
    """
    where = f"--columns-from {argument}"
    path = to_path(argument)
    if path.is_dir():
        paths = find_shards(argument, PAIRS, "--columns-from")
    else:
        paths = [path] if path.is_file() else matches(argument)
    if not paths:
        raise InputError(f"{where}: no file there; give a Parquet file, or a folder with pairs")
    batches = [batch for file in paths for batch in iter_columns(file, names, where)]
    return pa.Table.from_batches(batches)


def iter_columns(path: Path, names: Sequence[str], where: str) -> Iterator[pa.RecordBatch]:
    """Yields the ids and columns of a file, as texts. Raises InputError."""
    try:
        with pq.ParquetFile(readable(path)) as file:
            there = file.schema_arrow.names
            if missing := [name for name in names if name not in there]:
                raise InputError(f"{where} has no column {missing[0]}; it has {', '.join(there)}")
            keys = [key for key in KEYS if key in there]
            if not keys:
                raise InputError(f"{where} has neither image_id nor pair_id")
            schema = pa.schema([(name, pa.string()) for name in (*keys, *names)])
            limit = limit_batch_rows(path, 65_536)
            for batch in file.iter_batches(batch_size=limit, columns=schema.names):
                require_short_texts(path, batch)
                yield batch.select(schema.names).cast(schema)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0][:200]
        raise InputError(f"{path} cannot be used for --columns-from: {reason}") from None
