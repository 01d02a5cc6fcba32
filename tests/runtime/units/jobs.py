"""A job of three steps for the tests of the engine: numbers, their squares by halves, the sum."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vlmill.runtime.files.atomic import write_text
from vlmill.runtime.files.lock import lock_output
from vlmill.runtime.units.numbers import Numbers
from vlmill.runtime.units.run_here import run_here
from vlmill.runtime.units.share import START_S, Share, end_job
from vlmill.runtime.units.step import Step, single_unit
from vlmill.runtime.units.unit import Result, Unit

MODULE = "tests.runtime.units.jobs"


@dataclass(frozen=True, kw_only=True)
class Sums:
    """Adds the squares of ``numbers``."""

    output: str
    numbers: tuple[int, ...] = (1, 2, 3, 4, 5)


def number_units(step: str, job: Sums) -> list[Unit]:
    return [Unit(name=f"{step}-{n}", number=n) for n in range(len(job.numbers))]


def square(job: Sums, unit: Unit) -> Result:
    path = Path(job.output, "work", f"square-{unit.number}.txt")
    with Path(job.output, "log.txt").open("a") as log:
        log.write(f"{unit.name}\n")
    write_text(path, str(job.numbers[unit.number] ** 2))
    return Result(numbers=Numbers(squares=1), metrics={"square": job.numbers[unit.number] ** 2})


def halve(job: Sums, unit: Unit) -> Result:
    """Reads a square and its neighbour's: both must be there before."""
    near = (unit.number + 1) % len(job.numbers)
    paths = [Path(job.output, "work", f"square-{n}.txt") for n in (unit.number, near)]
    half = sum(int(path.read_text()) for path in paths) / 2
    write_text(Path(job.output, "work", f"half-{unit.number}.txt"), str(half))
    return Result()


def add(job: Sums, unit: Unit) -> Result:
    paths = sorted(Path(job.output, "work").glob("half-*.txt"))
    write_text(Path(job.output, "sum.txt"), str(sum(float(path.read_text()) for path in paths)))
    return Result()


SQUARES = Step(name="squares", units=partial(number_units, "square"), work=square)
STEPS = (
    SQUARES,
    Step(name="halves", units=partial(number_units, "half"), work=halve),
    Step(name="sum", units=partial(single_unit, "sum"), work=add),
)


def log(job: Sums) -> list[str]:
    """The squares that were computed, in their order."""
    return Path(job.output, "log.txt").read_text().split()


def run_part(output: str, number: int, count: int, wait_s: float = START_S) -> None:
    """Does a part of the sums; the first one says that it ends the job.

    A process that starts with it imports this module alone.
    """
    share = Share(number=number, count=count, wait_s=wait_s)
    with lock_output(output, part=share.name):
        run_here(Sums(output=output), STEPS, workers=1, module=MODULE, share=share)
        with end_job(output, share) as is_last:
            if is_last:
                Path(output, "ended.txt").write_text(str(number))
