"""Runs calls on untrusted bytes in processes that can be killed, with limits of time and memory.

If a hostile file makes a decoder hang or request gigabytes, it cannot be stopped from inside its
process. Here it costs one call, which ends as a reject, and the process is replaced.
"""

import errno
import math
import os
import pickle
import queue
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

from vlmill.runtime.memory import keep_some_freed_memory
from vlmill.runtime.processes import live_as_long_as_the_parent, process_context
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason, Rejected

Task = TypeVar("Task")
Result = TypeVar("Result")
START_SECONDS = 300.0  # for imports on a busy machine
ATTEMPTS = 2  # a process that was killed from outside costs no image


@dataclass(frozen=True, kw_only=True)
class CallLimits:
    """Limits the resources of a call.

    ``cpu_seconds`` are processor time, so a busy machine changes no result. ``wall_seconds`` end a
    call that waits for something that never arrives. ``more_bytes`` are in addition to the memory
    of the process after its imports.
    """

    cpu_seconds: int = 30
    wall_seconds: float = 600.0
    more_bytes: int = 3 << 29


class BoundedPool(Generic[Task, Result]):
    """Calls one function in ``workers`` processes, which are killed and replaced if necessary.

    ``start(*args)`` returns that function in each process; its module is imported before processes
    are forked. They start with the first call. A call that exceeds ``limits``, or whose process
    ends twice, raises Rejected; an error of the function is raised unchanged. Thread-safe.
    """

    def __init__(
        self,
        workers: int,
        start: Callable[..., Callable[[Task], Result]],
        *args: Any,
        limits: CallLimits | None = None,
    ) -> None:
        self._start, self._args = start, args
        self._limits = limits or CallLimits()
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._workers = [_Worker(start, args, self._limits) for _ in range(workers)]
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def submit(self, task: Task) -> "Future[Result]":
        """Queues a call, and returns the future of its result."""
        if self._closed.is_set():
            raise RuntimeError("the pool of processes is closed")
        self.begin()
        call = _Call(pickle.dumps(task, pickle.HIGHEST_PROTOCOL), Future())
        self._calls.put(call)
        return call.future

    def call(self, task: Task) -> Result:
        """Returns the function's result. Raises Rejected, and the function's own errors."""
        return self.submit(task).result()

    @property
    def process_ids(self) -> list[int]:
        """Returns the ids of the processes that run."""
        return [worker.process.pid for worker in self._workers if worker.process is not None]  # type: ignore[misc]

    def close(self) -> None:
        """Ends the processes and their computations; waiting calls are cancelled."""
        self._closed.set()
        for _ in self._threads:
            self._calls.put(None)
        for worker in self._workers:
            worker.interrupt()
        for thread in self._threads:
            thread.join()
        with suppress(queue.Empty):
            while True:
                call = self._calls.get_nowait()
                if call is not None:
                    call.future.cancel()

    def __enter__(self) -> "BoundedPool[Task, Result]":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def begin(self) -> None:
        """Starts the processes now; if that fails, the first call raises the error."""
        with self._lock:
            if self._threads or self._closed.is_set():
                return
            for worker in self._workers:
                thread = threading.Thread(target=self._feed, args=(worker,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _feed(self, worker: "_Worker") -> None:
        """Sends calls to a process one after another. The next call is sent before the last result
        is unpacked, so that the process does not wait.
        """
        worker.begin()
        call = self._next(block=True)
        while call is not None:
            try:
                outcome = worker.compute(call)
            except Exception as error:  # the caller would otherwise wait forever
                worker.end()
                outcome = error
            following = self._next(block=False)
            if following is not None:
                worker.send_ahead(following)
            settle(call, outcome)
            call = following or self._next(block=True)
        worker.end()

    def _next(self, *, block: bool) -> "_Call | None":
        """Returns the next call that is not cancelled; None if there is none, or no more."""
        while not self._closed.is_set():
            try:
                call = self._calls.get(block)
            except queue.Empty:
                return None
            if call is None or call.future.set_running_or_notify_cancel():
                return call
        return None


@dataclass(frozen=True)
class _Call:
    """Holds a pickled task and the destination of its result."""

    task: bytes
    future: "Future[Any]"


Outcome = bytes | Exception  # a pickled result, or the reason for having none


def settle(call: _Call, outcome: Outcome) -> None:
    """Sets a call's result or error."""
    try:
        result, error = pickle.loads(outcome) if isinstance(outcome, bytes) else (None, outcome)
    except Exception as unpacking:  # a class that cannot be unpickled
        error = unpacking
    if error is not None:
        call.future.set_exception(error)
    else:
        call.future.set_result(result)


class _Ended(Exception):
    """Raised for a process that has ended; the message describes the end."""

    def __init__(self, detail: str, *, is_final: bool) -> None:
        super().__init__(detail)
        self.is_final = is_final  # by a limit: another attempt would end the same way


class _Worker:
    """Keeps one process, for one thread; another thread may interrupt it."""

    def __init__(
        self, start: Callable[..., Any], args: tuple[Any, ...], limits: CallLimits
    ) -> None:
        self._start, self._args, self._limits = start, args, limits
        self._interrupted = False
        self._sent: _Call | None = None
        self.process: BaseProcess | None = None
        self.connection: Connection | None = None

    def begin(self) -> None:
        """Starts the process; if that fails, ``compute`` tries again."""
        try:
            self._launch()
        except Exception:  # the call's, then
            self.end()

    def compute(self, call: _Call) -> Outcome:
        """Computes a call in the process, which is started or replaced if necessary."""
        detail = ""
        for _ in range(ATTEMPTS):
            try:
                if self._sent is not call:
                    self._send(call)
                return self._receive()
            except _Ended as ended:
                self.end()
                detail = str(ended)
                if ended.is_final:
                    break
            except (OSError, InputError) as error:  # no process can be started
                self.end()
                return error
        return Rejected(Reason.TOO_EXPENSIVE, detail)

    def send_ahead(self, call: _Call) -> None:
        """Sends the next call to an idle process; without one ``compute`` sends it."""
        if self.connection is not None:
            with suppress(OSError):
                self.connection.send_bytes(call.task)
                self._sent = call

    def interrupt(self) -> None:
        """Kills the process for good."""
        self._interrupted = True
        if self.process is not None:
            self.process.kill()

    def end(self) -> None:
        """Ends the process; the next call starts another one."""
        self._sent = None
        if self.connection is not None:
            self.connection.close()
        if self.process is not None:
            self.process.kill()
            self.process.join()
        self.process = self.connection = None

    def _send(self, call: _Call) -> None:
        self.send_ahead(call)
        if self._sent is not call:  # there is no process, or it ended while it was idle
            self.end()
            self._launch()
            self.send_ahead(call)
        if self._sent is not call:
            raise self._ended()

    def _receive(self) -> bytes:
        assert self.connection is not None
        try:
            if not self.connection.poll(self._limits.wall_seconds):
                detail = f"gave no result in {self._limits.wall_seconds:g} seconds"
                raise _Ended(detail, is_final=True)
            outcome = self.connection.recv_bytes()
        except (EOFError, OSError):
            raise self._ended() from None
        self._sent = None
        return outcome

    def _ended(self) -> _Ended:
        """Describes the end of the process."""
        assert self.process is not None
        self.process.join(5)
        status = self.process.exitcode
        if status == -signal.SIGXCPU:
            seconds = self._limits.cpu_seconds
            return _Ended(f"took more than {seconds} seconds of a processor", is_final=True)
        by = f"signal {-status}" if status is not None and status < 0 else f"status {status}"
        return _Ended(f"ended its process with {by}, {ATTEMPTS} times", is_final=False)

    def _launch(self) -> None:
        """Starts a process. Raises OSError if it does not become ready."""
        if self._interrupted:
            raise ChildProcessError("the pool is closed")
        context = process_context(self._start.__module__)
        parent_end, child_end = context.Pipe()
        process = context.Process(
            target=_serve, args=(child_end, self._start, self._args, self._limits), daemon=True
        )
        try:
            process.start()
        except EOFError:  # the server that forks processes was killed
            raise ChildProcessError("the process that starts processes for images ended") from None
        finally:
            child_end.close()
        self.process, self.connection = process, parent_end
        if self._interrupted:  # just before: the request to end was missed
            process.kill()
        try:
            if not parent_end.poll(START_SECONDS):
                raise EOFError
            error = parent_end.recv()
        except (EOFError, OSError, pickle.UnpicklingError):
            process.kill()
            process.join()
            raise ChildProcessError(
                f"a process for images ended with status {process.exitcode} before it was ready"
            ) from None
        if error is not None:
            raise error


# --- in a worker process --------------------------------------------------------------------------


def _serve(
    connection: Connection, start: Callable[..., Any], args: tuple[Any, ...], limits: CallLimits
) -> None:
    """Answers calls until the other end is closed."""
    live_as_long_as_the_parent()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        function = start(*args)
    except InputError as error:
        connection.send(error)
        return
    except Exception as error:
        connection.send(OSError(f"{type(error).__name__}: {error}"))
        return
    limit_memory(limits.more_bytes)
    keep_some_freed_memory()
    connection.send(None)
    with suppress(EOFError, BrokenPipeError):
        while True:
            task = connection.recv_bytes()
            limit_processor_time(limits.cpu_seconds)
            connection.send_bytes(compute(function, task))


def compute(function: Callable[[Any], Any], task: bytes) -> bytes:
    """Returns (result, None) or (None, error), pickled."""
    try:
        return pickle.dumps((function(pickle.loads(task)), None), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        # torch raises a RuntimeError with the system's text.
        if isinstance(error, MemoryError) or os.strerror(errno.ENOMEM) in str(error):
            return pickle.dumps((None, Rejected(Reason.TOO_EXPENSIVE, "needs too much memory")))
        with suppress(Exception):
            pickled = pickle.dumps((None, error))
            pickle.loads(pickled)
            return pickled
        return pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}")))


def limit_memory(more_bytes: int) -> None:
    """Limits this process to ``more_bytes`` of additional memory; only on Linux.

    Private writable memory counts: not mapped files, nor address space that a library reserves.
    """
    if sys.platform != "linux":
        return
    with open("/proc/self/status") as lines:
        used = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:"))
    _lower(resource.RLIMIT_DATA, used + more_bytes)


def limit_processor_time(seconds: int) -> None:
    """Limits this process to ``seconds`` more of processor time, rounded up."""
    _lower(resource.RLIMIT_CPU, math.ceil(time.process_time()) + seconds)
    _lower(
        resource.RLIMIT_CORE, 0
    )  # a process killed by the signal would otherwise dump its memory to disk


def _lower(kind: int, value: int) -> None:
    """Sets a limit, but not above the one that cannot be raised."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))
