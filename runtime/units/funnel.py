"""Defines the funnel: inputs, outputs and drops of each stage, by reason.

A stage's pure function returns a kept item, or a :class:`Drop`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vlmill.schemas.rejects import Reason

IN, OUT = "in", "out"


@dataclass(frozen=True, slots=True)
class Drop:
    """Holds the reason why an item is dropped; ``detail`` is free text for a reader."""

    reason: Reason
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """Describes a line of the funnel; ``unit`` names the counted items."""

    name: str
    unit: str


Tally = tuple[str, str]
"""(stage, ``in``, ``out`` or a reason)"""


def build_funnel(
    tallies: Iterable[tuple[Tally, int]], stages: Sequence[Stage]
) -> list[dict[str, Any]]:
    """Returns counts as the list for ``funnel.json``, one entry for each of ``stages`` in order.

    Raises AssertionError if a stage lost or invented something: in = out + rejects.
    """
    counts: dict[Tally, int] = {}
    for tally, count in tallies:
        counts[tally] = counts.get(tally, 0) + count
    funnel = []
    for stage in stages:
        rejects = {
            reason.value: counts[stage.name, reason.value]
            for reason in Reason
            if counts.get((stage.name, reason.value))
        }
        entered, left = counts.get((stage.name, IN), 0), counts.get((stage.name, OUT), 0)
        dropped = sum(rejects.values())
        assert entered == left + dropped, f"{stage.name}: {entered} in, {left} out, {dropped} not"
        funnel.append(
            {"stage": stage.name, "unit": stage.unit, "in": entered, "out": left}
            | {"rejects": rejects}
        )
    return funnel
