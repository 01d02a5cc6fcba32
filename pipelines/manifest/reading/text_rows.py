"""Reads records of CSV and TSV files, quoted as in RFC 4180 or not at all."""

import csv
import io
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from vlmill.pipelines.manifest.reading.lines import without_mark
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason

MAX_LINE = 2**20  # bytes of a line, and of a quoted record of several lines

Fields = list[str | None]
Row = tuple[int, Fields | Drop]
"""The line on which it begins (of Parquet the row, both from 1), and its wanted fields."""


class Readable(Protocol):
    """Reads lines of bytes."""

    def readline(self, size: int = -1, /) -> bytes:
        """Returns a line of at most ``size`` bytes."""


class Utf16Lines:
    """Reads lines of a UTF-16 file as UTF-8; broken units become U+FFFD."""

    def __init__(self, file: BinaryIO) -> None:
        self._text = io.TextIOWrapper(file, encoding="utf-16", errors="replace", newline="\n")

    def readline(self, size: int = -1, /) -> bytes:
        """Returns a line of at most ``size`` characters."""
        return self._text.readline(size).encode()


class Lines:
    """Yields lines with their numbers; lines can be put back. An overlong line becomes None."""

    def __init__(self, file: BinaryIO, path: Path, encoding: str) -> None:
        is_utf16 = encoding.lower().replace("_", "-") == "utf-16"
        self._file: Readable = Utf16Lines(file) if is_utf16 else file
        self._path, self._encoding = path, "utf-8" if is_utf16 else encoding
        self._number = 0
        self._back: deque[tuple[int, str | None]] = deque()

    def take(self) -> tuple[int, str | None] | None:
        """Returns the next line that is not empty, or None at the end."""
        while True:
            line = self._back.popleft() if self._back else self._read()
            if line is None or line[1] is None or line[1].strip("\r\n"):
                return line

    def take_any(self) -> tuple[int, str | None] | None:
        """Returns the next line; inside a quoted field empty lines are text."""
        return self._back.popleft() if self._back else self._read()

    def give_back(self, lines: Sequence[tuple[int, str | None]]) -> None:
        """Puts lines back, in front of the remaining ones."""
        self._back.extendleft(reversed(lines))

    def _read(self) -> tuple[int, str | None] | None:
        line = self._file.readline(MAX_LINE + 1)
        if not line:
            return None
        self._number += 1
        if self._number == 1:
            line = without_mark(line, f"--input {self._path}")
        if len(line) > MAX_LINE:
            while line and not line.endswith(b"\n"):
                line = self._file.readline(MAX_LINE)
            return self._number, None
        return self._number, line.decode(self._encoding, "surrogateescape")


_TOO_LONG = Drop(Reason.TOO_LONG, f"a line of more than {MAX_LINE} bytes")


def refuse_surrogates(fields: list[Any]) -> list[Any] | Drop:
    """Returns the fields, or a Drop if a text has lone surrogates: bytes that were not decoded."""
    for field in fields:
        if isinstance(field, str) and not field.isascii():
            try:
                field.encode()
            except UnicodeEncodeError:
                return Drop(Reason.BAD_ENCODING, f"bytes in another encoding: {field!a}")
    return fields


def tsv_records(lines: Lines, delimiter: str) -> Iterator[Row]:
    """Cuts lines at the delimiter, without any quoting: a caption may begin with a quote."""
    while (line := lines.take()) is not None:
        number, text = line
        yield number, _TOO_LONG if text is None else [*text.rstrip("\r\n").split(delimiter)]


def csv_records(lines: Lines, delimiter: str) -> Iterator[Row]:
    """Reads records quoted as in RFC 4180; a quote that is never closed loses only its line."""
    width = None
    while (line := lines.take()) is not None:
        number, text = line
        if text is None:
            yield number, _TOO_LONG
            continue
        pulled = [line]
        try:
            fields = next(csv.reader(_pull(lines, pulled), delimiter=delimiter, strict=True))
        except csv.Error as error:
            # A quote that is never closed: only this line is lost, not the lines that were read to
            # find the quote's end.
            lines.give_back(pulled[1:])
            yield number, Drop(Reason.BAD_RECORD, _describe(error))
            continue
        width = width or len(fields)
        if len(pulled) > 1 and len(fields) != width:  # closed by the quote of a later row
            lines.give_back(pulled[1:])
            yield number, Drop(Reason.BAD_RECORD, "a quotation mark that does not end in its row")
        else:
            yield number, [*fields]


def _describe(error: csv.Error) -> str:
    """Returns the text of an error, without the advice that the csv module gives programmers."""
    if "new-line character" in str(error):
        return "a carriage return outside quotation marks; lines end with LF or CR LF"
    return str(error)


def _pull(lines: Lines, pulled: list[tuple[int, str | None]]) -> Iterator[str]:
    """Yields one record's lines as csv requests them, and appends them to ``pulled``."""
    size = 0
    text = pulled[0][1]
    while text is not None and (size := size + len(text)) <= MAX_LINE:
        yield text
        line = lines.take_any()
        if line is None:
            return
        pulled.append(line)
        text = line[1]
