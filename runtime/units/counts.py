"""Counts the items that the steps of a job read, pass on and drop.

Counts are kept by stage; each dropped item becomes a row of ``rejects``.
"""

from collections import Counter
from collections.abc import Callable

from vlmill.runtime.units.funnel import IN, OUT, Drop, Stage, Tally
from vlmill.schemas.rejects import reject

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
