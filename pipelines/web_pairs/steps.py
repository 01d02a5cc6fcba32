"""The steps of the job over their units of work, in processes of this machine or on Beam.

What one step leaves for the next lies in files, and no record goes through a shuffle. Units alone
do, so that every runner gives the same bytes with any number of workers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from vlmill.pipelines.counting.numbers import Numbers, UnitProgress, sum_tallies, timed
from vlmill.pipelines.launch.local import open_workers
from vlmill.pipelines.web_pairs.join import choose_texts, follow_redirects, join_urls
from vlmill.pipelines.web_pairs.mine import mine
from vlmill.pipelines.web_pairs.order import order, order_units
from vlmill.pipelines.web_pairs.settle import best_texts, group_images, settle, shared_texts
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
from vlmill.runtime.net.remote_file import Unreachable


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
        return numbers + sum_tallies(result.tallies, num_bytes=written + result.num_bytes)


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
    Step(name="groups", units=lambda job: [Unit(name="groups", number=0)], work=group_images),
    Step(name="order", units=order_units, work=order),
    Step(name="shards", units=shard_units, work=write_shard),
)


def run_here(job: Job, workers: int, steps: range = range(len(STEPS))) -> None:
    """Does everything in so many processes of this machine: what Beam does elsewhere."""
    with open_workers(workers, job, __name__) as pool:
        for number in steps:
            step = STEPS[number]
            units = step.units(job)
            with UnitProgress(total=len(units), label=f"web pairs, {step.name}") as progress:
                for numbers in pool.map_units(partial(_do, number), units, progress.idle):
                    progress.add(numbers)


def _do(step: int, job: Job, unit: Unit) -> Numbers:
    return STEPS[step].run(job, unit)
