"""Steps on this machine: a process that is free takes the next unit."""

from collections.abc import Callable, Sequence
from functools import partial

from vlmill.runtime.units.numbers import Numbers, UnitProgress
from vlmill.runtime.units.pool import open_workers
from vlmill.runtime.units.step import Step
from vlmill.runtime.units.unit import AnyJob, Unit

Shared = tuple[AnyJob, Sequence[Step[AnyJob]]]


def run_here(
    job: AnyJob,
    steps: Sequence[Step[AnyJob]],
    *,
    workers: int,
    module: str,
    idle: Callable[[], None] = lambda: None,
) -> None:
    """Does steps one after the other in ``workers`` processes, each with the job.

    ``module`` is imported before processes start: it imports what the steps need. ``idle`` is
    called about once a second, and may raise.
    """
    with open_workers(workers, (job, steps), module) as pool:
        for number, step in enumerate(steps):
            units = step.units(job)
            with UnitProgress(total=len(units), label=step.name) as progress:

                def tick(progress: UnitProgress = progress) -> None:
                    idle()
                    progress.idle()

                numbered = [(number, unit) for unit in units]
                here = map(partial(_do, (job, steps)), numbered)
                for numbers in here if step.threads else pool.map_units(_do, numbered, tick):
                    progress.add(numbers)


def _do(shared: Shared[AnyJob], numbered: tuple[int, Unit]) -> Numbers | None:
    job, steps = shared
    number, unit = numbered
    return steps[number].run(job, unit)
