"""Merges the names of a network's tensors that differ in numbers only, for messages."""

import re
from collections.abc import Iterable, Sequence

NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def merge_names(names: Iterable[str]) -> list[str]:
    """Merges names in order: ``layers.0.norm`` to ``layers.11.norm`` are ``layers.0-11.norm``."""
    groups: dict[str, list[tuple[int, ...]]] = {}
    for name in names:
        numbers = tuple(map(int, NUMBER.findall(name)))
        groups.setdefault(NUMBER.sub("*", name), []).append(numbers)
    return [_with_numbers(pattern, rows) for pattern, rows in groups.items()]


def _with_numbers(pattern: str, rows: Sequence[tuple[int, ...]]) -> str:
    for column in zip(*rows, strict=True):
        values = sorted(set(column))
        is_range = values == list(range(values[0], values[-1] + 1)) and len(values) > 1
        text = f"{values[0]}-{values[-1]}" if is_range else ",".join(map(str, values))
        pattern = pattern.replace("*", text, 1)
    return pattern
