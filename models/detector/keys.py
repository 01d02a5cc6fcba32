"""Reads values of other projects' configurations: what a key may hold, and which of our fields it
sets.

A key's value is plain data, as a YAML file gives it. The functions here make the readers of values
of which :mod:`~vlmill.models.detector.configurations` makes its tables.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Value = Any  # plain: None, bool, int, float, str, or a list of them
Reader = Callable[[Value], Any]  # raises ValueError that says what it expects

# The value of a key without a default that the configuration leaves out.
MISSING = object()


class WrongKey(ValueError):
    """Is raised for a key of a configuration that cannot be honoured: which, what it holds, what it
    should.
    """

    def __init__(self, key: str, value: Value, expected: str) -> None:
        super().__init__(f"{key} is {format_value(value)}; expected {expected}")
        self.key = key


@dataclass(frozen=True)
class Key:
    """Describes one key: its library's default and how its value becomes fields of
    ``DetectorConfig``.
    """

    default: Value
    read: Reader
    fields: tuple[str, ...]  # which take the value that was read; of several each takes one

    def values(self, name: str, value: Value) -> dict[str, Any]:
        """Returns the fields that a value sets. Raises WrongKey for one that the key may not
        have.
        """
        try:
            if value is MISSING:
                raise ValueError("a value, for the library has no default")
            parsed = self.read(value)
        except ValueError as error:
            raise WrongKey(name, value, str(error)) from None
        if len(self.fields) > 1:
            return dict(zip(self.fields, parsed, strict=True))
        return dict.fromkeys(self.fields, parsed)


def format_value(value: Value) -> str:
    """Returns a value in one short line."""
    text = "missing" if value is MISSING else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def flag(value: Value) -> bool:
    """Reads true or false."""
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def flagged_stages(value: Value) -> tuple[int, ...]:
    """Reads true or false for each of res2 to res5; gives the numbers of those that are true."""
    if not isinstance(value, list) or len(value) != 4:
        raise ValueError("true or false for each of res2 to res5")
    return tuple(number for number, item in enumerate(value, start=2) if flag(item))


def integer(low: int, high: int) -> Reader:
    """Makes a reader of whole numbers from ``low`` to ``high``."""

    def read(value: Value) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return value

    return read


def number(low: float, high: float) -> Reader:
    """Makes a reader of numbers from ``low`` to ``high``."""

    def read(value: Value) -> float:
        try:  # YAML takes 1e-3, without a dot, for a text
            parsed = math.nan if isinstance(value, bool | list) else float(value)
        except (TypeError, ValueError, OverflowError):
            parsed = math.nan
        if not low <= parsed <= high:
            raise ValueError(f"a number from {low:g} to {high:g}")
        return parsed

    return read


def numbers(count: int, low: float, high: float) -> Reader:
    """Makes a reader of ``count`` numbers in a list."""
    read_number = number(low, high)

    def read(value: Value) -> tuple[float, ...]:
        if not isinstance(value, list) or len(value) != count:
            raise ValueError(f"{count} numbers from {low:g} to {high:g}")
        return tuple(read_number(item) for item in value)

    return read


def one_level(low: float, high: float, max_count: int, factor: float = 1.0) -> Reader:
    """Makes a reader of ``[[a, b, ...]]``: a list for each feature map, of which C4 has one."""
    read_number = number(low, high)

    def read(value: Value) -> tuple[float, ...]:
        if not isinstance(value, list) or len(value) != 1 or not isinstance(value[0], list):
            raise ValueError("one list in a list, for the one feature map of a C4 model")
        if not 1 <= len(value[0]) <= max_count:
            raise ValueError(f"1 to {max_count} numbers for the feature map")
        return tuple(factor * read_number(item) for item in value[0])

    return read


def each_level(strides: Sequence[int], low: float, high: float, max_count: int) -> Reader:
    """Makes a reader of ``[[a], [b], ...]``: as many numbers for each map of a pyramid, in cells
    of its stride.
    """
    read_numbers = each(number(low, high), max_count)

    def read(value: Value) -> tuple[float, ...]:
        if not isinstance(value, list) or len(value) != len(strides):
            raise ValueError(f"{len(strides)} lists, one for each feature map")
        levels = [read_numbers(level) for level in value]
        if len({len(level) for level in levels}) > 1:
            raise ValueError("as many numbers for each feature map")
        pairs = zip(levels, strides, strict=True)
        return tuple(size / stride for level, stride in pairs for size in level)

    return read


def lookup(choices: Mapping[Any, Any]) -> Reader:
    """Makes a reader of the keys of ``choices``, which gives what they stand for."""

    def read(value: Value) -> Any:
        # True == 1 in Python, and is no choice where 1 is one.
        if isinstance(value, list) or not any(
            value == choice and type(value) is type(choice) for choice in choices
        ):
            raise ValueError(" or ".join(repr(choice) for choice in choices))
        return choices[value]

    return read


def only(choice: Value, why: str) -> Reader:
    """Makes a reader of the one value that can be honoured."""

    def read(value: Value) -> None:
        if value != choice or type(value) is not type(choice):
            raise ValueError(f"{choice!r} ({why})")

    return read


def either(*readers: Reader) -> Reader:
    """Makes a reader of what one of ``readers`` takes, the first that does."""

    def read(value: Value) -> Any:
        expected = []
        for reader in readers:
            try:
                return reader(value)
            except ValueError as error:
                expected.append(str(error))
        raise ValueError(" or ".join(expected))

    return read


def each(reader: Reader, max_count: int) -> Reader:
    """Makes a reader of lists of 1 to ``max_count`` values that ``reader`` takes."""

    def read(value: Value) -> tuple[Any, ...]:
        if not isinstance(value, list) or not 1 <= len(value) <= max_count:
            raise ValueError("a list of one" if max_count == 1 else f"a list of 1 to {max_count}")
        return tuple(reader(item) for item in value)

    return read


def as_tuple(reader: Reader) -> Reader:
    """Makes a reader that puts a single value into a tuple."""
    return lambda value: (reader(value),)


def single(reader: Reader) -> Reader:
    """Makes a reader of lists of one value."""
    return lambda value: each(reader, 1)(value)[0]


def less_one(reader: Reader) -> Reader:
    """Makes a reader of a count that has one too many: background."""
    return lambda value: reader(value) - 1


def sets(field: str, default: Value, reader: Reader) -> Key:
    """Describes a key that sets one field."""
    return Key(default, reader, (field,))


def without(keys: Mapping[str, Key], *names: str) -> dict[str, Key]:
    """Returns a table without some of its keys."""
    assert keys.keys() >= set(names)
    return {name: key for name, key in keys.items() if name not in names}


def asks(default: Value, choice: Value, why: str) -> Key:
    """Describes a key that sets nothing, and has but one value that can be honoured."""
    return Key(default, only(choice, why), ())
