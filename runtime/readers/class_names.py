"""Reads the names of a detector's classes or attributes, in the order of their numbers: a text with
one name per line, the JSON list next to a table of boxes, or scene_graph_benchmark's dictionaries.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlmill.runtime.files.paths import to_path
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import parse_json

NAMES = "names"  # in the producer record of tables whose detector's names are known


def stored_names(producer: Mapping[str, Any]) -> dict[str, list[str]]:
    """Returns the names of the classes and the attributes in a table of regions, by "classes" and
    "attributes"; empty lists if it has none.
    """
    record = producer.get(NAMES)
    names = {}
    for what in ("classes", "attributes"):
        value = record.get(what) if isinstance(record, dict) else None
        is_list = isinstance(value, list) and all(isinstance(name, str) for name in value)
        names[what] = list(value) if is_list and value else []
    return names


def read_names(path: str | Path, flag: str) -> list[list[str]]:
    """Reads the names of each class: synonyms separated by commas, the most common first.

    Empty lines at the end are ignored. Raises InputError for a file that cannot be read.
    """
    return [[name.strip() for name in line.split(",")] for line in read_lines(path, flag)]


def first_names(path: str | None, flag: str) -> list[str]:
    """Reads the usual name of each class; none without a file. Raises InputError."""
    return [] if path is None else [names[0] for names in read_names(path, flag)]


def read_lines(path: str | Path, flag: str) -> list[str]:
    """Reads the line of each class. Raises InputError for a file that cannot be read."""
    file = to_path(path)
    try:
        text = file.read_text(encoding="utf-8").removeprefix("\ufeff")
        lines = parse_json(text) if file.suffix == ".json" else text.rstrip().splitlines()
        if isinstance(lines, dict):
            lines = names_of_dictionary(lines, "attribute" if "attributes" in flag else "label")
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            raise ValueError("no list of names")
    except (OSError, ValueError) as error:
        raise InputError(
            f"{flag} {path}: {error}; give a text file of one name per line, or a JSON list"
        ) from None
    return lines


def names_of_dictionary(dictionaries: Mapping[str, Any], what: str) -> list[str] | None:
    """Returns the names in ``WHAT_to_idx`` of scene_graph_benchmark (VinVL's
    ``VG-SGG-dicts-vgoi6-clipped.json``), which counts from 1; None unless it has all numbers.
    """
    numbers = dictionaries.get(f"{what}_to_idx")
    if not isinstance(numbers, dict) or not all(type(n) is int for n in numbers.values()):
        return None
    names = sorted(numbers, key=numbers.__getitem__)
    return names if [numbers[name] for name in names] == [*range(1, len(names) + 1)] else None


def require_names(
    names: Mapping[str, Sequence[object]], producer: Mapping[str, Any], regions: str
) -> None:
    """Raises InputError if the number of ``names["classes"]`` or ``["attributes"]`` differs from
    the detector of ``regions``; the flags have the same names.
    """
    for what, class_names in names.items():
        require_number(class_names, producer, what, flag=f"--{what}", regions=regions)


def require_number(
    names: Sequence[object], producer: Mapping[str, Any], what: str, *, flag: str, regions: str
) -> None:
    """Raises InputError if the number of names differs from the detector of ``regions``.

    ``what`` is "classes" or "attributes". For regions of other programs the number is not known,
    and no list is refused.
    """
    detector = producer.get("detector")
    number = detector.get(f"num_{what}") if isinstance(detector, dict) else None
    if names and isinstance(number, int) and len(names) != number:
        raise InputError(
            f"{flag} has {len(names)} names, the detector of {regions} {number} {what}; give its "
            f"own list of {what}, one per line, without background"
        )
