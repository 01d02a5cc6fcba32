"""What all Beam steps share. A step calls a pure function, and counts in, out and dropped.

Every step has the outputs ``kept`` (its main one), ``rejects`` (rows) and ``tallies`` (what
``funnel`` counts). Bodies of pages and pictures pass only between steps that Beam fuses; what is
shuffled is small.
"""

from collections.abc import Iterator
from typing import Any

from apache_beam.pvalue import TaggedOutput

from vlmill.pipelines.counting.funnel import IN, OUT, Drop, Stage
from vlmill.schemas.rejects import reject

KEPT, REJECTS, TALLIES = "kept", "rejects", "tallies"

Tagged = TaggedOutput[str, Any]


def entered(stage: Stage) -> Tagged:
    """Counts one item that came into ``stage``."""
    return TaggedOutput(TALLIES, ((stage.name, IN), 1))


def left(stage: Stage) -> Tagged:
    """Counts one item that left ``stage``."""
    return TaggedOutput(TALLIES, ((stage.name, OUT), 1))


def dropped(stage: Stage, key: str, drop: Drop) -> Iterator[Tagged]:
    """Count one more that ``stage`` dropped, and keep its row."""
    yield TaggedOutput(TALLIES, ((stage.name, drop.reason.value), 1))
    yield TaggedOutput(REJECTS, reject(stage.name, key, drop.reason, drop.detail))
