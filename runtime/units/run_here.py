"""Runs steps on this machine: an idle process takes the next unit."""

import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial

from vlmill.runtime.console.command import print_status
from vlmill.runtime.files.lock import parts_at_work
from vlmill.runtime.files.remote_lock import require_held
from vlmill.runtime.units.numbers import Numbers, UnitProgress
from vlmill.runtime.units.share import POLL_S, Share
from vlmill.runtime.units.step import Step
from vlmill.runtime.units.unit import AnyJob, Unit, is_finished, record_path

Shared = tuple[AnyJob, Sequence[Step[AnyJob]]]


def run_here(
    job: AnyJob,
    steps: Sequence[Step[AnyJob]],
    *,
    workers: int,
    module: str,
    share: Share | None = None,
) -> None:
    """Runs steps one after another in ``workers`` processes, each with the job.

    ``module`` is imported before processes start: it imports the modules of the steps. With a
    ``share`` only its units are done; the units of others are awaited, in the last step only by the
    first share. Raises StoreFailed if another run has taken over an output in a store.
    """
    with ExitStack() as stack:
        shared, pool = (job, steps), None
        if workers > 1:
            from vlmill.runtime.units.pool import open_workers  # multiprocessing loads slowly

            pool = stack.enter_context(open_workers(workers, shared, module))
        for number, step in enumerate(steps):
            all_units = units = step.units(job)
            if share is not None:
                units = [all_units[index] for index in share.select_shards(len(all_units))]
            with UnitProgress(total=len(units), label=step.name) as progress:
                numbered = [(number, unit) for unit in units]
                done: Iterable[Numbers | None]
                if pool is None or step.threads:
                    done = map(partial(_do, shared), numbered)
                else:
                    done = pool.map_units(_do, numbered, partial(_wait, job, progress))
                for numbers in done:
                    progress.add(numbers)
            if share is not None and (share.number == 1 or step is not steps[-1]):
                wait_for_others(job, step, all_units, share)


def _wait(job: AnyJob, progress: UnitProgress) -> None:
    """Called about once a second while processes work."""
    require_held(str(job.output))
    progress.idle()


def _do(shared: Shared[AnyJob], numbered: tuple[int, Unit]) -> Numbers | None:
    job, steps = shared
    number, unit = numbered
    return steps[number].run(job, unit)


def wait_for_others(job: AnyJob, step: Step[AnyJob], units: Sequence[Unit], share: Share) -> None:
    """Waits until the other parts have finished their units of a step.

    Raises OSError for units of parts that are not running, and for a damaged file of another part.
    """
    waiting = [
        (other, units[number])
        for other in share.select_others()
        for number in other.select_shards(len(units))
    ]
    last_seen, is_reported = time.monotonic(), False
    while True:
        # In this order: a part may finish its last unit and exit between the two.
        working = parts_at_work(job.output, {other.name for other, _ in waiting})
        waiting = [(other, unit) for other, unit in waiting if not _is_done(job, step, unit)]
        if not waiting:
            return
        numbers = sorted({other.number for other, _ in waiting})
        names = ", ".join(f"{number}/{share.count}" for number in numbers)
        if not is_reported:
            print_status(f"{step.name}: waiting for {len(waiting)} units of --part {names}")
            is_reported = True
        if working:
            last_seen = time.monotonic()
        elif time.monotonic() - last_seen >= share.wait_s:
            raise OSError(
                f"step {step.name} lacks {len(waiting)} of {len(units)} units, of --part {names}, "
                f"which are not at work after {share.wait_s:.0f} s (--part-wait); run these "
                "parts, and this command again"
            )
        time.sleep(POLL_S)


def _is_done(job: AnyJob, step: Step[AnyJob], unit: Unit) -> bool:
    folder = step.folder(job)
    if not record_path(folder, unit).exists():
        return False
    if not is_finished(job, folder, unit):
        raise OSError(f"{unit.name} of another --part is damaged; run that part again")
    return True
