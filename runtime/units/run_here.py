"""Steps on this machine: a process that is free takes the next unit."""

from collections.abc import Iterable, Sequence
from functools import partial

from vlmill.runtime.files.remote_lock import require_held
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
) -> None:
    """Runs steps one after another in ``workers`` processes, each with the job.

    ``module`` is imported before processes start: it imports the modules of the steps. Raises
    StoreFailed if another run has taken over an output in a store.
    """
    with open_workers(workers, (job, steps), module) as pool:
        for number, step in enumerate(steps):
            units = step.units(job)
            with UnitProgress(total=len(units), label=step.name) as progress:
                numbered = [(number, unit) for unit in units]
                done: Iterable[Numbers | None]
                if step.threads:
                    done = map(partial(_do, (job, steps)), numbered)
                else:
                    done = pool.map_units(_do, numbered, partial(_wait, job, progress))
                for numbers in done:
                    progress.add(numbers)


def _wait(job: AnyJob, progress: UnitProgress) -> None:
    """Is called about once a second while processes work."""
    require_held(str(job.output))
    progress.idle()


def _do(shared: Shared[AnyJob], numbered: tuple[int, Unit]) -> Numbers | None:
    job, steps = shared
    number, unit = numbered
    return steps[number].run(job, unit)
