"""Reads ``--input``: a table with a column of image URLs and one of captions."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from vlmill.pipelines.manifest.cleaning import validate_text
from vlmill.pipelines.manifest.reading.columns import TEXTS, guess_column
from vlmill.pipelines.manifest.reading.detected import detect_delimiter, detect_encoding
from vlmill.pipelines.manifest.reading.rows import (
    TableFile,
    column_names,
    find_column_indices,
    hash_table,
    read_rows,
    table_file,
)
from vlmill.pipelines.web.fetching.entries import UrlEntry
from vlmill.pipelines.web.fetching.lines import Line, parse_url_line
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason

URL_COLUMNS = ("url", "URL", "image_url")


@dataclass(frozen=True, kw_only=True)
class TableInput:
    """Holds the table, and the names of its columns of URLs and captions."""

    table: TableFile
    url_column: str
    caption_column: str

    @property
    def name(self) -> str:
        """Returns the file's name without its ending, with which image ids begin."""
        return self.table.path.name.partition(".")[0] or "table"

    @property
    def digest(self) -> str:
        """Returns the SHA-256 of the table."""
        return hash_table(self.table)


def open_input(path: Path, url_column: str | None, caption_column: str | None) -> TableInput:
    """Finds the columns of a table. Raises InputError for one that is not a table, or lacks one."""
    table = table_file(path)
    if table.format in ("csv", "tsv"):
        table = replace(table, encoding=detect_encoding(table.path))
        names = [name for name in (url_column, caption_column) if name is not None]
        table = detect_delimiter(table, names or [_first_usual(table)])
    names, display_name = column_names(table), f"--input {path}"
    return TableInput(
        table=table,
        url_column=guess_column(names, URL_COLUMNS, url_column, "--url-column", display_name),
        caption_column=guess_column(names, TEXTS, caption_column, "--caption-column", display_name),
    )


def _first_usual(table: TableFile) -> str:
    """Returns the usual name of a column of URLs that the first line of a text file has."""
    with table.path.open("rb") as file:
        line = file.readline(1 << 16).decode(table.encoding, "replace")
    return next((name for name in URL_COLUMNS if name in line), URL_COLUMNS[0])


def read_input(source: TableInput) -> Iterator[Line]:
    """Yields the request of each row, with its number from 0 and its caption; or why it is dropped.

    Memory: a batch of rows.
    """
    names = (("--url-column", source.url_column), ("--caption-column", source.caption_column))
    indices = find_column_indices(source.table, names)
    for row, (number, fields) in enumerate(read_rows(source.table, indices)):
        key = f"{source.table.path.name}:{number}"
        if isinstance(fields, Drop):
            yield key, fields
            continue
        url, text = (field or "" for field in fields)
        caption = validate_text(text)
        if isinstance(caption, Drop):
            yield key, caption
            continue
        line, entry = parse_url_line(url.strip(), -1) if url.strip() else (key, _NO_URL)
        if isinstance(entry, UrlEntry):
            entry = UrlEntry(url=entry.url, source=entry.source, caption=(row, caption))
        yield line, entry


_NO_URL = Drop(Reason.BAD_URL, "empty")
