"""Reads values of other projects' configurations: the allowed values of a key, and the fields of
``DetectorConfig`` that it sets.

A key's value is plain data, as in a YAML file. The functions here make readers of values, from
which :mod:`~vlmill.models.detector.configurations` makes its tables.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Value = Any  # plain: None, bool, int, float, str, or a list of them
Reader = Callable[[Value], Any]  # raises ValueError with the expected value

# The value of a key that has no default and that the configuration omits.
MISSING = object()


class WrongKey(ValueError):
    """Raised for a key of a configuration with an unsupported value; has the key, its value and the
    expected value.
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
    fields: tuple[str, ...]  # that the parsed value sets; several fields take one item each

    def values(self, name: str, value: Value) -> dict[str, Any]:
        """Returns the fields set by ``value``, by name.

        Raises WrongKey for a value that the key may not have.
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
    """Reads true or false for each of res2 to res5; returns the numbers of the stages with true."""
    if not isinstance(value, list) or len(value) != 4:
        raise ValueError("true or false for each of res2 to res5")
    return tuple(number for number, item in enumerate(value, start=2) if flag(item))


def integer(low: int, high: int) -> Reader:
    """Returns a reader of whole numbers from ``low`` to ``high``."""

    def read(value: Value) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return value

    return read


def number(low: float, high: float) -> Reader:
    """Returns a reader of numbers from ``low`` to ``high``."""

    def read(value: Value) -> float:
        try:  # YAML reads 1e-3, without a dot, as a string
            parsed = math.nan if isinstance(value, bool | list) else float(value)
        except (TypeError, ValueError, OverflowError):
            parsed = math.nan
        if not low <= parsed <= high:
            raise ValueError(f"a number from {low:g} to {high:g}")
        return parsed

    return read


def numbers(count: int, low: float, high: float) -> Reader:
    """Returns a reader of lists of ``count`` numbers."""
    read_number = number(low, high)

    def read(value: Value) -> tuple[float, ...]:
        if not isinstance(value, list) or len(value) != count:
            raise ValueError(f"{count} numbers from {low:g} to {high:g}")
        return tuple(read_number(item) for item in value)

    return read


def one_level(low: float, high: float, max_count: int, factor: float = 1.0) -> Reader:
    """Returns a reader of ``[[a, b, ...]]``: a list for each feature map; C4 has one map."""
    read_number = number(low, high)

    def read(value: Value) -> tuple[float, ...]:
        if not isinstance(value, list) or len(value) != 1 or not isinstance(value[0], list):
            raise ValueError("one list in a list, for the one feature map of a C4 model")
        if not 1 <= len(value[0]) <= max_count:
            raise ValueError(f"1 to {max_count} numbers for the feature map")
        return tuple(factor * read_number(item) for item in value[0])

    return read


def each_level(strides: Sequence[int], low: float, high: float, max_count: int) -> Reader:
    """Returns a reader of ``[[a], [b], ...]``: the same number of values for each map of a pyramid,
    converted to cells of its stride.
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
    """Returns a reader of the keys of ``choices`` that returns their values."""

    def read(value: Value) -> Any:
        # In Python True == 1, but True is not a valid choice for 1.
        if isinstance(value, list) or not any(
            value == choice and type(value) is type(choice) for choice in choices
        ):
            raise ValueError(" or ".join(repr(choice) for choice in choices))
        return choices[value]

    return read


def only(choice: Value, why: str) -> Reader:
    """Returns a reader of the one supported value."""

    def read(value: Value) -> None:
        if value != choice or type(value) is not type(choice):
            raise ValueError(f"{choice!r} ({why})")

    return read


def either(*readers: Reader) -> Reader:
    """Returns a reader that tries ``readers`` in order and uses the first that accepts a value."""

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
    """Returns a reader of lists of 1 to ``max_count`` values that ``reader`` accepts."""

    def read(value: Value) -> tuple[Any, ...]:
        if not isinstance(value, list) or not 1 <= len(value) <= max_count:
            raise ValueError("a list of one" if max_count == 1 else f"a list of 1 to {max_count}")
        return tuple(reader(item) for item in value)

    return read


def as_tuple(reader: Reader) -> Reader:
    """Returns a reader that wraps a single value in a tuple."""
    return lambda value: (reader(value),)


def single(reader: Reader) -> Reader:
    """Returns a reader of lists of one value."""
    return lambda value: each(reader, 1)(value)[0]


def less_one(reader: Reader) -> Reader:
    """Returns a reader of a count that includes background; it subtracts one."""
    return lambda value: reader(value) - 1


def sets(field: str, default: Value, reader: Reader) -> Key:
    """Returns a key that sets one field."""
    return Key(default, reader, (field,))


def without(keys: Mapping[str, Key], *names: str) -> dict[str, Key]:
    """Returns a table without the named keys."""
    assert keys.keys() >= set(names)
    return {name: key for name, key in keys.items() if name not in names}


def fixed_key(default: Value, choice: Value, why: str) -> Key:
    """Returns a key that sets no field and has only one supported value."""
    return Key(default, only(choice, why), ())
