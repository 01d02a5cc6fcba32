"""Streams rows of third-party tables: CSV, TSV, JSON lines and Parquet, with any content.

Nothing here raises for a bad row: it is replaced by a :class:`~vlmill.runtime.units.funnel.Drop`
and affects no other row.

The keys of a JSON line's object are its columns.
"""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from vlmill.pipelines.manifest.reading.lines import json_lines
from vlmill.pipelines.manifest.reading.sources import Source
from vlmill.pipelines.manifest.reading.text_rows import Fields, Lines, Row, csv_records, tsv_records
from vlmill.runtime.files.paths import readable
from vlmill.runtime.files.text_sizes import limit_batch_rows, require_short_texts
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason

FIRST_LINES = 1_000  # their keys are the columns: some lines may lack a key
_ANY: frozenset[str] = frozenset()


def json_columns(path: Path) -> list[str]:
    """Returns the first lines' keys, in order of appearance. Raises InputError without any."""
    names: dict[str, None] = {}
    for _, record in islice(json_lines(_source(path), _ANY), FIRST_LINES):
        if not isinstance(record, Drop):
            names |= dict.fromkeys(record)
    if not names:
        raise InputError(f"--input {path}: its first lines are not JSON objects, one per line")
    return list(names)


def json_rows(path: Path, names: Sequence[str]) -> Iterator[tuple[int, list[str | None] | Drop]]:
    """Yields the values of these keys with the line's number from 1, None for each absent key.

    A list under the first key, the captions, gives one row for each of its texts.
    """
    for number, record in json_lines(_source(path), _ANY):
        if isinstance(record, Drop):
            reason = Reason.BAD_RECORD if record.reason is Reason.BAD_ROW else record.reason
            yield number + 1, Drop(reason, record.detail)
        else:
            yield from (
                (number + 1, _values(item, names)) for item in _expand_record(record, names[0])
            )


