"""Reads what to fetch: lists of URLs, or with ``--input`` a table of image URLs and captions.

A list is a text file or a column of Parquet. Each line and each row is accounted for. Of an earlier
crawl's tables, ``rejects`` gives the URLs with transient failures, and ``outcomes`` gives all URLs
with the values for conditional requests.
"""

import codecs
import gzip
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from vlmill.pipelines.manifest.cleaning import validate_text
from vlmill.pipelines.manifest.reading.columns import IMAGE_URLS, TEXTS, guess_column
from vlmill.pipelines.manifest.reading.detected import detect_delimiter, detect_encoding
from vlmill.pipelines.manifest.reading.rows import (
    TableFile,
    column_names,
    find_column_indices,
    read_rows,
    table_file,
)
from vlmill.pipelines.web.fetching.answers import TRANSIENT, TRANSIENT_STATUSES
from vlmill.pipelines.web.fetching.entries import FETCHED, NOT_MODIFIED, UrlEntry
from vlmill.pipelines.web.fetching.lines import Line, parse_url_line
from vlmill.pipelines.web.fetching.stages import FETCH_IMAGES, FETCH_LISTED, STAGES
from vlmill.runtime.console.command import print_status
from vlmill.runtime.files.contract import check_file, read_parquet_footer
from vlmill.runtime.files.paths import matches, readable, to_path
from vlmill.runtime.files.reading import find_shards
from vlmill.runtime.files.text_sizes import limit_batch_rows, require_short_texts
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import OUTCOMES, REJECTS

MAX_LINE_BYTES = 64 << 10
COLUMNS = ("url", "URL", "image_url")  # searched in this order
_NOT_ASCII = re.compile(rb"[\x80-\xff]")
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def find_lists(argument: str) -> list[Path]:
    """Returns the files that ``--urls`` names. Raises InputError if no file matches."""
    path = to_path(argument)
    if path.is_dir():
        return find_shards(path, OUTCOMES, "--urls")
    paths = [path] if path.is_file() else matches(argument)
    if not paths:
        raise InputError(f"--urls {argument}: no such file; give a text file, a table or a glob")
    for file in paths:
        if not file.is_file():
            raise InputError(f"--urls {argument}: {file} is not a file; give a file or a glob")
    return paths


def read_lists(paths: Iterable[Path], *, column: str | None, follow: int) -> Iterator[Line]:
    """Yields each line of the lists with its request. Memory: one line, or one batch.

    Raises InputError for a file that cannot be read, or that lacks the column.
    """
    for path in paths:
        if _is_parquet(path):
            yield from _read_table(path, column, follow)
        else:
            for line in text_lines(path):
                yield parse_url_line(line, follow)


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


# Text files.


class Lines(Protocol):
    """Describes a source of bytes, read by line or in parts."""

    def readline(self, size: int, /) -> bytes:
        """Returns the next line, or its first ``size`` bytes."""

    def read(self, size: int, /) -> bytes:
        """Returns the next ``size`` bytes."""


def text_lines(path: Path) -> Iterator[str]:
    """Yields the lines of a text file, gzipped or not, without empty ones.

    Bytes that are not UTF-8 are percent-encoded, as in a browser. A line is cut at
    ``MAX_LINE_BYTES``.
    """
    with path.open("rb") as raw:
        start = raw.read(2)
        raw.seek(0)
        try:
            yield from _lines(gzip.GzipFile(fileobj=raw) if start == b"\x1f\x8b" else raw)
        except (OSError, EOFError, UnicodeError) as error:
            raise InputError(f"--urls {path}: cannot be read to its end ({error})") from None


def _lines(file: Lines) -> Iterator[str]:
    is_first = True
    while line := file.readline(MAX_LINE_BYTES):
        if is_first and line[:2] in _UTF_16:
            yield from _utf_16_lines(line, file)
            return
        if is_first:
            line, is_first = line.removeprefix(b"\xef\xbb\xbf"), False
        is_complete = line.endswith(b"\n") or len(line) < MAX_LINE_BYTES
        if text := _text(line).strip():
            yield text
        while not is_complete and (continuation := file.readline(MAX_LINE_BYTES)):
            is_complete = continuation.endswith(b"\n")


def _utf_16_lines(first: bytes, file: Lines) -> Iterator[str]:
    """Yields the lines of a UTF-16 file, which some Windows programs write, reading it in parts."""
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    text = decoder.decode(first)
    while piece := file.read(MAX_LINE_BYTES):
        *lines, text = (text + decoder.decode(piece)).split("\n")
        text = text[:MAX_LINE_BYTES]
        yield from (line.strip() for line in lines if line.strip())
    yield from (line.strip() for line in text.split("\n") if line.strip())


