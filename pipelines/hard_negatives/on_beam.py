"""The steps of the job on a Beam runner: a group for each unit spreads a step's units.

How many captions there are is known when they are laid out, and with it all units of the steps that
follow. These are one pipeline, as a cluster takes ten seconds or more to begin one: a step awaits
all of the step before as a side input, in which nothing is.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import AsIter

from vlmill.pipelines.hard_negatives.steps import Step
from vlmill.runtime.units.launch.metrics import count_in_beam
from vlmill.runtime.units.launch.options import run_pipeline


class DoUnits(beam.DoFn):
    """(number, [unit]) -> nothing: does units, when ``after`` is all there."""

    def __init__(self, step: Step) -> None:
        self.label, self.work = step.label, step.work

    def process(self, numbered: tuple[int, Iterable[Any]], after: object = None) -> None:
        for unit in numbered[1]:
            count_in_beam(self.label, self.work(unit))


def build(p: beam.Pipeline, steps: Sequence[Step]) -> None:
    """Builds the steps, each after the one before."""
    start = p | "Start" >> beam.Create([None], reshuffle=False)
    done = start
    for step in steps:
        awaited = [] if done is start else [AsIter(done)]
        done = _spread(start, step) | step.name >> beam.ParDo(DoUnits(step), *awaited)


def run_beam(options: PipelineOptions, steps: Sequence[Step]) -> None:
    """Does the steps on the runner that the options name, and waits for their end."""
    with run_pipeline(options) as p:
        build(p, steps)


def _spread(start: Any, step: Step) -> Any:
    """Units on all workers, (number, [unit]): a group for each spreads them.

    They are taken out of it by the step itself: one that awaits another begins a stage, for which a
    cluster starts its workers. A unit that is alone needs no group.
    """
    name, units = step.name.lower(), list(step.units)  # in Flink's list "Write" is the step alone
    if len(units) == 1:
        return start | f"Unit of {name}" >> beam.Map(_numbered_alone, units[0])
    numbered_units = start | f"Units of {name}" >> beam.FlatMap(_numbered, units)
    return numbered_units | f"Spread {name}" >> beam.GroupByKey()


def _numbered(_: None, units: list[Any]) -> list[tuple[int, Any]]:
    return list(enumerate(units))


def _numbered_alone(_: None, unit: Any) -> tuple[int, list[Any]]:
    return 0, [unit]
