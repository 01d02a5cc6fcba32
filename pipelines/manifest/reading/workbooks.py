"""Reads the rows of an Excel workbook's sheet, with limits of its unpacked size."""

import datetime
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vlmill.runtime.extras import require_extra
from vlmill.schemas.errors import InputError

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
