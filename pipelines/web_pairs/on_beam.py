"""The steps of the job on a Beam runner: groups spread a step's units and await them all."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from vlmill.pipelines.launch.metrics import count_in_beam
from vlmill.pipelines.launch.options import run_pipeline
from vlmill.pipelines.web_pairs.steps import STEPS
from vlmill.pipelines.web_pairs.units import Job, Unit


class RunUnits(beam.DoFn):
    """Does units: (number, [Unit]) -> (0, how many)."""

    def __init__(self, job: Job, step: int) -> None:
        self.job, self.step = job, step

    def process(self, numbered: tuple[int, Iterable[Unit]]) -> Iterator[tuple[int, int]]:
        step, units = STEPS[self.step], list(numbered[1])
        for unit in units:
            count_in_beam(step.name, step.run(self.job, unit))
        yield 0, len(units)


def build(p: beam.Pipeline, job: Job, steps: range = range(len(STEPS))) -> Any:
    """Builds the job: each step's units, when those of the step before are done."""
    done = p | "Start" >> beam.Create([0], reshuffle=False)
    for number in steps:
        step = STEPS[number]
        # A group for each unit spreads them over the workers, one group for all awaits them.
        done = (
            done
            | f"Units to {step.name}" >> beam.FlatMap(partial(_numbered_units, job, number))
            | f"Spread to {step.name}" >> beam.GroupByKey()
            | step.name.capitalize() >> beam.ParDo(RunUnits(job, number))
            | f"All of {step.name}" >> beam.GroupByKey()
        )
    return done


def run_beam(job: Job, options: PipelineOptions, steps: range = range(len(STEPS))) -> None:
    """Does everything on the runner that the options name, and waits for its end."""
    with run_pipeline(options) as p:
        build(p, job, steps)


def _numbered_units(job: Job, step: int, _: Any) -> list[tuple[int, Unit]]:
    return [(unit.number, unit) for unit in STEPS[step].units(job)]
