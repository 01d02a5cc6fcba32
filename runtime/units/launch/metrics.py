"""Reports a unit's numbers as Beam metrics, which every runner shows in its own pages."""

from collections.abc import Mapping

from apache_beam.metrics.metric import Metrics

from vlmill.runtime.units.numbers import MILLISECONDS


def count_in_beam(step: str, numbers: Mapping[str, int]) -> None:
    """Adds a unit's numbers to the counters of ``step``; its time is a distribution."""
    for name, count in numbers.items():
        if name == MILLISECONDS:
            Metrics.distribution(step, name).update(count)
        else:
            Metrics.counter(step, name).inc(count)
