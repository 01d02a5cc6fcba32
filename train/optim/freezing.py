"""Selects parameters by names of a model's parts, with numbers of layers: ``layers.0-5``."""

import re
from collections.abc import Iterable, Sequence

from vlmill.runtime.console.merged_names import merge_names
from vlmill.schemas.errors import InputError

NUMBERS = re.compile(r"(\d+)-(\d+)")


def is_frozen(name: str, parts: Sequence[str]) -> bool:
    """Returns whether a parameter is in one of ``parts``: successive parts of its dotted name, of
    which a number may be a range (``layers.0-5``, ``text_embedding``, ``layers.3.attention``).
    """
    path = name.split(".")
    return any(_matches(path, part.split(".")) for part in parts)


def _matches(path: Sequence[str], part: Sequence[str]) -> bool:
    return any(
        all(map(_is_same, path[start : start + len(part)], part))
        for start in range(len(path) - len(part) + 1)
    )


def _is_same(actual: str, expected: str) -> bool:
    if match := NUMBERS.fullmatch(expected):
        return actual.isdigit() and int(match[1]) <= int(actual) <= int(match[2])
    return actual == expected


def require_parts(names: Iterable[str], parts: Sequence[str]) -> None:
    """Raises InputError for a part that no parameter is in, and if all parameters are frozen."""
    names = list(names)
    for part in parts:
        if not any(is_frozen(name, [part]) for name in names):
            known = merge_names(dict.fromkeys(_module(name) for name in names))
            raise InputError(
                f"freeze: {part} is not a part of the model; it has {', '.join(known)}"
            )
    if parts and all(is_frozen(name, parts) for name in names):
        raise InputError(f"freeze={list(parts)} leaves nothing to train; omit a part")


def _module(name: str) -> str:
    """Returns the part that a user would freeze: up to the number of a layer, or the module."""
    path = name.split(".")
    number = next((i for i, part in enumerate(path) if part.isdigit()), None)
    return ".".join(path[:-1] or path if number is None else path[: number + 1])
