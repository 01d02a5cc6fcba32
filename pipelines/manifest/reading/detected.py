"""Detects how the columns of a text file are separated, and its encoding.

A guess that could be wrong is refused: the caller prints the values, and flags override them.
"""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

from vlmill.pipelines.manifest.reading.lines import BOM, UTF16
from vlmill.pipelines.manifest.reading.rows import TableFile, column_names
from vlmill.schemas.errors import InputError

DELIMITERS = (",", "\t", ";", "|")
NAMES = {",": "comma", "\t": "tab", ";": "semicolon", "|": "vertical bar", " ": "space"}
SAMPLE_BYTES = 4 << 20
_HIGH = re.compile(rb"[\x80-\xff]+")
_SEP_LINE = re.compile(r"sep=(.)[\r\n]*", re.IGNORECASE)


def detect_encoding(path: Path) -> str:
    """Returns utf-8, utf-16 (by its byte order mark) or cp1252 (Western European).

    A file with some broken lines among valid UTF-8 is UTF-8, and so is a file of ASCII with at most
    one broken line in ten. Raises InputError for a file that is
    neither, such as one in an Asian or Cyrillic encoding: these cannot be distinguished safely.
    """
    with path.open("rb") as file:
        sample = file.read(SAMPLE_BYTES)
    if sample.startswith(UTF16):
        return "utf-16"
    lines = [line for line in sample.removeprefix(BOM).split(b"\n")[:-1] if not line.isascii()]
    if len(sample) < SAMPLE_BYTES:
        lines += [line for line in sample.split(b"\n")[-1:] if not line.isascii()]
    broken = [line for line in lines if not _is_utf8(line)]
    if 2 * len(broken) <= len(lines):
        return "utf-8"
    runs = [run for line in broken for run in _HIGH.findall(line)]
    single = sum(len(run) == 1 for run in runs)
    undefined = any(byte in run for run in runs for byte in b"\x81\x8d\x8f\x90\x9d")
    if undefined or 2 * single < len(runs):
        if 10 * len(broken) <= sample.count(b"\n"):
            return "utf-8"
        raise InputError(
            f"--input {path} is not UTF-8; name its encoding, such as --encoding gb18030, "
            "shift_jis, cp1251 or cp1252"
        )
    return "cp1252"


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def detect_delimiter(
    table: TableFile, columns: Sequence[str], usual: Sequence[Sequence[str]] = ()
) -> TableFile:
    """Returns the table with the separator by which its header has all ``columns``, and a name of
    each list in ``usual``.

    That of its format has precedence. If the header has only some of these, one by which it
    has any of them. Otherwise the table is returned unchanged. A first line ``sep=;``, which Excel
    writes and reads, names the separator.
    """
    first = "".join(_fields(dataclasses.replace(table, delimiter="\0")))
    if (match := _SEP_LINE.fullmatch(first.lstrip("\ufeff"))) is not None:
        return dataclasses.replace(table, delimiter=match[1], skip=1)
    choices = [*((name,) for name in columns), *usual]
    best, most = table, len(_fields(table))
    for delimiter in dict.fromkeys((table.delimiter, *DELIMITERS)):
        # The format csv is quoted; a file of tabs in its name may have commas and quotes.
        format = table.format if delimiter == table.delimiter else "csv"
        tried = dataclasses.replace(table, delimiter=delimiter, format=format)
        fields = _fields(tried)
        found = sum(not set(names).isdisjoint(fields) for names in choices)
        if found == len(choices):
            return tried
        if most < 2 and len(fields) > 1 and found:
            best, most = tried, len(fields)
    return best


def _fields(table: TableFile) -> list[str]:
    try:
        return column_names(table)
    except InputError:
        return []


def format_detected(table: TableFile, given: TableFile) -> str | None:
    """Returns a line about detected values that differ from ``given``, None if nothing does."""
    parts = []
    if table.delimiter != given.delimiter:
        name = NAMES.get(table.delimiter, repr(table.delimiter))
        parts.append(f"columns separated by {name} (--delimiter overrides)")
    if table.encoding != given.encoding:
        parts.append(f"encoding {table.encoding} (--encoding overrides)")
    if table.format != given.format:
        parts.append(f"format {table.format} (--format overrides)")
    return f"{table.path.name}: {', '.join(parts)}" if parts else None