def _expand_record(record: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Returns the record once per text of the list under ``name``; without text if it is empty."""
    value = record.get(name)
    return (
        [record | {name: item} for item in value or [None]] if isinstance(value, list) else [record]
    )


def _values(record: dict[str, Any], names: Sequence[str]) -> list[str | None] | Drop:
    values = [record.get(name) for name in names]
    for name, value in zip(names, values, strict=True):
        if value is not None and type(value) not in (str, int):
            kind = type(value).__name__
            return Drop(
                Reason.BAD_RECORD, f"{name!a:.80} is {kind}, expected text or a whole number"
            )
    return [None if value is None else str(value) for value in values]


def _source(path: Path) -> Source:
    return Source(path=path, name=path.name, size=path.stat().st_size)


FORMATS = {
    **{".csv": "csv", ".tsv": "tsv", ".tab": "tsv"},
    **{".jsonl": "jsonl", ".parquet": "parquet"},
}
BATCH_ROWS = 1_000


@dataclass(frozen=True, kw_only=True)
class TableFile:
    """Holds a file of rows and how it is read.

    ``delimiter``, ``encoding`` and ``header`` apply to CSV and TSV; without a header the columns
    are 1, 2, 3, ...
    """

    path: Path
    format: str
    delimiter: str = ","
    encoding: str = "utf-8"
    header: bool = True


def table_file(
    path: Path,
    *,
    format: str | None = None,
    delimiter: str | None = None,
    encoding: str = "utf-8",
    header: bool = True,
) -> TableFile:
    """Describes a file by its name and the flags. Raises InputError if it is unreadable."""
    known = ", ".join(FORMATS)
    if not path.is_file():
        raise InputError(f"--input {path}: no such file; give one that ends in {known}")
    format = format or FORMATS.get(path.suffix.lower())
    if format is None:
        raise InputError(
            f"--input {path}: does not end in {known}; give --format csv, tsv, jsonl or parquet"
        )
    if format == "jsonl" and (delimiter is not None or encoding != "utf-8" or not header):
        raise InputError(
            f"--input {path}: JSON lines are UTF-8 and name their columns; remove "
            "--delimiter, --encoding and --no-header"
        )
    delimiter = delimiter or ("\t" if format == "tsv" else ",")
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise InputError(
            f"--delimiter {delimiter!r}: expected one character, no quote or line break"
        )
    try:
        plain = '"\r\n' + delimiter
        fits = plain.encode(encoding) == plain.encode("utf-8")
    except (LookupError, UnicodeError):
        fits = False
    if not fits:  # lines are split before they are decoded
        raise InputError(
            f"--encoding {encoding}: unknown, or not a superset of ASCII (such as "
            "utf-8, cp1252 and gb18030); convert the file with iconv"
        )
    return TableFile(
        path=path, format=format, delimiter=delimiter, encoding=encoding, header=header
    )


def column_names(table: TableFile) -> list[str]:
    """Returns the names of the file's columns. Raises InputError if none can be read."""
    if table.format == "parquet":
        return list(_open_parquet(table.path).schema_arrow.names)
    if table.format == "jsonl":
        return json_columns(table.path)
    with table.path.open("rb") as file:
        first = next(_records(table, file), None)
    if first is None:
        raise InputError(f"--input {table.path}: the file is empty")
    fields = first[1]
    if isinstance(fields, Drop):
        raise InputError(f"--input {table.path}: its first line is not a row ({fields.detail})")
    if not table.header:
        return [str(number) for number in range(1, len(fields) + 1)]
    return [(field or "").strip() for field in fields]


def find_column_indices(table: TableFile, flags: Sequence[tuple[str, str]]) -> list[int]:
    """Returns the indices of columns, (flag, name) each. Raises InputError for an absent one."""
    names = column_names(table)
    indices = []
    for flag, name in flags:
        matches = [index for index, other in enumerate(names) if other == name]
        if len(matches) != 1:
            raise InputError(f"{flag} {name}: {table.path} has {_remedy(table, name, names)}")
        indices += matches
    return indices


def _remedy(table: TableFile, name: str, names: list[str]) -> str:
    if name in names:
        return "several columns of this name; rename one"
    near = difflib.get_close_matches(name, names, 1)
    columns = " ".join(", ".join(names).split())[:400] + (
        f"; did you mean {near[0]}?" if near else ""
    )
    if len(names) == 1 and table.format != "parquet":
        columns += " (are the columns separated by something else? see --delimiter)"
    return f"no such column; it has {columns}"


def read_rows(table: TableFile, column_indices: Sequence[int]) -> Iterator[Row]:
    """Yields each row's fields at ``column_indices``, or a Drop. Memory: a batch of rows."""
    if table.format == "parquet":
        yield from _parquet_rows(table.path, column_indices)
        return
    if table.format == "jsonl":
        names = json_columns(table.path)
        for number, fields in json_rows(table.path, [names[index] for index in column_indices]):
            yield number, fields if isinstance(fields, Drop) else _readable(fields)
        return
    width = len(column_names(table))
    with table.path.open("rb") as file:
        records = _records(table, file)
        if table.header:
            next(records, None)
        for number, fields in records:
            if isinstance(fields, Drop):
                yield number, fields
            elif len(fields) != width:
                yield number, Drop(Reason.BAD_RECORD, f"{len(fields)} fields instead of {width}")
            else:
                yield number, _readable([fields[index] for index in column_indices])


def count_rows(rows: Iterable[Row]) -> Iterator[int]:
    """Yields running counts, one every thousand rows; the last one is exact."""
    count = 0
    for _ in rows:
        count += 1
        if count % BATCH_ROWS == 0:
            yield count
    yield count


def _records(table: TableFile, file: BinaryIO) -> Iterator[Row]:
    read = tsv_records if table.format == "tsv" else csv_records
    return read(Lines(file, table.path, table.encoding), table.delimiter)


def _readable(fields: Fields) -> Fields | Drop:
    """Replaces lone surrogates, which represent bytes that could not be decoded in a field."""
    for field in fields:
        if field is not None and not field.isascii():
            try:
                field.encode()
            except UnicodeEncodeError:
                return Drop(Reason.BAD_ENCODING, f"bytes in another encoding: {field!a}")
    return fields


# Parquet


def _open_parquet(path: Path) -> Any:
    try:
        return pq.ParquetFile(readable(path))
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"--input {path} is not a readable Parquet file: {reason}") from None


def _parquet_rows(path: Path, column_indices: Sequence[int]) -> Iterator[Row]:
    number = 0
    with _open_parquet(path) as file:
        schema = file.schema_arrow
        names = [schema.names[index] for index in column_indices]
        for name in names:
            _check_type(path, name, schema.field(name).type)
        try:
            limit = limit_batch_rows(path, BATCH_ROWS)
            for batch in file.iter_batches(limit, columns=names):
                require_short_texts(path, batch)
                columns = [_texts(batch.column(name)) for name in names]
                for fields in zip(*columns, strict=True):
                    number += 1
                    yield number, _readable([*fields])
        except (OSError, pa.ArrowException) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"--input {path} is damaged after row {number}: {reason}") from None


def _check_type(path: Path, name: str, kind: pa.DataType) -> None:
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_integer)
    if not any(is_it(inner) for is_it in texts):
        raise InputError(
            f"--input {path}: the column {name} is {kind}; expected text or whole "
            "numbers, one per row"
        )


def _texts(column: pa.Array) -> Fields:
    """Returns a column's values as strings; bytes that are not UTF-8 become lone surrogates."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_integer(column.type):
        return [None if value is None else str(value) for value in column.to_pylist()]
    values = column.cast(pa.large_binary()).to_pylist()
    return [None if v is None else v.decode("utf-8", "surrogateescape") for v in values]
