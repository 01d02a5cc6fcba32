"""Runs several trainings at the same time, each in a separate process, none twice, and names their
folders by their settings.
"""

import hashlib
import json
import multiprocessing
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from vlmill.runtime.console.command import Parser, add_count
from vlmill.runtime.cores import all_cores
from vlmill.runtime.processes import live_as_long_as_the_parent

MOST_AT_ONCE = 8
SECONDS_BETWEEN_LOOKS = 5.0
FAILURES = (ValueError, ArithmeticError, RuntimeError)  # of a run; the others go on
Job = TypeVar("Job")
Result = TypeVar("Result")


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as a file of JSON gives them back."""
    back: dict[str, Any] = json.loads(json.dumps(values))
    return back


def digest_of(settings: Mapping[str, Any]) -> str:
    """Of a run's settings, for its folder: so none gets in another's way."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


@contextmanager
def logged(path: Path) -> Iterator[None]:
    """Adds what is printed to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as text, redirect_stdout(text), redirect_stderr(text):
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """Lets PyTorch use one thread: the products are small, and more cost twice the CPU time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def add_jobs(p: Parser) -> None:
    """Adds ``--jobs``."""
    add_count(
        p, "--jobs", "simultaneous runs, each on one core", default=min(all_cores(), MOST_AT_ONCE)
    )


class Told(Protocol):
    """What is said of a run: its name, and its folder with a log."""

    @property
    def name(self) -> str:
        """As in ``vqa/vilbert/seed-0``."""

    @property
    def folder(self) -> Path:
        """Where its ``log.txt`` lies."""


def failed(job: Told, error: BaseException) -> None:
    """Say so on standard error."""
    reason = " ".join(str(error).split())[:300]
    log = job.folder / "log.txt"
    print(f"failed: {job.name}: {type(error).__name__}: {reason} (see {log})", file=sys.stderr)


def outcomes(
    run: Callable[[Job], Result],
    jobs: Sequence[Job],
    processes: int,
    *,
    makes: Callable[[Job], Collection[object]] = lambda job: (),
    look: Callable[[int], None] = lambda running: None,
) -> Iterator[tuple[Job, Result | BaseException]]:
    """Each job's result as it finishes, or the error with which it failed.

    ``makes`` says what is not there yet of what a job needs, which another may need as well: no two
    that are at work share any of it. ``look`` hears every few seconds how many are not finished.
    One at once is run in this process.
    """
    if processes == 1:
        for number, job in enumerate(jobs, 1):
            outcome: Result | BaseException
            try:
                outcome = run(job)
            except FAILURES as error:
                outcome = error
            look(len(jobs) - number)
            yield job, outcome
        return
    left, running = list(jobs), dict[Future[Result], Job]()
    with _pool(processes) as pool:
        while left or running:
            for job in startable(left, running.values(), processes - len(running), makes):
                left.remove(job)
                running[pool.submit(run, job)] = job
            done, _ = wait(running, SECONDS_BETWEEN_LOOKS, FIRST_COMPLETED)
            look(len(left) + len(running))
            for future in done:
                raised = future.exception()
                yield running.pop(future), future.result() if raised is None else raised


def startable(
    left: Sequence[Job],
    running: Collection[Job],
    room: int,
    makes: Callable[[Job], Collection[object]],
) -> list[Job]:
    """The first ``room`` jobs that need nothing which another is making."""
    made = {thing for job in running for thing in makes(job)}
    chosen: list[Job] = []
    for job in left:
        if len(chosen) == room:
            break
        if made.isdisjoint(own := makes(job)):
            chosen.append(job)
            made.update(own)
    return chosen


@contextmanager
def _pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that end with this one, and at once where it is interrupted."""
    pool = ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=live_as_long_as_the_parent,
        max_tasks_per_child=1,
    )
    with pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()
            raise
