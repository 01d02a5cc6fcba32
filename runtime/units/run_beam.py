"""Runs steps on a Beam runner: groups spread a step's units over the workers, and await them all.

A worker computes the units of a step when the previous step is done.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.metrics.metric import Metrics
from apache_beam.options.pipeline_options import PipelineOptions

from vlmill.runtime.units.launch.options import run_pipeline
from vlmill.runtime.units.numbers import MILLISECONDS
from vlmill.runtime.units.step import Step
from vlmill.runtime.units.stored import StoredJob, remove_stored, store_job
from vlmill.runtime.units.unit import AnyJob, Unit


def count_in_beam(step: str, numbers: Mapping[str, int]) -> None:
    """Adds a unit's numbers to the counters of ``step``; its time is a distribution."""
    for name, count in numbers.items():
        if name == MILLISECONDS:
            Metrics.distribution(step, name).update(count)
        else:
            Metrics.counter(step, name).inc(count)


class ListUnits(beam.DoFn):
    """Lists the units of a step, each with its index, when the previous step is done.

    Without units it yields None, so that the following steps have an input.
    """

    def __init__(self, stored: StoredJob, number: int) -> None:
        self.stored, self.number = stored, number

    def process(self, _: Any) -> Iterator[tuple[int, Unit | None]]:
        job, steps = self.stored.load()
        yield from enumerate(steps[self.number].units(job) or [None])


class RunUnits(beam.DoFn):
    """Runs units: (number, [Unit]) -> (0, count); None represents a step without units."""

    def __init__(self, stored: StoredJob, number: int) -> None:
        self.stored, self.number = stored, number

    def process(self, numbered: tuple[int, Iterable[Unit | None]]) -> Iterator[tuple[int, int]]:
        job, steps = self.stored.load()
        step, units = steps[self.number], [unit for unit in numbered[1] if unit is not None]
        for unit in units:
            count_in_beam(step.name, step.run(job, unit) or {})
        yield 0, len(units)


def build(p: beam.Pipeline, stored: StoredJob, names: Sequence[str]) -> Any:
    """Builds the steps of these names: the units of each, after those of the previous one.

    Both functions are pickled by their names, not by their code, which depends on Python's version:
    a worker with another version can load them, and :meth:`StoredJob.load` names the difference.
    """
    done = p | "Start" >> beam.Impulse()
    for number, name in enumerate(names):
        # A group for each unit spreads them over the workers, one group for all awaits them.
        done = (
            done
            | f"Units to {name}" >> beam.ParDo(ListUnits(stored, number))
            | f"Spread to {name}" >> beam.GroupByKey()
            | name.capitalize() >> beam.ParDo(RunUnits(stored, number))
            | f"All of {name}" >> beam.GroupByKey()
        )
    return done


def run_beam(job: AnyJob, steps: Sequence[Step[AnyJob]], *, options: PipelineOptions) -> None:
    """Runs the steps on the runner of the options, and waits for its end."""
    stored = store_job(job, steps)
    with run_pipeline(options) as p:
        build(p, stored, [step.name for step in steps])
    remove_stored(job)
