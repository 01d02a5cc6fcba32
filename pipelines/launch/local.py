"""Units of work on every core of this machine, without Beam.

Beam's own local runner cuts a step's elements into one fixed share for each process, starts its
processes anew for each pipeline, and makes a RuntimeError of every error. Here a process that is
free takes the next unit, errors come as they were, and who gave the work hears of each unit's end.
"""

import argparse
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, Generic, TypeVar

from vlmill.runtime.console.command import int_at_least
from vlmill.runtime.processes import all_cores, live_as_long_as_the_parent, process_context
from vlmill.schemas.errors import InputError

Shared = TypeVar("Shared")
Unit = TypeVar("Unit")
Answer = TypeVar("Answer")
GRACE_S = 10.0  # for a process that is told to stop: it removes what it has half written
TICK_S = 1.0


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Adds ``--workers``, for jobs whose units are done in processes."""
    parser.add_argument(
        "--workers",
        type=int_at_least(1),
        metavar="N",
        help="processes on this machine, without --runner; the bytes stay the same (all cores)",
    )


def local_workers(workers: int | None, beam_flags: Sequence[str]) -> int | None:
    """The number of processes for a job on this machine; None if a Beam runner is to do it.

    A flag that goes to Beam calls for Beam. Raises InputError for a number that Beam would not hear
    of.
    """
    if not beam_flags:
        return workers or all_cores()
    if not beam_flags[0].startswith("-"):
        raise InputError(f"{beam_flags[0]}: no flag stands before it; quote a glob, '*.warc.gz'")
    if workers is not None:
        raise InputError(
            f"--workers {workers} is for a job without Beam, and {beam_flags[0]} goes to Beam; "
            "give the runner's own flag (--parallelism, --num_workers, --direct_num_workers)"
        )
    return None


@dataclass(kw_only=True)
class _Worker(Generic[Unit]):
    """A process, and the unit that it is doing."""

    process: BaseProcess
    connection: Connection
    unit: Unit | None = None


class Workers(Generic[Shared]):
    """Does units in processes, which are started at the first need and stay for later steps.

    ``shared`` is sent to each process once. ``module`` is imported before they are forked. With one
    worker, or one unit, everything is done in this process.
    """

    def __init__(self, number: int, shared: Shared, module: str) -> None:
        self._number, self._shared, self._module = number, shared, module
        self._workers: list[_Worker[Any]] = []

    def map_units(
        self,
        work: Callable[[Shared, Unit], Answer],
        units: Sequence[Unit],
        idle: Callable[[], None] = lambda: None,
    ) -> Iterator[Answer]:
        """Yields what ``work`` answers to each unit, in the order in which they are done.

        ``idle`` is called about once a second. Raises what a unit raises, and ChildProcessError
        for a process that was ended from outside; the other units are given up then.
        """
        if self._number == 1 or len(units) < 2:
            for unit in units:
                yield work(self._shared, unit)
            return
        self._start(min(self._number, len(units)))
        waiting = deque(units)
        for worker in self._workers:
            self._give(worker, work, waiting)
        while busy := {w.connection: w for w in self._workers if w.unit is not None}:
            for ready in wait(list(busy), TICK_S):
                worker = busy[ready]  # type: ignore[index]
                answer = self._receive_answer(worker)
                self._give(worker, work, waiting)
                yield answer
            idle()

    def _start(self, number: int) -> None:
        context = process_context(self._module)
        while len(self._workers) < number:
            parent_end, child_end = context.Pipe()
            process = context.Process(target=_serve, args=(child_end, self._shared), daemon=True)
            process.start()
            child_end.close()
            self._workers.append(_Worker(process=process, connection=parent_end))

    def _give(
        self, worker: _Worker[Unit], work: Callable[[Shared, Unit], Any], waiting: deque[Unit]
    ) -> None:
        worker.unit = waiting.popleft() if waiting else None
        if worker.unit is not None:
            try:
                worker.connection.send((work, worker.unit))
            except OSError:
                raise self._ended(worker) from None

    def _receive_answer(self, worker: _Worker[Any]) -> Any:
        try:
            answer, error = worker.connection.recv()
        except (EOFError, OSError):
            raise self._ended(worker) from None
        if error is not None:
            raise error
        return answer

    def _ended(self, worker: _Worker[Any]) -> ChildProcessError:
        worker.process.join(GRACE_S)
        return ChildProcessError(
            f"a process of --workers was ended from outside (status {worker.process.exitcode}; "
            f"memory?) at {worker.unit}; the same command continues where it stopped"
        )

    def close(self) -> None:
        """Ends the processes: at once what waits, and what works when it has cleaned up."""
        for worker in self._workers:
            worker.connection.close()
            if worker.unit is not None:
                worker.process.terminate()
        for worker in self._workers:
            worker.process.join(GRACE_S)
            if worker.process.exitcode is None:
                worker.process.kill()
                worker.process.join()
        self._workers = []


@contextmanager
def open_workers(number: int, shared: Shared, module: str) -> Iterator[Workers[Shared]]:
    """Gives workers, which end with the block."""
    workers = Workers(number, shared, module)
    try:
        yield workers
    finally:
        workers.close()


def _serve(connection: Connection, shared: Any) -> None:
    """Works as a process: answers units until the other end is closed."""
    live_as_long_as_the_parent()
    signal.signal(signal.SIGTERM, _stop)
    with suppress(EOFError, OSError, SystemExit):
        while True:
            work, unit = connection.recv()
            connection.send(_answer(work, shared, unit))


def _answer(work: Callable[[Any, Any], Any], shared: Any, unit: Any) -> tuple[Any, Any]:
    try:
        return work(shared, unit), None
    except Exception as error:
        return None, _sendable(error)


def _sendable(error: Exception) -> Exception:
    """The error with its traceback as a note, or its words if it cannot be sent."""
    import traceback

    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    if not isinstance(error, (OSError, InputError)):
        error.add_note("".join(traceback.format_exception(error)))
    return error


def _stop(_: int, frame: FrameType | None) -> None:
    """Unwinds what is being done, so that nothing half written stays."""
    if threading.current_thread() is threading.main_thread():
        raise SystemExit(1)
