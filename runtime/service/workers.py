"""Computes batches in worker processes; one that dies loses its batches and is restarted.

The thread that feeds a worker survives a full disk and a lack of descriptors, threads and memory.
"""

import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from vlmill.runtime.processes import live_as_long_as_the_parent, process_context
from vlmill.runtime.service.logs import LogStream, flush_log, log
from vlmill.runtime.service.overload import Pace, WorkerLoad
from vlmill.runtime.service.queue import BatchQueue, Item
from vlmill.runtime.service.refusals import RequestRefused
from vlmill.runtime.service.settings import ServiceSettings
from vlmill.schemas.errors import InputError

AHEAD = 2  # batches of a worker: the one that it computes, and a full one that is next
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0  # seconds before a dead worker is restarted
STUCK_SECONDS = 600.0  # a batch that takes longer is abandoned, and its worker killed
POLL_SECONDS = 5.0
START_SECONDS = 900.0


@dataclass(frozen=True, kw_only=True)
class WorkerContext:
    """Holds the work function of a worker and its description; ``about`` is plain JSON values."""

    compute: Callable[[Sequence[Any]], Sequence[Any]]
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Replaces a result after an internal error, with its traceback for the log."""

    trace: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Describes a worker process: ``open`` is called there, and must be picklable.

    ``module`` is imported before processes are forked.
    """

    name: str
    module: str
    open: Callable[[], WorkerContext]


@dataclass(frozen=True, kw_only=True)
class Watcher:
    """Receives events of workers, from their threads."""

    batch_computed: Callable[[int, float], None]  # items, seconds in the worker
    event: Callable[[str, Mapping[str, Any]], None]


class Worker:
    """Manages one worker process, and feeds it from the queue with two threads."""

    def __init__(
        self, plan: Plan, queue: BatchQueue, settings: ServiceSettings, watcher: Watcher
    ) -> None:
        self.plan, self._queue, self._settings = plan, queue, settings
        self._watcher = watcher
        self._stopped = threading.Event()
        self.is_ready, self.restarts = False, 0
        self.process: BaseProcess | None = None
        self.about: Mapping[str, Any] = {}
        self.pace = Pace()
        self._sent: deque[list[Item]] = deque()  # batches that the process has
        self._computing_since, self._has_computed = 0.0, False
        self._thread: threading.Thread | None = None

    def start(self) -> Connection:
        """Starts the process; :meth:`wait_until_ready` waits for its first message.

        Raises OSError, EOFError or RuntimeError if the pipe or the process cannot be created.
        """
        context = process_context(self.plan.module)
        parent_end, child_end = context.Pipe()
        try:
            process = context.Process(target=work, args=(child_end, self.plan.open))
            process.start()
        except BaseException:
            parent_end.close()
            raise
        finally:
            child_end.close()
        self.process = process
        return parent_end

    def wait_until_ready(self, connection: Connection) -> None:
        """Waits until the process is ready. Raises InputError or OSError if it cannot be."""
        try:
            if not connection.poll(START_SECONDS):
                raise EOFError
            kind, payload = connection.recv()
        except (EOFError, OSError):
            assert self.process is not None
            self.process.join(5)
            raise ChildProcessError(
                f"the process of {self.plan.name} ended with status {self.process.exitcode} before "
                "it was ready"
            ) from None
        if kind == "mistake":
            raise InputError(payload)
        if kind == "failed":
            raise OSError(payload)
        self.about, self.is_ready = payload, True

    def feed(self, connection: Connection) -> None:
        """Starts to send waiting items to the process, and to restart it whenever it ends."""
        self._thread = threading.Thread(target=self._keep, args=(connection,), daemon=True)
        self._thread.start()

    @property
    def is_fed(self) -> bool:
        """Returns whether the thread that sends batches to the process is alive."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def load(self) -> WorkerLoad:
        """Returns the weight of the process's work."""
        weights = [sum(item.weight for item in batch) for batch in list(self._sent)]
        elapsed = time.monotonic() - self._computing_since if weights else 0.0
        return WorkerLoad(
            seconds_per_weight=self.pace.seconds_per_weight, weights=weights, elapsed=elapsed
        )

    @property
    def max_weight(self) -> int:
        """Returns the largest weight of the next batch that is expected to keep its time limit."""
        settings = self._settings
        if settings.batch_seconds is None:
            return settings.batch
        each = self.pace.seconds_per_weight
        return max(1, min(settings.batch, int(settings.batch_seconds / each))) if each else 1

    def stop(self) -> None:
        """Ends the process and its computation."""
        self._stopped.set()
        self._queue.wake()
        self._end()
        if self._thread is not None:
            self._thread.join()
        self._end()  # one that was just being started

    def _end(self) -> int | None:
        if self.process is None:
            return None
        self.process.kill()
        self.process.join()
        return self.process.exitcode

    def _keep(self, connection: Connection | None) -> None:
        pause = FIRST_PAUSE
        while not self._stopped.is_set():
            begin, self._has_computed = time.monotonic(), False
            try:
                if connection is None:
                    connection = self.start()
                    self.wait_until_ready(connection)
                    self.restarts += 1
                    self._watcher.event("worker_started", {"worker": self.plan.name})
                self._serve(connection)
            except (InputError, OSError, EOFError) as error:
                name = type(error).__name__
                self._watcher.event("worker_not_ready", {"error": str(error) or name})
            except Exception:  # also missing threads or memory, which may be available later
                self._watcher.event("error", {"trace": traceback.format_exc()})
            finally:
                self.is_ready = False
                status = self._end()
                if connection is not None:
                    connection.close()
                    connection = None
            if self._stopped.is_set():
                return
            self._watcher.event("worker_ended", {"worker": self.plan.name, "status": status})
            # A worker that has computed a batch worked until it was ended from outside.
            if self._has_computed or time.monotonic() - begin > LONGEST_PAUSE:
                pause = FIRST_PAUSE
            self._stopped.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _serve(self, connection: Connection) -> None:
        """Sends batches until the process ends; its last batch is then refused."""
        self._sent.clear()
        free_slots = threading.Semaphore(AHEAD)
        ended = threading.Event()

        def receive() -> None:
            try:
                self._receive(connection, free_slots)
            except (EOFError, OSError):
                pass  # the process has ended
            except Exception:  # for example, a result that cannot be unpickled
                self._watcher.event("error", {"trace": traceback.format_exc()})
            finally:
                ended.set()
                free_slots.release()
                self._queue.wake()

        receiver = threading.Thread(target=receive, daemon=True)
        receiver.start()
        try:
            self._send(connection, free_slots, lambda: ended.is_set() or self._stopped.is_set())
        finally:
            self._end()  # and so the receiver
            receiver.join()
            for batch in self._sent:
                for item in batch:
                    fail_item(item, RequestRefused(503, "worker_lost", LOST, retry_after=1))
            self._sent.clear()

    def _send(
        self, connection: Connection, free_slots: threading.Semaphore, has_ended: Callable[[], bool]
    ) -> None:
        while not has_ended():
            free_slots.acquire()
            # While a batch is computed, only a full one is sent in advance: others may still grow.
            batch = self._queue.take(
                self.max_weight,
                self._settings.batch_wait if self._settings.batch > 1 else 0.0,
                ahead=lambda: bool(self._sent),
                ended=has_ended,
            )
            if not batch:
                return
            if not self._sent:
                self._computing_since = time.monotonic()
            self._sent.append(batch)
            try:
                connection.send([item.payload for item in batch])
            except (OSError, ValueError):
                return

    def _receive(self, connection: Connection, free_slots: threading.Semaphore) -> None:
        idle = 0.0
        while idle < STUCK_SECONDS:
            if not connection.poll(POLL_SECONDS):
                idle = idle + POLL_SECONDS if self._sent else 0.0
                continue
            results, seconds = connection.recv()
            idle = 0.0
            self._computing_since = time.monotonic()
            self._settle(self._sent[0], results, seconds)
            self._sent.popleft()
            self._has_computed = True
            self._watcher.batch_computed(len(results), seconds)
            free_slots.release()
            self._queue.wake()

    def _settle(self, batch: Sequence[Item], results: Sequence[Any], seconds: float) -> None:
        self.pace.add(sum(item.weight for item in batch), seconds)
        for item, result in zip(batch, results, strict=True):
            if isinstance(result, Failure):
                self._watcher.event("error", {"trace": result.trace})
                fail_item(
                    item,
                    RequestRefused(500, "internal_error", "an error of the server; it is logged"),
                )
            else:
                item.future.set_result(result)


