"""Defines a job as a list of steps; the units of a step follow from the results of earlier
steps.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

from vlmill.runtime.units.numbers import BYTES, Numbers, count_tallies, timed
from vlmill.runtime.units.unit import AnyJob, Result, Unit, read_result, run_unit, work_folder

Units = Callable[[AnyJob], Sequence[Unit]]
Work = Callable[[AnyJob, Unit], Result | None]


@dataclass(frozen=True, kw_only=True)
class Step(Generic[AnyJob]):
    """Defines a step: ``work`` writes the files of one of ``units``, which are done in any order.

    All three functions belong to modules, or are partials of such, because remote workers find them
    by name. ``folder`` has the records. ``threads``: each unit uses all cores of a machine, so one
    runs at a time. ``recorded`` is False for units that record their own remaining work.
    """

    name: str
    units: Units[AnyJob]
    work: Work[AnyJob]
    folder: Callable[[AnyJob], Path] = work_folder
    threads: bool = False
    recorded: bool = True

    def run(self, job: AnyJob, unit: Unit) -> Numbers | None:
        """Runs a unit and returns its result; None if it was finished before."""
        numbers = Numbers()
        with timed(numbers):
            if self.recorded:
                result = run_unit(job, self.folder(job), unit, self.work)
            else:
                result = self.work(job, unit)
        if result is None:
            return None
        written = Numbers({BYTES: sum(shard.bytes for shard in result.shards)})
        return numbers + result.numbers + written + count_tallies(result.tallies)

    def results(self, job: AnyJob) -> Iterator[Result]:
        """Yields the results of all units. Raises OSError if one of them is not visible."""
        for unit in self.units(job):
            try:
                yield read_result(self.folder(job), unit)
            except FileNotFoundError:
                raise OSError(
                    f"{self.folder(job)} lacks the record of {unit.name}, which a worker has "
                    "written: --output must be a folder that all workers and this process see"
                ) from None


def single_unit(name: str, job: object) -> list[Unit]:
    """Returns the single unit of a step; ``partial(single_unit, NAME)`` is the step's ``units``."""
    return [Unit(name=name, number=0)]
