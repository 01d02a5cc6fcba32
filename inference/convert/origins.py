"""Describes where a published checkpoint's tensors went, as readable text."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torch import Tensor

from vlmill.models.beit.published import SHARED_TABLE
from vlmill.models.from_beit import REGISTERS, TABLES
from vlmill.models.from_bert import Origin
from vlmill.runtime.console.command import print_status
from vlmill.runtime.console.merged_names import merge_names


class Converted(NamedTuple):
    """Holds a model, the origins of its parameters, and the file's unused tensors."""

    model: Any
    origins: Mapping[str, Origin]
    unused: Sequence[str]


def unused_tensors(
    state: Mapping[str, Tensor], origins: Mapping[str, Origin], ignored: Iterable[str] = ()
) -> list[str]:
    """Returns the names of unused tensors, except those that match an ``ignored`` pattern."""
    used = {name for origin in origins.values() for name in origin.names}
    passed = (*used, *ignored, *([SHARED_TABLE] if TABLES in used else []))
    return [n for n in sorted(state) if not any(n == p or fnmatchcase(n, p) for p in passed)]


LAYER = re.compile(r"^(?:blocks|bert\.encoder\.layer)\.(\d+)\.")
# Tensors of a network on patches that VLMo lacks although they affect its results, and why.
UNPLACED = (
    (REGISTERS, "VLMo has no register tokens, with which the checkpoint was trained"),
    (
        re.compile(r"^pos_embed$"),
        "the model has no absolute positions (absolute_positions=true takes them)",
    ),
    (
        re.compile(r"relative_position_bias_table$"),
        "the model has no relative positions (relative_positions=true takes them)",
    ),
)


def start_warnings(
    state: Mapping[str, Tensor], origins: Mapping[str, Origin], unused: Sequence[str]
) -> Iterator[str]:
    """Yields warnings about a new model's differences from its checkpoint.

    state: the checkpoint's tensors under their usual names, of which ``unused`` were not copied.
    """
    for pattern, reason in UNPLACED:
        names = [name for name in unused if pattern.search(name)]
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            yield f"{names[0]}{more} is unused: {reason}"
    layers = {int(match[1]) for name in state if (match := LAYER.match(name))}
    used = {
        int(match[1])
        for origin in origins.values()
        for name in origin.names
        if (match := LAYER.match(name))
    }
    if further := {layer for layer in layers if layer > max(used, default=-1)}:
        yield (
            f"the checkpoint has {len(layers)} layers, the model takes {len(used)}: layers "
            f"{min(further)} to {max(further)} (from 0) are unused"
        )


def name_new(origins: Mapping[str, Origin]) -> str:
    """Returns a sentence that names all parameters that the checkpoint lacks; empty if it lacks
    none. Names that differ in numbers only are one: ``layers.0-11.norm.weight``.
    """
    new = {name: origin for name, origin in origins.items() if origin.missing and not origin.names}
    if not new:
        return ""
    sources = sorted({source for origin in new.values() for source in origin.missing})
    missing = ", ".join(merge_names(sources))
    return f"new, as the checkpoint has no {missing}: {', '.join(merge_names(new))}"


def explain(converted: Converted) -> Iterator[str]:
    """Returns a line for each parameter with its shape and source, then the unused tensors, and
    totals.
    """
    shapes = {name: list(p.shape) for name, p in converted.model.named_parameters()}
    widths = [max(map(len, column)) for column in (shapes, map(str, shapes.values()))]
    for name, origin in converted.origins.items():
        yield f"{name:{widths[0]}}  {shapes[name]!s:{widths[1]}}  {origin}"
    yield from (f"unused: {name}" for name in converted.unused)
    yield summary(converted)


def summary(converted: Converted) -> str:
    """Returns how many parameters were loaded or are new, and how many tensors of the file are
    unused.
    """
    loaded = sum(bool(origin.names) for origin in converted.origins.values())
    new = len(converted.origins) - loaded
    return f"{loaded} parameters loaded, {new} new, {len(converted.unused)} tensors unused"


def print_differences(origins: Mapping[str, Origin], unused: Sequence[str]) -> None:
    """Prints the names of all parameters that the checkpoint lacks and of its unused tensors."""
    if new := name_new(origins):
        print_status(f"warning: {new}")
    if unused:
        print_status(f"unused tensors: {', '.join(merge_names(unused))}")