def _text(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return _NOT_ASCII.sub(lambda byte: b"%%%02X" % byte[0][0], line).decode("ascii")


# Columns of Parquet.


def _read_table(path: Path, column: str | None, follow: int) -> Iterator[Line]:
    metadata = read_parquet_footer(path).metadata or {}
    name = metadata.get(b"vlmill.table", b"").decode("utf-8", "replace")
    if column is None and name == REJECTS.name:
        yield from _read_rejects(path, follow)
    elif column is None and name == OUTCOMES.name:
        yield from _read_outcomes(path, follow)
    else:
        names = pq.read_schema(readable(path)).names
        column = column or next((name for name in COLUMNS if name in names), None)
        if column is None or column not in names:
            column_list = ", ".join(names)[:200]
            raise InputError(
                f"--urls {path}: no column {column or 'url'}; name one of {column_list} by "
                "--url-column"
            )
        for (url,) in _rows(path, [column]):
            if isinstance(url, str) and url.strip():
                yield parse_url_line(url.strip(), follow)
            else:
                yield f"{path.name}: {url!r}"[:200], Drop(Reason.BAD_URL, "empty, or no text")


def _rows(path: Path, columns: list[str]) -> Iterator[tuple[object, ...]]:
    try:
        with pq.ParquetFile(readable(path)) as file:
            limit = limit_batch_rows(path, 10_000)
            for batch in file.iter_batches(batch_size=limit, columns=columns):
                require_short_texts(path, batch)
                values = [batch.column(name).to_pylist() for name in columns]
                yield from zip(*values, strict=True)
    except (OSError, pa.ArrowException, UnicodeError) as error:
        message = (str(error).splitlines() or ["unreadable"])[0]
        raise InputError(f"--urls {path} is damaged: {message}") from None


def _read_rejects(path: Path, follow: int) -> Iterator[Line]:
    check_file(path, REJECTS)
    stages = {stage.name for stage in STAGES[1:]}
    left_out = 0
    for stage, key, reason, detail in _rows(path, ["stage", "key", "reason", "detail"]):
        if stage in stages and may_be_over(str(reason), str(detail)):
            yield parse_url_line(str(key), -1 if stage == FETCH_IMAGES.name else follow)
        else:
            left_out += 1
    if left_out:
        print_status(
            f"--urls {path}: {left_out} rejects are skipped, because they would fail again"
        )


def may_be_over(reason: str, detail: str) -> bool:
    """Returns whether a reject reason is transient, so that a retry of the URL may succeed."""
    if reason == Reason.BAD_STATUS:
        return detail in {str(status) for status in TRANSIENT_STATUSES}
    if reason == Reason.ROBOTS:
        return detail.startswith("robots.txt")
    return reason in TRANSIENT or reason in (Reason.TLS_ERROR, Reason.HOST_LIMIT)


def _read_outcomes(path: Path, follow: int) -> Iterator[Line]:
    check_file(path, OUTCOMES)
    for url, stage, outcome, etag, modified in _rows(
        path, ["url", "stage", "outcome", "etag", "last_modified"]
    ):
        unchanged = outcome in (FETCHED, NOT_MODIFIED)
        entry = UrlEntry(
            url=str(url),
            source=FETCH_LISTED.name,
            follow=-1 if stage == FETCH_IMAGES.name else follow,
            etag=str(etag) if unchanged and etag else None,
            modified=str(modified) if unchanged and modified else None,
        )
        yield str(url), entry


# Tables of image URLs and captions.

_NO_URL = Drop(Reason.BAD_URL, "empty")


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


def open_input(
    path: Path,
    url_column: str | None = None,
    caption_column: str | None = None,
    *,
    format: str | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
) -> TableInput:
    """Finds the columns of a table; None values are detected.

    Raises InputError for a file that is not a table, or lacks a column.
    """
    table = table_file(path, format=format, delimiter=delimiter, encoding=encoding or "utf-8")
    if table.format in ("csv", "tsv") and encoding is None:
        table = replace(table, encoding=detect_encoding(table.path))
    if table.format in ("csv", "tsv") and delimiter is None:
        guessed = ((url_column, IMAGE_URLS), (caption_column, TEXTS))
        table = detect_delimiter(
            table,
            [name for name, _ in guessed if name is not None],
            [usual for name, usual in guessed if name is None],
        )
    names, display_name = column_names(table), f"--input {path}"
    return TableInput(
        table=table,
        url_column=guess_column(names, IMAGE_URLS, url_column, "--url-column", display_name),
        caption_column=guess_column(names, TEXTS, caption_column, "--caption-column", display_name),
    )


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
