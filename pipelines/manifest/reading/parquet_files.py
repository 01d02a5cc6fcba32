"""Reads the rows of Parquet files: one file, or a folder as on the hub."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vlmill.pipelines.manifest.reading.text_rows import refuse_surrogates
from vlmill.runtime.files.paths import readable
from vlmill.runtime.files.text_sizes import limit_batch_rows, require_short_texts
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.splits import find_use

BATCH_ROWS, IMAGE_ROWS = 1_000, 32


def open_parquet(path: Path) -> Any:
    try:
        return pq.ParquetFile(readable(path))
    except (OSError, pa.ArrowException) as error:
        reason = f"{str(error).splitlines()[0]}; give a Parquet table"
        raise InputError(f"--input {path} is not a readable Parquet file: {reason}") from None


def parquet_parts(path: Path) -> tuple[Path, ...]:
    """Returns the Parquet files of a folder, of its folder ``data`` or of the folders below, or of
    a pattern such as ``data/train-*.parquet``; none for a file.
    """
    if "*" in path.name and not path.exists():
        return tuple(sorted(path.parent.glob(path.name)))
    if not path.is_dir():
        return ()
    levels = ("*.parquet", "data/*.parquet", "*/*.parquet")
    listed = (tuple(sorted(path.glob(level))) for level in levels)
    return next((parts for parts in listed if parts), ())


def parquet_names(root: Path, parts: Sequence[Path]) -> list[str]:
    """Returns the columns of Parquet files. Files of a folder also have a column ``split``, the one
    in the name of each file, unless the files have it.

    Raises InputError for files with different columns.
    """
    names = [list(open_parquet(path).schema_arrow.names) for path in parts or (root,)]
    if other := next((k for k, part in enumerate(names) if sorted(part) != sorted(names[0])), None):
        raise InputError(f"--input {root}: {parts[other].name} has other columns")
    has_split = any(name.lower() == "split" for name in names[0])
    named = any(split_in_name(path) is not None for path in parts)
    return [*names[0], "split"] if named and not has_split else names[0]


def split_in_name(path: Path) -> str | None:
    """Returns the split that is a word of a file's name: test of ``test-00000-of-00001.parquet``.

    A name with several has none.
    """
    words = re.split(r"[^A-Za-z0-9]+", path.name.rpartition(".")[0])
    splits = [word for word in words if word and find_use(word) is not None]
    return splits[0] if len(splits) == 1 else None


def parquet_values(
    root: Path, parts: Sequence[Path], column_indices: Sequence[int]
) -> Iterator[tuple[int, list[Any] | Drop]]:
    """Yields the values of a file or of several, with the rows' numbers from 1."""
    number, all_names = 0, parquet_names(root, parts)
    names = [all_names[index] for index in column_indices]
    for path in parts or (root,):
        with open_parquet(path) as file:
            stored = [name for name in dict.fromkeys(names) if name in file.schema_arrow.names]
            split = split_in_name(path)
            try:
                limit = limit_batch_rows(path, _batch_rows(file.schema_arrow, stored))
                for batch in file.iter_batches(limit, columns=stored):
                    require_short_texts(path, batch)
                    columns = {name: _values(batch.column(name)) for name in stored}
                    columns.setdefault("split", [split] * batch.num_rows)
                    for fields in zip(*(columns[name] for name in names), strict=True):
                        number += 1
                        yield number, refuse_surrogates([*fields])
            except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
                reason = str(error).splitlines()[0]
                raise InputError(
                    f"--input {path} is damaged after row {number}: {reason}"
                ) from None


def _batch_rows(schema: pa.Schema, names: Sequence[str]) -> int:
    """Returns how many rows are decoded together: few if a column may hold images."""
    kinds = [schema.field(name).type for name in names]
    plain = all(_is_text(kind) or pa.types.is_primitive(kind) for kind in kinds)
    return BATCH_ROWS if plain else IMAGE_ROWS


def check_types(path: Path, column_indices: Sequence[int]) -> None:
    """Raises InputError unless these columns are texts or whole numbers."""
    with open_parquet(path) as file:
        schema = file.schema_arrow
    for index in column_indices:
        kind = schema.field(index).type
        inner = _decoded(kind)
        # A column of the type null has no value in any row.
        if not (_is_text(inner) or pa.types.is_integer(inner) or pa.types.is_null(inner)):
            raise InputError(
                f"--input {path}: the column {schema.names[index]} is {kind}; expected "
                "text or whole numbers, one a row"
            )


def text_names(path: Path) -> list[str]:
    """Returns the names of a file's columns of texts. Raises InputError if it is unreadable."""
    with open_parquet(path) as file:
        schema = file.schema_arrow
    return [field.name for field in schema if _is_text(_decoded(field.type))]


def _decoded(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_text(kind: pa.DataType) -> bool:
    is_text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(test(kind) for test in is_text)


def _values(column: pa.Array) -> list[Any]:
    """Returns a column's values; bytes of a text that are not UTF-8 become lone surrogates."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not _is_text(column.type):
        values: list[Any] = column.to_pylist()
        return values
    texts = column.cast(pa.large_binary()).to_pylist()
    return [None if v is None else v.decode("utf-8", "surrogateescape") for v in texts]
