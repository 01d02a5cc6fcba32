"""Reads indexes of archives: the locations of records, as CDX lines or as a table.

The formats are CDX with its header of field letters, CDXJ (a key, a time, a JSON object), plain
JSON lines as returned by index servers, each also as .gz, and Parquet as in Common Crawl's
columnar index.
"""

import gzip
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from vlmill.runtime.files.text_sizes import limit_batch_rows
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import parse_json

IndexEntry = tuple[str, int, int]
"""A record: its archive's name, its offset and its length there, in bytes."""
Ranges = npt.NDArray[np.int64]
"""int64 [n, 2]: offsets and lengths of an archive's records, ascending, each once."""

MAX_LINE_BYTES = 1 << 20
MOST_BYTES = 1 << 40  # of an archive
# Parquet's columns, as an index may call them; Common Crawl's names first.
COLUMNS = (
    ("warc_filename", "filename", "file"),
    ("warc_record_offset", "offset"),
    ("warc_record_length", "length"),
)
LETTERS = ("g", "V", "S")  # of CDX: file name, offset, length; both compressed
WITHOUT_HEADER = "N b a m s k r M S V g"


@dataclass(frozen=True, kw_only=True)
class Index:
    """Holds the records of an index by their archives."""

    ranges: dict[str, Ranges]

    def count_bytes(self, archive: str) -> int:
        """Returns how many bytes the records of an archive have."""
        return int(self.ranges[archive][:, 1].sum())

    def rename_archives(self, get_path: Callable[[str], str]) -> "Index":
        """Returns the same records with other archive names; two archives may become one."""
        parts: dict[str, list[Ranges]] = {}
        for name, ranges in self.ranges.items():
            parts.setdefault(get_path(name), []).append(ranges)
        return Index(
            ranges={path: np.unique(np.concatenate(part), axis=0) for path, part in parts.items()}
        )


def read_index(paths: Sequence[Path], argument: str) -> Index:
    """Reads whole indexes. Memory: 20 bytes a record, and the names of the archives.

    Raises InputError, beginning with ``argument``, for a file that is not an index, and for an
    index without a record.
    """
    names: dict[str, int] = {}
    numbers, offsets, lengths = array("i"), array("q"), array("q")
    for path in paths:
        for name, offset, length in read_entries(path, argument):
            numbers.append(names.setdefault(name, len(names)))
            offsets.append(offset)
            lengths.append(length)
    if not numbers:
        raise InputError(f"{argument}: it has no records; give an index with records")
    archive = np.frombuffer(numbers, np.int32)
    entry_ranges = np.stack([np.frombuffer(a, np.int64) for a in (offsets, lengths)], axis=1)
    order = np.lexsort((entry_ranges[:, 1], entry_ranges[:, 0], archive))
    archive, entry_ranges = archive[order], entry_ranges[order]
    parts = np.split(entry_ranges, np.searchsorted(archive, np.arange(1, len(names))))
    return Index(
        ranges={name: np.unique(part, axis=0) for name, part in zip(names, parts, strict=True)}
    )


def read_entries(path: Path, argument: str) -> Iterator[IndexEntry]:
    """Yields the records of one index."""
    try:
        with path.open("rb") as file:
            head = file.read(4)
        if head == b"PAR1":
            yield from _rows(path, argument)
            return
        with gzip.open(path) if head[:2] == b"\x1f\x8b" else path.open("rb") as lines:
            yield from _lines(lines, f"{argument} {path}")  # type: ignore[arg-type]
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        raise InputError(
            f"{argument} {path}: {error}; give an index as CDX lines or Parquet"
        ) from None


def _rows(path: Path, argument: str) -> Iterator[IndexEntry]:
    file = pq.ParquetFile(path)
    there = file.schema_arrow.names
    columns = [next((name for name in names if name in there), None) for names in COLUMNS]
    if None in columns:
        column_names = ", ".join(" or ".join(names) for names in COLUMNS)
        raise InputError(f"{argument} {path}: it lacks a column; needed are {column_names}")
    row = 0
    for batch in file.iter_batches(limit_batch_rows(path, 65_536), columns=columns):
        for values in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
            row += 1
            yield _make_entry(values, f"{argument} {path}, row {row}")


def _lines(file: BinaryIO, location: str) -> Iterator[IndexEntry]:
    letters = WITHOUT_HEADER.split()
    number = 0
    while line := file.readline(MAX_LINE_BYTES):
        number += 1
        text = line.decode("utf-8", "surrogateescape").strip()
        if text.startswith("CDX "):
            letters = text.split()[1:]
        elif text:
            values = _json_fields(text) if "{" in text else _fields(text, letters)
            yield _make_entry(values, f"{location}, line {number}")


def _json_fields(text: str) -> Sequence[Any]:
    try:
        fields = parse_json(text[text.index("{") :])
    except (ValueError, RecursionError):
        return (None, None, None)
    return [fields.get(name) for name in ("filename", "offset", "length")]


def _fields(text: str, letters: Sequence[str]) -> Sequence[Any]:
    fields = dict(zip(letters, text.split(), strict=False))
    return [fields.get(letter) for letter in LETTERS]


def _make_entry(values: Sequence[object], location: str) -> IndexEntry:
    name, offset, length = values
    numbers = [_number(value) for value in (offset, length)]
    if not isinstance(name, str) or not name or "\0" in name or None in numbers:
        raise InputError(f"{location}: it does not name an archive, offset and length")
    start, size = (int(number or 0) for number in numbers)
    if not size:
        raise InputError(f"{location}: the record of {name} at {start} has no length")
    return name, start, size


def _number(value: object) -> int | None:
    text = str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdigit()) or len(text) > 13:
        return None
    return int(text) if int(text) < MOST_BYTES else None


def coalesce_ranges(
    ranges: Ranges, *, gap_bytes: int, most_bytes: int
) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """Yields (start, stop, records) for each range that is read in one request.

    Records close to each other are read together, up to ``most_bytes``; a longer record is read
    alone.
    """
    members: list[tuple[int, int]] = []
    start = stop = 0
    for offset, length in ranges.tolist():
        end = max(stop, offset + length)
        if members and (offset - stop > gap_bytes or end - start > most_bytes):
            yield start, stop, members
            members = []
        if not members:
            start, end = offset, offset + length
        members.append((offset, length))
        stop = end
    if members:
        yield start, stop, members