LOST = "the worker process was lost; send the request again"


def fail_item(item: Item, why: RequestRefused) -> None:
    """Sets a refusal as the outcome of an item, unless it has an outcome."""
    if not item.future.done():
        item.future.set_exception(why)


# --- in a worker process --------------------------------------------------------------------------


def work(connection: Connection, open_: Callable[[], WorkerContext]) -> None:
    """Computes incoming batches until the other end is closed."""
    live_as_long_as_the_parent()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the front process drains, and ends this one
    # A warning must not block if nobody reads standard error.
    with redirect_stderr(LogStream()):
        try:
            compute_batches(connection, open_)
        except Exception:
            log("worker_failed", trace=traceback.format_exc())
            sys.exit(1)
        finally:
            flush_log()


def compute_batches(connection: Connection, open_: Callable[[], WorkerContext]) -> None:
    """Opens the worker's context, reports it, and computes batches."""
    try:
        context = open_()
    except InputError as error:
        connection.send(("mistake", str(error)))
        return
    except OSError as error:
        connection.send(("failed", str(error)))
        return
    connection.send(("ready", dict(context.about)))
    with suppress(EOFError, BrokenPipeError):
        while True:
            payloads = connection.recv()
            begin = time.perf_counter()
            try:
                results = compute_batch(context.compute, payloads)
            except (
                OSError
            ) as error:  # for example, the device is lost: another process may get it again
                log("worker_failed", error=str(error))
                return
            connection.send((results, time.perf_counter() - begin))


def compute_batch(
    compute: Callable[[Sequence[Any]], Sequence[Any]], payloads: Sequence[Any]
) -> list[Any]:
    """Computes a batch; if that fails, computes each item alone, so that only the bad one fails.

    Raises OSError if the process cannot compute any more.
    """
    try:
        return list(compute(payloads))
    except OSError:
        raise
    except Exception:
        if len(payloads) == 1:
            return [Failure(trace=traceback.format_exc())]
    return [result for payload in payloads for result in compute_batch(compute, [payload])]
