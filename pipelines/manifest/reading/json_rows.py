"""Rows of JSON lines, whose objects' keys are columns; a line that is none costs no other."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from vlmill.pipelines.manifest.reading.lines import json_lines
from vlmill.pipelines.manifest.reading.sources import Source
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason

FIRST_LINES = 1_000  # whose keys are the columns: a key may be absent from some
_ANY: frozenset[str] = frozenset()


def json_columns(path: Path) -> list[str]:
    """The keys of the first lines, in the order in which they come. Raises InputError for none."""
    names: dict[str, None] = {}
    for _, record in islice(json_lines(_source(path), _ANY), FIRST_LINES):
        if not isinstance(record, Drop):
            names |= dict.fromkeys(record)
    if not names:
        raise InputError(f"--input {path}: its first lines are no JSON objects, one a line")
    return list(names)


def json_rows(path: Path, names: Sequence[str]) -> Iterator[tuple[int, list[str | None] | Drop]]:
    """The values under these keys with their lines' numbers from 1; absent ones are None.

    A list under the first key, that of captions, is a row for each of its texts.
    """
    for number, record in json_lines(_source(path), _ANY):
        if isinstance(record, Drop):
            reason = Reason.BAD_RECORD if record.reason is Reason.BAD_ROW else record.reason
            yield number + 1, Drop(reason, record.detail)
        else:
            yield from (
                (number + 1, _values(item, names)) for item in _expand_record(record, names[0])
            )


def _expand_record(record: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Returns the record for each text of a list under ``name``; of an empty one without a text."""
    value = record.get(name)
    return (
        [record | {name: item} for item in value or [None]] if isinstance(value, list) else [record]
    )


def _values(record: dict[str, Any], names: Sequence[str]) -> list[str | None] | Drop:
    values = [record.get(name) for name in names]
    for name, value in zip(names, values, strict=True):
        if value is not None and type(value) not in (str, int):
            kind = type(value).__name__
            return Drop(Reason.BAD_RECORD, f"{name!a:.80} is {kind}, want text or a whole number")
    return [None if value is None else str(value) for value in values]


def _source(path: Path) -> Source:
    return Source(path=path, name=path.name, size=path.stat().st_size)
