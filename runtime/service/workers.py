"""Worker processes compute batches; one that dies costs its batches, and is started again."""

import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from vlmill.runtime.processes import live_as_long_as_the_parent, process_context
from vlmill.runtime.service.logs import log
from vlmill.runtime.service.queue import BatchQueue, Item
from vlmill.runtime.service.refusals import RequestRefused
from vlmill.runtime.service.settings import ServiceSettings
from vlmill.schemas.errors import InputError

AHEAD = 2  # batches that a worker has: one that it computes, a full one that comes next
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0  # seconds before a worker that died is started again
STUCK_SECONDS = 600.0  # a batch that takes longer is given up, and its worker killed
POLL_SECONDS = 5.0
START_SECONDS = 900.0


@dataclass(frozen=True, kw_only=True)
class WorkerContext:
    """What a worker computes with, and what it says of itself; ``about`` is plain JSON values."""

    compute: Callable[[Sequence[Any]], Sequence[Any]]
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A result that is none: an error of ours, with its traceback for the log."""

    trace: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Says what a worker process is: ``open`` is called there, and has to be picklable.

    ``module`` is imported before processes are forked.
    """

    name: str
    module: str
    open: Callable[[], WorkerContext]


@dataclass(frozen=True, kw_only=True)
class Watcher:
    """Is told what happens to workers, from their threads."""

    batch_computed: Callable[[int, float], None]  # items, seconds in the worker
    event: Callable[[str, Mapping[str, Any]], None]


class Worker:
    """Keeps one worker process, and feeds it from the queue by two threads."""

    def __init__(
        self, plan: Plan, queue: BatchQueue, settings: ServiceSettings, watcher: Watcher
    ) -> None:
        self.plan, self._queue, self._settings = plan, queue, settings
        self._watcher = watcher
        self._stopped = threading.Event()
        self.is_ready, self.restarts = False, 0
        self.process: BaseProcess | None = None
        self.about: Mapping[str, Any] = {}
        self.seconds_per_weight = 0.0  # of late
        self._thread: threading.Thread | None = None

    def start(self) -> Connection:
        """Starts the process; what it says first is waited for with :meth:`welcome`."""
        context = process_context(self.plan.module)
        parent_end, child_end = context.Pipe()
        self.process = context.Process(target=work, args=(child_end, self.plan.open))
        self.process.start()
        child_end.close()
        return parent_end

    def welcome(self, connection: Connection) -> None:
        """Waits until the process is ready. Raises InputError or OSError where it will not be."""
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
        """Begins to give the process what waits, and to start it again whenever it ends."""
        self._thread = threading.Thread(target=self._keep, args=(connection,), daemon=True)
        self._thread.start()

    @property
    def max_weight(self) -> int:
        """What a batch may weigh now: what takes no longer than it may, as far as is known."""
        settings = self._settings
        if settings.batch_seconds is None:
            return settings.batch
        each = self.seconds_per_weight
        return max(1, min(settings.batch, int(settings.batch_seconds / each))) if each else 1

    def stop(self) -> None:
        """Ends the process, and what it was computing."""
        self._stopped.set()
        self._queue.wake()
        self._end()
        if self._thread is not None:
            self._thread.join()
        self._end()  # one that was just being started

    def _end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()

    def _keep(self, connection: Connection) -> None:
        pause = FIRST_PAUSE
        while not self._stopped.is_set():
            begin = time.monotonic()
            self._serve(connection)
            self.is_ready = False
            connection.close()
            process = self.process
            assert process is not None
            process.kill()
            process.join()
            while not self._stopped.is_set():
                ran = time.monotonic() - begin
                pause = FIRST_PAUSE if ran > LONGEST_PAUSE else pause
                status = process.exitcode
                self._watcher.event("worker_ended", {"worker": self.plan.name, "status": status})
                if self._stopped.wait(pause):
                    return
                pause = min(2 * pause, LONGEST_PAUSE)
                begin = time.monotonic()
                connection = self.start()
                process = self.process
                assert process is not None
                try:
                    self.welcome(connection)
                except (InputError, OSError) as error:
                    self._watcher.event("worker_not_ready", {"error": str(error)})
                    process.kill()
                    process.join()
                    continue
                self.restarts += 1
                self._watcher.event("worker_started", {"worker": self.plan.name})
                break

    def _serve(self, connection: Connection) -> None:
        """Sends batches until the process ends; what it had then is refused."""
        sent: deque[list[Item]] = deque()
        free_slots = threading.Semaphore(AHEAD)
        ended = threading.Event()

        def receive() -> None:
            idle = 0.0
            try:
                while idle < STUCK_SECONDS:
                    if not connection.poll(POLL_SECONDS):
                        idle = idle + POLL_SECONDS if sent else 0.0
                        continue
                    results, seconds = connection.recv()
                    idle = 0.0
                    self._settle(sent[0], results, seconds)
                    sent.popleft()
                    free_slots.release()
                    self._queue.wake()
            except (EOFError, OSError):
                pass
            ended.set()
            free_slots.release()
            self._queue.wake()

        receiver = threading.Thread(target=receive, daemon=True)
        receiver.start()

        def has_ended() -> bool:
            return ended.is_set() or self._stopped.is_set()

        while not has_ended():
            free_slots.acquire()
            # While one is computed, only a full one goes ahead: others may still be joined.
            batch = self._queue.take(
                self.max_weight,
                self._settings.batch_wait if self._settings.batch > 1 else 0.0,
                ahead=lambda: bool(sent),
                ended=has_ended,
            )
            if not batch:
                break
            sent.append(batch)
            try:
                connection.send([item.payload for item in batch])
            except (OSError, ValueError):
                break
        assert self.process is not None
        self.process.kill()  # ends the receiver, too
        receiver.join()
        for batch in sent:
            for item in batch:
                _fail(item, RequestRefused(503, "worker_lost", LOST, retry_after=1))

    def _settle(self, batch: Sequence[Item], results: Sequence[Any], seconds: float) -> None:
        each = seconds / sum(item.weight for item in batch)
        late = self.seconds_per_weight
        self.seconds_per_weight = each if not late else 0.9 * late + 0.1 * each
        self._watcher.batch_computed(len(batch), seconds)
        for item, result in zip(batch, results, strict=True):
            if isinstance(result, Failure):
                self._watcher.event("error", {"trace": result.trace})
                _fail(
                    item,
                    RequestRefused(500, "internal_error", "an error of the server; it is logged"),
                )
            else:
                item.future.set_result(result)


LOST = "the process that computed this was lost; send the request again"


def _fail(item: Item, why: RequestRefused) -> None:
    if not item.future.done():
        item.future.set_exception(why)


# --- in a worker process --------------------------------------------------------------------------


def work(connection: Connection, open_: Callable[[], WorkerContext]) -> None:
    """Computes the batches that come, until the other end is closed."""
    live_as_long_as_the_parent()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the front process drains, and ends this one
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
            except OSError as error:  # the device is gone, say: another process may have it again
                log("worker_failed", error=str(error))
                return
            connection.send((results, time.perf_counter() - begin))


def compute_batch(
    compute: Callable[[Sequence[Any]], Sequence[Any]], payloads: Sequence[Any]
) -> list[Any]:
    """Computes a batch; if that fails, each by itself, so that one costs only itself.

    Raises OSError where nothing can be computed any more.
    """
    try:
        return list(compute(payloads))
    except OSError:
        raise
    except Exception:
        if len(payloads) == 1:
            return [Failure(trace=traceback.format_exc())]
    return [result for payload in payloads for result in compute_batch(compute, [payload])]
