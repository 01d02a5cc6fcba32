"""Streams rows of third-party tables: CSV, TSV, JSON lines and Parquet, with any content.

Nothing here raises for a bad row: it is replaced by a :class:`~vlmill.runtime.units.funnel.Drop`
and affects no other row.

The keys of a JSON object are its columns. The first row of an Excel sheet is its header.
"""

import datetime
import difflib
import hashlib
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from vlmill.pipelines.manifest.reading import parquet_files
from vlmill.pipelines.manifest.reading.streams import json_columns, json_format, json_values
from vlmill.pipelines.manifest.reading.text_rows import (
    Fields,
    Lines,
    Row,
    csv_records,
    refuse_surrogates,
    tsv_records,
)
from vlmill.runtime.extras import require_extra
from vlmill.runtime.files.listed import hash_file
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason

ZIP_HEAD, OLE_HEAD = b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
MAX_STRINGS = 512 << 20  # unpacked bytes of the shared texts, which are in memory
MAX_UNPACKED = 8 << 30  # of all members; a sheet is streamed


def is_workbook(path: Path) -> bool:
    """Returns whether a file is an Excel workbook, by its content. Raises InputError for the form
    of Excel 97 to 2003 (.xls).
    """
    with path.open("rb") as file:
        head = file.read(8)
    if head == OLE_HEAD:
        raise InputError(
            f"--input {path} is an old Excel workbook (.xls); save it as .xlsx or as CSV UTF-8"
        )
    if not head.startswith(ZIP_HEAD):
        return False
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            return "xl/workbook.xml" in archive.namelist()
    except (zipfile.BadZipFile, OSError):
        return False


def sheet_rows(path: Path, sheet: str | None) -> Iterator[tuple[int, list[Any]]]:
    """Yields the rows of a sheet (None: the first one) that are not empty, with their numbers.

    Cells are text, whole numbers, other numbers, booleans or None; dates are text in ISO 8601. A
    formula has its stored value. Raises InputError for a broken workbook and an absent sheet.
    """
    require_extra("excel")
    import openpyxl

    _check_size(path)
    with path.open("rb") as file:
        try:
            book = openpyxl.load_workbook(file, read_only=True, data_only=True)
        except Exception as error:  # openpyxl raises many types for a broken workbook
            raise _broken(path, error) from None
        if sheet is not None and sheet not in book.sheetnames:
            names = ", ".join(book.sheetnames)[:300]
            raise InputError(f"--sheet {sheet}: the Excel workbook {path} has {names}")
        worksheet = book[sheet or book.sheetnames[0]]
        worksheet.reset_dimensions()  # some programs write a wrong size
        rows = enumerate(worksheet.iter_rows(values_only=True), 1)
        while True:
            try:
                numbered = next(rows, None)
            except Exception as error:
                raise _broken(path, error) from None
            if numbered is None:
                return
            values = [_cell(value) for value in numbered[1]]
            if any(value is not None for value in values):
                yield numbered[0], values


def _check_size(path: Path) -> None:
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, OSError) as error:
        raise _broken(path, error) from None
    texts = sum(info.file_size for info in infos if "sharedStrings" in info.filename)
    if texts > MAX_STRINGS or sum(info.file_size for info in infos) > MAX_UNPACKED:
        raise InputError(
            f"--input {path}: the Excel workbook unpacks to more than the limit; save it as CSV"
        )


def _broken(path: Path, error: Exception) -> InputError:
    reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
    return InputError(f"--input {path} is not a readable Excel workbook ({reason}); save it again")


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.strip() else None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)


FORMATS = {
    **{".csv": "csv", ".txt": "csv", ".tsv": "tsv", ".tab": "tsv"},
    **{".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl"},
    **{".parquet": "parquet", ".xlsx": "xlsx", ".xlsm": "xlsx"},
}
JSON = ("json", "jsonl")
PACKED = (".gz", ".bz2", ".xz", ".zip", ".zst", ".7z", ".tar")


