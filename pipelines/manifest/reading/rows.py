"""Streams rows of third-party tables: CSV, TSV, JSON lines and Parquet, with any content.

Nothing here raises for a bad row: it is replaced by a :class:`~vlmill.runtime.units.funnel.Drop`
and affects no other row.

The keys of a JSON object are its columns. The first row of an Excel sheet is its header.
"""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from vlmill.pipelines.manifest.reading.json_rows import json_columns, json_format, json_values
from vlmill.pipelines.manifest.reading.text_rows import Fields, Lines, Row, csv_records, tsv_records
from vlmill.pipelines.manifest.reading.workbooks import is_workbook, sheet_rows
from vlmill.runtime.files.paths import readable
from vlmill.runtime.files.text_sizes import limit_batch_rows, require_short_texts
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason

FORMATS = {
    **{".csv": "csv", ".tsv": "tsv", ".tab": "tsv"},
    **{".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl"},
    **{".parquet": "parquet", ".xlsx": "xlsx", ".xlsm": "xlsx"},
}
JSON = ("json", "jsonl")
BATCH_ROWS = 1_000


@dataclass(frozen=True, kw_only=True)
class TableFile:
    """Holds a file of rows and how it is read.

    ``delimiter``, ``encoding`` and ``skip``, the lines before the header, apply to CSV and TSV,
    ``header`` to these and Excel; without a header the columns are 1, 2, 3, ... ``sheet`` is that
    of an Excel workbook, None for its first.
    """

    path: Path
    format: str
    delimiter: str = ","
    encoding: str = "utf-8"
    header: bool = True
    skip: int = 0
    sheet: str | None = None


def table_file(
    path: Path,
    *,
    format: str | None = None,
    delimiter: str | None = None,
    encoding: str = "utf-8",
    header: bool = True,
    sheet: str | None = None,
) -> TableFile:
    """Describes a file by its name, the flags and its first bytes: JSON is a list or lines, and an
    Excel workbook may have any name. Raises InputError if it is unreadable.
    """
    known = ", ".join(FORMATS)
    if not path.is_file():
        raise InputError(f"--input {path}: no such file; give one that ends in {known}")
    format = _format(path, format)
    if format is None:
        raise InputError(
            f"--input {path}: ends in none of {known}; say --format csv, tsv, json, jsonl, "
            "parquet or xlsx"
        )
    if format in JSON and (delimiter is not None or encoding != "utf-8" or not header):
        raise InputError(
            f"--input {path}: JSON is UTF-8 and names its own columns; leave out "
            "--delimiter, --encoding and --no-header"
        )
    if format == "xlsx" and (delimiter is not None or encoding != "utf-8"):
        raise InputError(
            f"--input {path} is an Excel workbook; leave out --delimiter and --encoding"
        )
    if format != "xlsx" and sheet is not None:
        raise InputError(f"--sheet {sheet}: --input {path} is no Excel workbook; leave it out")
    delimiter = delimiter or ("\t" if format == "tsv" else ",")
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise InputError(f"--delimiter {delimiter!r}: want one character, no quote or line break")
    check_encoding(encoding, delimiter)
    return TableFile(
        path=path,
        format=format,
        delimiter=delimiter,
        encoding=encoding,
        header=header,
        sheet=sheet,
    )


def _format(path: Path, format: str | None) -> str | None:
    """Returns the format of a flag, or of the file's name and content."""
    named = FORMATS.get(path.suffix.lower())
    if (format or named) != "parquet" and is_workbook(path):
        if format not in (None, "xlsx"):
            raise InputError(
                f"--format {format}: --input {path} is an Excel workbook; leave out the flag, or "
                "save it as CSV UTF-8"
            )
        return "xlsx"
    if format is None and named in JSON:
        return json_format(path)
    return format or named


def check_encoding(encoding: str, delimiter: str) -> None:
    """Raises InputError for an unknown encoding, and for one whose lines cannot be split before
    they are decoded; UTF-16 is converted.
    """
    try:
        plain = '"\r\n' + delimiter
        fits = plain.encode(encoding) == plain.encode("utf-8")
    except (LookupError, UnicodeError):
        fits = False
    if not fits and encoding.lower().replace("_", "-") != "utf-16":
        raise InputError(
            f"--encoding {encoding}: unknown, or no superset of ASCII as utf-8, cp1252 and gb18030 "
            "are; convert the file with iconv"
        )


def column_names(table: TableFile) -> list[str]:
    """Returns the names of the file's columns. Raises InputError if none can be read."""
    if table.format == "parquet":
        return list(_open_parquet(table.path).schema_arrow.names)
    if table.format in JSON:
        return json_columns(table.path, table.format)
    if table.format == "xlsx":
        first: tuple[int, Any] | None = next(sheet_rows(table.path, table.sheet), None)
    else:
        with table.path.open("rb") as file:
            first = next(_records(table, file), None)
    if first is None:
        what = "the Excel sheet" if table.format == "xlsx" else "the file"
        raise InputError(f"--input {table.path}: {what} is empty")
    fields = first[1]
    if isinstance(fields, Drop):
        raise InputError(f"--input {table.path}: its first line is no row ({fields.detail})")
    if not table.header:
        return [str(number) for number in range(1, len(fields) + 1)]
    return ["" if field is None else str(field).strip() for field in fields]


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
    if len(names) == 1 and table.format in ("csv", "tsv"):
        columns += " (are the columns separated by something else? see --delimiter)"
    return f"no such column; it has {columns}"


