"""The steps of the job over their units of work, in processes of this machine or on Beam.

What one step leaves for the next lies in files, and no record goes through a shuffle. Units alone
do, so that every runner gives the same bytes with any number of workers.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from vlmill.pipelines.counting.numbers import Numbers, UnitProgress, numbers_of, timed
from vlmill.pipelines.launch.local import workers_of
from vlmill.pipelines.launch.metrics import count_in_beam
from vlmill.pipelines.launch.options import run_pipeline
from vlmill.pipelines.web_pairs.join import choose_texts, follow_redirects, join_urls
from vlmill.pipelines.web_pairs.mine import mine
from vlmill.pipelines.web_pairs.order import order, order_units
from vlmill.pipelines.web_pairs.settle import best_texts, group_pictures, settle, shared_texts
from vlmill.pipelines.web_pairs.shards import write_shard
from vlmill.pipelines.web_pairs.units import (
    Job,
    Unit,
    Work,
    archive_units,
    range_units,
    run_unit,
    shard_units,
)
from vlmill.schemas.net.ranged import Unreachable


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step: its units follow from what the steps before have left."""

    name: str
    units: Callable[[Job], list[Unit]]
    work: Work

    def folder(self, job: Job) -> Path:
        """Where its units leave their files."""
        return job.mined if self.units is archive_units else job.joins

    def run(self, job: Job, unit: Unit) -> Numbers:
        """Does a unit unless it is done; returns what was done.

        Raises OSError for an archive on the web that does not answer.
        """
        about: dict[str, Any] = {}
        numbers = Numbers()
        if self.units is archive_units:
            archive = job.archives[unit.number]
            about = {"path": archive.path, "size": archive.size}
        try:
            with timed(numbers):
                result = run_unit(job, self.folder(job), unit, self.work, **about)
        except Unreachable as error:
            raise OSError(str(error)) from None
        if result is None:
            return Numbers()
        written = sum(shard.bytes for shard in result.shards)
        return numbers + numbers_of(result.tallies, num_bytes=written + result.num_bytes)


def _ranged(name: str, work: Work) -> Step:
    return Step(name=name, units=partial(range_units, step=name), work=work)


STEPS = (
    Step(name="mine", units=archive_units, work=mine),
    _ranged("follow", follow_redirects),
    _ranged("join", join_urls),
    _ranged("choose", choose_texts),
    _ranged("best", best_texts),
    _ranged("shared", shared_texts),
    _ranged("settle", settle),
    Step(name="groups", units=lambda job: [Unit(name="groups", number=0)], work=group_pictures),
    Step(name="order", units=order_units, work=order),
    Step(name="shards", units=shard_units, work=write_shard),
)


def run_here(job: Job, workers: int, steps: range = range(len(STEPS))) -> None:
    """Does everything in so many processes of this machine: what Beam does elsewhere."""
    with workers_of(workers, job, __name__) as pool:
        for number in steps:
            step = STEPS[number]
            units = step.units(job)
            with UnitProgress(total=len(units), label=f"web pairs, {step.name}") as progress:
                for numbers in pool.each(partial(_do, number), units, progress.idle):
                    progress.add(numbers)


def _do(step: int, job: Job, unit: Unit) -> Numbers:
    return STEPS[step].run(job, unit)


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


def run_steps(
    options: PipelineOptions, workers: int | None, job: Job, steps: range = range(len(STEPS))
) -> None:
    """Does some steps on Beam, or in so many processes of this machine."""
    if workers is None:
        run_beam(job, options, steps)
    else:
        run_here(job, workers, steps)


def run_beam(job: Job, options: PipelineOptions, steps: range = range(len(STEPS))) -> None:
    """Does everything on the runner that the options name, and waits for its end."""
    with run_pipeline(options) as p:
        build(p, job, steps)


def _numbered_units(job: Job, step: int, _: Any) -> list[tuple[int, Unit]]:
    return [(unit.number, unit) for unit in STEPS[step].units(job)]
