"""What became of a published checkpoint's tensors, for people to read."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torch import Tensor

from vlmill.models.from_bert import Origin


class Converted(NamedTuple):
    """A model, where its parameters come from, and the file's tensors that went nowhere."""

    model: Any
    origins: Mapping[str, Origin]
    unused: Sequence[str]


def unused_tensors(
    state: Mapping[str, Tensor], origins: Mapping[str, Origin], ignored: Iterable[str] = ()
) -> list[str]:
    """The names of tensors that went nowhere, but for those that fit an ``ignored`` pattern."""
    used = {name for origin in origins.values() for name in origin.names}
    passed = (*used, *ignored)
    return [n for n in sorted(state) if not any(n == p or fnmatchcase(n, p) for p in passed)]


def explain(converted: Converted) -> Iterator[str]:
    """A line for each parameter with its shape and origin, then what was not used, and sums."""
    shapes = {name: list(p.shape) for name, p in converted.model.named_parameters()}
    widths = [max(map(len, column)) for column in (shapes, map(str, shapes.values()))]
    for name, origin in converted.origins.items():
        yield f"{name:{widths[0]}}  {shapes[name]!s:{widths[1]}}  {origin}"
    yield from (f"unused: {name}" for name in converted.unused)
    yield summary(converted)


def summary(converted: Converted) -> str:
    """How many parameters were loaded, are new, and how many of the file's tensors are unused."""
    loaded = sum(bool(origin.names) for origin in converted.origins.values())
    new = len(converted.origins) - loaded
    return f"{loaded} parameters loaded, {new} new, {len(converted.unused)} tensors unused"
