"""What the configurations of all variants check about themselves; each raises ValueError."""

import dataclasses
import math
from collections.abc import Collection
from typing import Any


def check_sizes(config: Any, *, from_zero: Collection[str] = ()) -> None:
    """Every field of type int is 1 at least; those ``from_zero`` may be 0."""
    for field in dataclasses.fields(config):
        size = getattr(config, field.name)
        if field.type is int and size < (0 if field.name in from_zero else 1):
            raise ValueError(f"{field.name}={size}: want a positive number")


def check_shares(config: Any, *names: str) -> None:
    """The named fields are rates of dropping: from 0 to below 1."""
    for name in names:
        if not 0 <= getattr(config, name) < 1:
            raise ValueError(f"{name}={getattr(config, name)}: want a share from 0 to below 1")


def check_heads(config: Any, width: str = "width", num_heads: str = "num_heads") -> None:
    """The named width divides into the named number of heads."""
    if getattr(config, width) % getattr(config, num_heads):
        raise ValueError(
            f"{width}={getattr(config, width)} is no multiple of {num_heads}="
            f"{getattr(config, num_heads)}; each head takes an equal share of the width"
        )


def check_std(config: Any, name: str = "init_std") -> None:
    """A standard deviation of new weights: a number above 0."""
    if not 0 < getattr(config, name) < math.inf:
        raise ValueError(f"{name}={getattr(config, name)}: want a number above 0")