@dataclass(frozen=True, kw_only=True)
class TableFile:
    """Holds a file of rows and how it is read.

    ``delimiter``, ``encoding`` and ``skip``, the lines before the header, apply to CSV and TSV,
    ``header`` to these and Excel; without a header the columns are 1, 2, 3, ... ``sheet`` is that
    of an Excel workbook, None for its first. ``parts`` are the Parquet files of a folder.
    """

    path: Path
    format: str
    delimiter: str = ","
    encoding: str = "utf-8"
    header: bool = True
    skip: int = 0
    sheet: str | None = None
    parts: tuple[Path, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """Returns the files with the rows, in their order."""
        return self.parts or (self.path,)


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
    if parts := parquet_files.parquet_parts(path):
        if format not in (None, "parquet") or delimiter is not None or not header:
            raise InputError(
                f"--input {path} has Parquet files; leave out --format, --delimiter, --no-header"
            )
        return TableFile(path=path, format="parquet", parts=parts)
    if path.is_dir():
        raise InputError(f"--input {path}: the folder has no Parquet files; give a file")
    if not path.is_file():
        raise InputError(f"--input {path}: no such file; give one that ends in {known}")
    format = _format(path, format)
    if format is None:
        packed = path.suffix.lower() in PACKED
        remedy = "unpack it" if packed else "say --format csv, tsv, json, jsonl, parquet or xlsx"
        raise InputError(f"--input {path}: ends in none of {known}; {remedy}")
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
        raise InputError(f"--sheet {sheet}: --input {path} is no Excel workbook; remove it")
    delimiter = delimiter or ("\t" if format == "tsv" else ",")
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise InputError(
            f"--delimiter {delimiter!r}: expected one character, no quote or line break"
        )
    check_encoding(encoding, delimiter)
    return TableFile(
        path=path, format=format, delimiter=delimiter, encoding=encoding, header=header, sheet=sheet
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
            f"--encoding {encoding}: unknown, or not a superset of ASCII (such as "
            "utf-8, cp1252 and gb18030); convert the file with iconv"
        )


def hash_table(table: TableFile) -> str:
    """Returns the SHA-256 of a file, or of the digests of several."""
    digests = [hash_file(path) for path in table.files]
    return digests[0] if not table.parts else hashlib.sha256("".join(digests).encode()).hexdigest()


def column_names(table: TableFile) -> list[str]:
    """Returns the names of the file's columns. Raises InputError if none can be read."""
    if table.format == "parquet":
        return parquet_files.parquet_names(table.path, table.parts)
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
        raise InputError(f"--input {table.path}: its first line is not a row ({fields.detail})")
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
    columns = " ".join(", ".join(other or "(no name)" for other in names).split())[:400] + (
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
        parquet_files.check_types(table.files[0], column_indices)
    names = column_names(table) if table.format in (*JSON, "xlsx") else []
    for number, values in read_values(table, column_indices):
        yield number, values if isinstance(values, Drop) else _texts_only(values, names)


def _texts_only(values: Sequence[Any], names: Sequence[str]) -> Fields | Drop:
    for value in values:
        if value is not None and type(value) not in (str, int):
            kind = type(value).__name__
            return Drop(
                Reason.BAD_RECORD, f"{value!a:.80} is {kind}, expected text or a whole number"
            )
    return [None if value is None else str(value) for value in values]


Values = tuple[int, list[Any] | Drop]
"""The line of a row (of Parquet, Excel and a JSON list its number, all from 1), and its values."""


def read_values(table: TableFile, column_indices: Sequence[int]) -> Iterator[Values]:
    """Yields each row's values at ``column_indices`` as the file has them, or a Drop.

    Values of CSV and TSV are texts; of other formats also numbers, booleans, bytes, lists and
    objects. Memory: a batch of rows.
    """
    if table.format == "parquet":
        yield from parquet_files.parquet_values(table.path, table.parts, column_indices)
    elif table.format in JSON:
        names = column_names(table)
        selected = [names[index] for index in column_indices]
        for number, values in json_values(table.path, table.format, selected):
            yield number, values if isinstance(values, Drop) else refuse_surrogates(values)
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
                yield number, refuse_surrogates([fields[index] for index in column_indices])


def count_rows(rows: Iterable[object]) -> Iterator[int]:
    """Yields running counts, one every thousand rows; the last one is exact."""
    count = 0
    for _ in rows:
        count += 1
        if count % parquet_files.BATCH_ROWS == 0:
            yield count
    yield count


def _records(table: TableFile, file: BinaryIO) -> Iterator[Row]:
    read = tsv_records if table.format == "tsv" else csv_records
    lines = Lines(file, table.path, table.encoding)
    for _ in range(table.skip):
        lines.take()
    return read(lines, table.delimiter)
