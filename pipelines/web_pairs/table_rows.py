"""Reads tables of (image URL, text, page URL): each row is a page with one image and its text."""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vlmill.pipelines.manifest.reading.columns import IMAGE_URLS, guess_column
from vlmill.pipelines.manifest.reading.detected import detect_delimiter, detect_encoding
from vlmill.pipelines.manifest.reading.parquet_files import check_types, text_names
from vlmill.pipelines.manifest.reading.rows import (
    FORMATS,
    PACKED,
    TableFile,
    column_names,
    find_column_indices,
    read_rows,
    table_file,
)
from vlmill.pipelines.web.archives.reading import BrokenArchive, Record
from vlmill.pipelines.web.pages.described import RowPage
from vlmill.runtime.files.paths import matches, to_path
from vlmill.runtime.files.reading import find_shards
from vlmill.runtime.net.urls import resolve
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import PAIRS

FLAG = "--table"
MOST_CHECKED = 100  # files whose columns are checked before the job starts
# The usual names of columns.
TEXTS = ("text", "TEXT", "caption", "alt", "alt_text")
PAGE_URLS, LANGUAGES = ("page_url", "page"), ("language", "LANGUAGE", "lang")
_CODE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{1,8}){0,4}")
_NO_LANGUAGE = frozenset({"und", "zxx", "mis", "mul", "nan", "na"})  # nan, na: missing values


@dataclass(frozen=True, kw_only=True)
class TableColumns:
    """Names the columns of tables; None: the usual names are tried."""

    image_url: str | None = None
    text: str | None = None
    page_url: str | None = None


NO_COLUMNS = TableColumns()


def find_tables(argument: str) -> list[tuple[str, int]]:
    """Returns the sorted (path, bytes) of the tables in a file, folder or glob.

    Raises InputError if nothing matches.
    """
    path = to_path(argument)
    if path.is_dir() and any(path.glob("pairs-*.parquet")):
        paths = find_shards(path, PAIRS, FLAG)
    elif path.is_dir():
        tables = (p for p in path.iterdir() if p.suffix.lower() in FORMATS and p.is_file())
        paths = sorted(p for p in tables if not p.name.startswith("."))  # the system's
    else:
        paths = [path] if path.is_file() else sorted(matches(argument))
    if folder := next((file for file in paths if file.is_dir()), None):
        raise InputError(f"{FLAG} {argument}: {folder} is a folder; give '{argument}/*'")
    if not paths:
        raise InputError(
            f"{FLAG} {argument}: no such table; give a file, a folder or a quoted glob of "
            f"{', '.join(FORMATS)}"
        )
    return [(str(file), file.stat().st_size) for file in paths]


def require_columns(paths: Sequence[str], columns: TableColumns) -> None:
    """Raises InputError for a file among the first that is not a table or lacks a column."""
    for path in paths[:MOST_CHECKED]:
        _open_table(to_path(path), columns)


def read_table(path: str, columns: TableColumns) -> Iterator[tuple[str, Record | Drop]]:
    """Yields (key, Record or Drop) for each row. Memory: a batch of rows.

    Raises BrokenArchive for a file that cannot be read further.
    """
    try:
        table, indices = _open_table(to_path(path), columns)
        for number, fields in read_rows(table, [i for i in indices if i is not None]):
            key = f"{path}:{number}"
            if isinstance(fields, Drop):
                yield key, fields
                continue
            values = iter(fields)
            row = [None if i is None else next(values) for i in indices]
            yield key, _read_row(row, path, number)
    except (InputError, OSError) as error:
        raise BrokenArchive(str(error).replace("--input", FLAG)) from None


def _read_row(row: Sequence[str | None], path: str, number: int) -> Record | Drop:
    image_url, text, page_url, language = ((value or "").strip() for value in row)
    page = resolve("", page_url) if page_url else ""
    if page is None:
        return Drop(Reason.BAD_URL, f"the page's: {page_url[:200]}")
    image = resolve(page, image_url)
    if image is None:
        return Drop(Reason.BAD_URL, image_url[:200])
    if not text:
        return Drop(Reason.EMPTY_TEXT, image)
    if _CODE.fullmatch(language) is None or language.lower() in _NO_LANGUAGE:
        language = ""  # such as English, unknown or nolang: the text is detected
    described = RowPage(page_url=page, image_url=image, text=text, language=language)
    return Record(archive=path, offset=number, url="", kind="page", described=described)


def _open_table(path: Path, columns: TableColumns) -> tuple[TableFile, list[int | None]]:
    """Returns a table, and the indices of the columns of image, text, page and language.

    The last two may be absent. Numbers as names refer to a file without a header. Raises
    InputError.
    """
    try:
        table = _detect_table(path, columns)
        return table, _find_columns(table, columns)
    except InputError as error:
        message = str(error).replace("--input", FLAG)
        raise InputError(message if "--" in message else f"{FLAG} {message}") from None


def _detect_table(path: Path, columns: TableColumns) -> TableFile:
    if path.is_file() and path.suffix.lower() not in FORMATS:
        remedy = "unpack it" if path.suffix.lower() in PACKED else "rename it"
        raise InputError(f"{FLAG} {path} ends in none of {', '.join(FORMATS)}; {remedy}")
    if path.is_file() and path.stat().st_size == 0:
        raise InputError(f"{FLAG} {path} is empty; remove it, or give another file")
    table = table_file(path)
    if table.format not in ("csv", "tsv"):
        return table
    named = [name for name in dataclasses.astuple(columns) if name is not None]
    header = not (named and all(name.isdecimal() for name in named))
    try:
        encoding = detect_encoding(path)
    except InputError:
        raise InputError(
            f"{FLAG} {path} is not UTF-8; convert it: iconv -f ENCODING -t UTF-8"
        ) from None
    guessed = ((columns.image_url, IMAGE_URLS), (columns.text, TEXTS))
    return detect_delimiter(
        table_file(path, encoding=encoding, header=header),
        named,
        [usual for name, usual in guessed if name is None],
    )


def _find_columns(table: TableFile, columns: TableColumns) -> list[int | None]:
    names, display_name = column_names(table), f"{FLAG} {table.path}"
    image_url = guess_column(names, IMAGE_URLS, columns.image_url, "--image-column", display_name)
    text = guess_column(names, TEXTS, columns.text, "--text-column", display_name)
    if image_url == text:
        raise InputError(
            f"--text-column {text}: {table.path} has the image URLs in this column; "
            "name another one"
        )
    flags = [("--image-column", image_url), ("--text-column", text)]
    if columns.page_url is not None:
        flags.append(("--page-column", columns.page_url))
    required = find_column_indices(table, flags)
    # A column that nobody named is ignored if it holds something else, such as page numbers.
    texts = text_names(table.files[0]) if table.format == "parquet" else names
    if table.format == "parquet":
        check_types(table.files[0], required)
    found: list[int | None] = [*required]
    if columns.page_url is None:
        found.append(_find_optional(names, texts, PAGE_URLS))
    return [*found, _find_optional(names, texts, LANGUAGES)]


def _find_optional(names: list[str], texts: list[str], usual: Sequence[str]) -> int | None:
    """Returns the index of the first usual name that one column of text has, or None."""
    return next((names.index(name) for name in usual if texts.count(name) == 1), None)
