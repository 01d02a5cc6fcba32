"""Defines the funnel: inputs, outputs and drops of each stage, by reason.

A stage's pure function returns a kept item, or a :class:`Drop`, which becomes a row of ``rejects``.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vlmill.schemas.rejects import Reason, reject

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


KeepReject = Callable[[dict[str, object]], None]


class Counts:
    """Holds the counts of one unit of work; ``keep`` receives the rows of dropped items."""

    def __init__(self, keep: KeepReject) -> None:
        self.tallies: Counter[Tally] = Counter()
        self._keep = keep

    def entered(self, stage: Stage, count: int = 1) -> None:
        """Counts ``count`` items that entered ``stage``."""
        self.tallies[stage.name, IN] += count

    def left(self, stage: Stage, count: int = 1) -> None:
        """Counts ``count`` items that left ``stage``."""
        self.tallies[stage.name, OUT] += count

    def passed(self, stage: Stage, count: int = 1) -> None:
        """Counts ``count`` items that entered and left ``stage``."""
        self.tallies[stage.name, IN] += count
        self.tallies[stage.name, OUT] += count

    def dropped(self, stage: Stage, key: str, drop: Drop) -> None:
        """Counts an item that entered ``stage`` and was dropped, and keeps its reject."""
        self.entered(stage)
        self.tallies[stage.name, drop.reason.value] += 1
        self._keep(reject(stage.name, key, drop.reason, drop.detail))