def read_rows(table: TableFile, column_indices: Sequence[int]) -> Iterator[Row]:
    """Yields each row's fields at ``column_indices`` as texts, or a Drop.

    Whole numbers become texts; a value of any other type drops its row. Memory: a batch of rows.
    Raises InputError for a column of Parquet with another type.
    """
    if table.format == "parquet":
        _check_types(table.path, column_indices)
    names = column_names(table) if table.format in (*JSON, "xlsx") else []
    for number, values in read_values(table, column_indices):
        yield number, values if isinstance(values, Drop) else _texts_only(values, names)


def _texts_only(values: Sequence[Any], names: Sequence[str]) -> Fields | Drop:
    for value in values:
        if value is not None and type(value) not in (str, int):
            kind = type(value).__name__
            return Drop(Reason.BAD_RECORD, f"{value!a:.80} is {kind}, want text or a whole number")
    return [None if value is None else str(value) for value in values]


Values = tuple[int, list[Any] | Drop]
"""The line of a row (of Parquet, Excel and a JSON list its number, all from 1), and its values."""


def read_values(table: TableFile, column_indices: Sequence[int]) -> Iterator[Values]:
    """Yields each row's values at ``column_indices`` as the file has them, or a Drop.

    Values of CSV and TSV are texts; of other formats also numbers, booleans, bytes, lists and
    objects. Memory: a batch of rows.
    """
    if table.format == "parquet":
        yield from _parquet_values(table.path, column_indices)
    elif table.format in JSON:
        names = column_names(table)
        selected = [names[index] for index in column_indices]
        for number, values in json_values(table.path, table.format, selected):
            yield number, values if isinstance(values, Drop) else _readable(values)
    elif table.format == "xlsx":
        rows = sheet_rows(table.path, table.sheet)
        if table.header:
            next(rows, None)
        for number, row in rows:  # Excel stores no cells after a row's last one
            yield number, [row[i] if i < len(row) else None for i in column_indices]
    else:
        yield from _text_values(table, column_indices)


def _text_values(table: TableFile, column_indices: Sequence[int]) -> Iterator[Values]:
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


def count_rows(rows: Iterable[object]) -> Iterator[int]:
    """Yields running counts, one every thousand rows; the last one is exact."""
    count = 0
    for _ in rows:
        count += 1
        if count % BATCH_ROWS == 0:
            yield count
    yield count


def _records(table: TableFile, file: BinaryIO) -> Iterator[Row]:
    read = tsv_records if table.format == "tsv" else csv_records
    lines = Lines(file, table.path, table.encoding)
    for _ in range(table.skip):
        lines.take()
    return read(lines, table.delimiter)


def _readable(fields: list[Any]) -> list[Any] | Drop:
    """Replaces lone surrogates, which represent bytes that could not be decoded in a field."""
    for field in fields:
        if isinstance(field, str) and not field.isascii():
            try:
                field.encode()
            except UnicodeEncodeError:
                return Drop(Reason.BAD_ENCODING, f"bytes of another encoding: {field!a}")
    return fields


# Parquet


def _open_parquet(path: Path) -> Any:
    try:
        return pq.ParquetFile(readable(path))
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"--input {path} is no readable Parquet file: {reason}") from None


def _parquet_values(path: Path, column_indices: Sequence[int]) -> Iterator[Values]:
    number = 0
    with _open_parquet(path) as file:
        names = [file.schema_arrow.names[index] for index in column_indices]
        try:
            limit = limit_batch_rows(path, BATCH_ROWS)
            for batch in file.iter_batches(limit, columns=list(dict.fromkeys(names))):
                require_short_texts(path, batch)
                columns = [_values(batch.column(name)) for name in names]
                for fields in zip(*columns, strict=True):
                    number += 1
                    yield number, _readable([*fields])
        except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"--input {path} is damaged after row {number}: {reason}") from None


def _check_types(path: Path, column_indices: Sequence[int]) -> None:
    """Raises InputError unless these columns are texts or whole numbers."""
    with _open_parquet(path) as file:
        schema = file.schema_arrow
    for index in column_indices:
        kind = schema.field(index).type
        inner = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not _is_text(inner) and not pa.types.is_integer(inner):
            raise InputError(
                f"--input {path}: the column {schema.names[index]} is {kind}; want text or whole "
                "numbers, one a row"
            )


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _values(column: pa.Array) -> list[Any]:
    """Returns a column's values; bytes of a text that are not UTF-8 become lone surrogates."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not _is_text(column.type):
        values: list[Any] = column.to_pylist()
        return values
    texts = column.cast(pa.large_binary()).to_pylist()
    return [None if v is None else v.decode("utf-8", "surrogateescape") for v in texts]
