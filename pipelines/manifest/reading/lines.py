r"""Reads lines of large published files, one at a time: plain text, JSON, TSV.

Memory is bounded by one line. A broken line is replaced by a Drop and affects no other.
"""

import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from vlmill.pipelines.manifest.reading.json_text import check_depth, json_decoder
from vlmill.pipelines.manifest.reading.sources import Source
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason

MAX_LINE = 1 << 20  # bytes; a line of VCR has some thousand
BOM = b"\xef\xbb\xbf"
UTF16 = (b"\xff\xfe", b"\xfe\xff")


def read_lines(source: Source) -> Iterator[tuple[int, str | Drop]]:
    r"""Yields lines with their numbers from 0, without line ends; only ``\n`` ends a line.

    A line that is too long or is not UTF-8 is a Drop. Raises InputError for a file in UTF-16.
    """
    with source.open() as file:
        number = 0
        while line := file.readline(MAX_LINE + 1):
            if number == 0:
                line = without_mark(line, source.display_name)
            yield number, _line(line, file)
            number += 1


def without_mark(line: bytes, display_name: str) -> bytes:
    """Returns a file's first line without a byte order mark. Raises InputError for UTF-16.

    Most lines of UTF-16 are also valid UTF-8, with a NUL next to each letter.
    """
    if line.startswith(UTF16):
        raise InputError(f"{display_name} is UTF-16: convert it, iconv -f UTF-16 -t UTF-8")
    return line.removeprefix(BOM)


def _line(line: bytes, file: BinaryIO) -> str | Drop:
    if len(line) > MAX_LINE:
        while line and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE)
        return Drop(Reason.TOO_LONG, f"a line of more than {MAX_LINE} bytes")
    try:
        return line.removesuffix(b"\n").removesuffix(b"\r").decode()
    except UnicodeDecodeError as error:
        return Drop(Reason.BAD_ENCODING, f"byte {error.start} of the line is not UTF-8")


def json_lines(
    source: Source, known: frozenset[str]
) -> Iterator[tuple[int, dict[str, Any] | Drop]]:
    """Yields the objects of JSON lines with the lines' numbers from 0, skipping empty lines.

    A line that is not a JSON object is a Drop. Keys that are not ``known`` are recorded.
    """
    decoder = json_decoder(source.remarks)
    for number, line in read_lines(source):
        if isinstance(line, Drop):
            yield number, line
        elif line.strip():
            record = _object(line, decoder)
            if not isinstance(record, Drop):
                source.remarks.check(record, known)
            yield number, record


def _object(line: str, decoder: json.JSONDecoder) -> dict[str, Any] | Drop:
    try:
        value = decoder.decode(line)
        check_depth(value, line, 0, len(line))
    except (ValueError, RecursionError) as error:
        return Drop(Reason.BAD_ROW, f"no JSON: {error}")
    if not isinstance(value, dict):
        return Drop(Reason.BAD_ROW, f"a {type(value).__name__}, expected a JSON object")
    return value


def tsv_rows(source: Source) -> Iterator[tuple[int, list[str] | Drop]]:
    """Yields the fields of a TSV's lines, without any quoting, with the lines' numbers from 0."""
    for number, line in read_lines(source):
        yield number, line if isinstance(line, Drop) else line.split("\t")
