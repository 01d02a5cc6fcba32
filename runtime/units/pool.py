"""Runs units of work on every core of this machine, without Beam.

Beam's own local runner divides a step's elements into one fixed share per process, starts its
processes again for each pipeline, and converts every error to RuntimeError. Here an idle process
takes the next unit, errors are raised unchanged, the caller is notified of each unit's end, and a
killed process is replaced.
"""

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

from vlmill.runtime.console.command import print_status
from vlmill.runtime.processes import live_as_long_as_the_parent, process_context
from vlmill.schemas.errors import InputError

Shared = TypeVar("Shared")
Unit = TypeVar("Unit")
Answer = TypeVar("Answer")
GRACE_S = 10.0  # for a process that was asked to stop: it removes its partial files
TICK_S = 1.0
ATTEMPTS = 3  # at a unit whose process is killed: with too little memory every attempt fails


@dataclass(kw_only=True)
class _Worker(Generic[Unit]):
    """Holds a process, its current unit, and the number of processes that were killed at it."""

    process: BaseProcess
    connection: Connection
    unit: Unit | None = None
    kills: int = 0


class Workers(Generic[Shared]):
    """Does units in processes, which are started at the first use and stay for later steps.

    ``shared`` is sent to each process once. ``module`` is imported before they are forked. With one
    worker, or one unit, all work is done in this process.
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
        """Yields the result of ``work`` for each unit, in the order of their completion.

        ``idle`` is called about once a second. Raises a unit's error, and ChildProcessError for a
        unit at which ``ATTEMPTS`` processes were killed; the other units are cancelled then.
        """
        if self._number == 1 or len(units) < 2:
            for unit in units:
                yield work(self._shared, unit)
            return
        waiting = deque(units)
        for number in range(min(self._number, len(units))):
            if number == len(self._workers):
                self._workers.append(_Worker(**self._start()))
            self._give(self._workers[number], work, waiting)
        while busy := {w.connection: w for w in self._workers if w.unit is not None}:
            for ready in wait(list(busy), TICK_S):
                worker = busy[ready]  # type: ignore[index]
                try:
                    answer, error = worker.connection.recv()
                except (EOFError, OSError):
                    self._replace(worker, work)
                    continue
                if error is not None:
                    raise error
                self._give(worker, work, waiting)
                yield answer
            idle()

    def _start(self) -> dict[str, Any]:
        context = process_context(self._module)
        parent_end, child_end = context.Pipe()
        process = context.Process(target=_serve, args=(child_end, self._shared), daemon=True)
        process.start()
        child_end.close()
        return {"process": process, "connection": parent_end}

    def _give(
        self, worker: _Worker[Unit], work: Callable[[Shared, Unit], Any], waiting: deque[Unit]
    ) -> None:
        worker.unit, worker.kills = (waiting.popleft() if waiting else None), 0
        if worker.unit is not None:
            self._send(worker, work)

    def _send(self, worker: _Worker[Any], work: Callable[[Shared, Any], Any]) -> None:
        try:
            worker.connection.send((work, worker.unit))
        except OSError:
            self._replace(worker, work)

    def _replace(self, worker: _Worker[Any], work: Callable[[Shared, Any], Any]) -> None:
        """Gives the unit of a killed process to a new one."""
        worker.process.join(GRACE_S)
        worker.kills += 1
        message = (
            f"a process of --workers was ended from outside (status {worker.process.exitcode}; "
            f"memory?) at {worker.unit}"
        )
        if worker.kills == ATTEMPTS:
            raise ChildProcessError(
                f"{message}, {ATTEMPTS} times; the same command continues where it stopped, with "
                "fewer --workers in less memory"
            )
        print_status(f"{message}; another one does it again")
        worker.connection.close()
        for name, value in self._start().items():
            setattr(worker, name, value)
        self._send(worker, work)

    def close(self) -> None:
        """Ends the processes: idle ones immediately, working ones after cleaning up."""
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
    """Yields workers, which end with the block."""
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
    """Returns the error with its traceback as a note, or its text if it cannot be pickled."""
    import traceback

    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    if not isinstance(error, (OSError, InputError)):
        error.add_note("".join(traceback.format_exception(error)))
    return error


def _stop(_: int, frame: FrameType | None) -> None:
    """Unwinds the current work, so that no partial file remains."""
    if threading.current_thread() is threading.main_thread():
        raise SystemExit(1)
