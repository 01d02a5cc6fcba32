"""Reads records of JSON: one object per line, a list of objects, or an object that holds them.

A key of a nested object is a column, too: ``image.file_name``.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from vlmill.pipelines.manifest.reading.lines import json_lines
from vlmill.pipelines.manifest.reading.sources import Source
from vlmill.pipelines.manifest.reading.streams import JsonLists
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason
from vlmill.schemas.splits import find_use

FIRST_RECORDS = 1_000  # their keys are the columns: some records may lack a key
LIST_NAMES = ("data", "annotations", "questions", "examples", "samples", "items", "rows", "records")
HEAD_BYTES = 1 << 16
_ANY: frozenset[str] = frozenset()

Record = tuple[int, dict[str, Any] | Drop]
"""The line of a record (of a list its number, both from 1), and its object."""


def json_format(path: Path) -> str:
    """Returns ``json`` for a list or an object, ``jsonl`` for an object per line, by content."""
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()
    first, _, remaining = head.partition(b"\n")
    one_line = first.rstrip().endswith(b"}")
    return "jsonl" if one_line and remaining.lstrip().startswith(b"{") else "json"


def json_records(path: Path, format: str) -> Iterator[Record]:
    """Yields the records of a file. Raises InputError for broken JSON of a list."""
    source = Source(path=path, name=path.name, size=path.stat().st_size)
    if format == "jsonl":
        for number, record in json_lines(source, _ANY):
            if isinstance(record, Drop) and record.reason is Reason.BAD_ROW:
                record = Drop(Reason.BAD_RECORD, record.detail)
            yield number + 1, record
        return
    for number, element in enumerate(_elements(JsonLists(source=source, nan_is_null=True)), 1):
        if isinstance(element, dict):
            yield number, element
        else:
            kind = type(element).__name__
            yield number, Drop(Reason.BAD_RECORD, f"{kind} where a JSON object is expected")


def _elements(lists: JsonLists) -> Iterator[Any]:
    """Yields the elements of a list, of the list of an object, of its lists by split, or the
    object's values with their names as ``key``.
    """
    if lists.is_list():
        yield from lists.elements()
        return
    members = lists.members()
    if {"images", "annotations"} <= set(members):
        raise InputError(
            f"--input {lists.source.display_name} has COCO's layout (images, annotations): use "
            "`manifest coco-json`"
        )
    if members and all(find_use(name) is not None for name in members):
        for name, element in lists.member_elements(*members):
            yield {"split": name, **element} if isinstance(element, dict) else element
        return
    names = [name for name in LIST_NAMES if name in members]
    if len(names) == 1:
        yield from lists.elements(names[0])
        return
    for name, value in lists.items():
        if not isinstance(value, dict):
            there = ", ".join(members)[:200]
            raise InputError(
                f"--input {lists.source.display_name} is a JSON object with the members {there}; "
                "give a list of objects, or one object per line"
            )
        yield {"key": name, **value}


def json_columns(path: Path, format: str = "jsonl") -> list[str]:
    """Returns the first records' keys, in order of appearance. Raises InputError without any."""
    names: dict[str, None] = {}
    nested: dict[str, None] = {}
    for _, record in islice(json_records(path, format), FIRST_RECORDS):
        if not isinstance(record, Drop):
            names |= dict.fromkeys(record)
            for key, value in record.items():
                if isinstance(value, dict):
                    nested |= dict.fromkeys(f"{key}.{inner}" for inner in value)
    if not names:
        rows = "its first lines are no JSON objects, one per line"
        if format == "json":
            rows = "its list has no objects"
        raise InputError(f"--input {path}: {rows}")
    return [*names, *(name for name in nested if name not in names)]


def json_values(
    path: Path, format: str, names: Sequence[str]
) -> Iterator[tuple[int, list[Any] | Drop]]:
    """Yields the values of these columns of each record, None for each absent key."""
    for number, record in json_records(path, format):
        if isinstance(record, Drop):
            yield number, record
        else:
            yield number, [_value(record, name) for name in names]


def _value(record: Mapping[str, Any], name: str) -> Any:
    if name in record or "." not in name:
        return record.get(name)
    outer, _, inner = name.partition(".")
    value = record.get(outer)
    return _value(value, inner) if isinstance(value, dict) else None
