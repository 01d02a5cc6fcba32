"""Batches one after the other, planned by processes and filled by a thread ahead of training."""

import queue
import signal
import threading
from collections.abc import Generator, Iterator, Sequence

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset

from vlmill.runtime.bus_errors import name_shrunken_files
from vlmill.runtime.console.stopping import STOP_SIGNALS
from vlmill.schemas.errors import InputError
from vlmill.train.loading.batch import HostBatch
from vlmill.train.loading.features import read_features
from vlmill.train.loading.stage_batches import StageBatches

# Batches that are assembled or wait. One is enough, as plans wait as well; and the fewer blocks of
# memory go round, the more of them the cache holds: five of 13 MB take a quarter longer than two.
AHEAD = 1
# Plans that a worker sends at once: a message of its own for each would cost 8 us an image.
TOGETHER = 8
GRACE_S = 60  # that a worker stays after it was told to end: a step, and a checkpoint saved


def batch_loader(
    batches: StageBatches,
    first: int,
    last: int,
    *,
    workers: int,
    device: torch.device | None = None,
    every: int = 1,
) -> Generator[HostBatch, None, None]:
    """Batches ``first`` up to but not including ``last``, in order, made by ``workers`` processes.

    With ``every`` = N, yields every N-th batch: one rank's share. Workers collate
    the batches; a thread of this process copies the features, so that these never travel between
    processes. For a GPU, ``device``, they lie in pinned memory. Workers are spawned, not forked:
    Arrow's threads do not survive a fork.
    """
    # Images travel with their plans, and wake the thread often enough as it is.
    together = TOGETHER if workers and batches.images is None else 1
    plans = DataLoader(
        _Plans(batches),
        batch_size=None,
        sampler=BatchSampler(range(first, last, every), together, drop_last=False),
        num_workers=workers,
        # Without one of its own the loader draws from the random numbers that dropout uses, and a
        # resumed run would have other ones than a run without a pause.
        generator=torch.Generator(),
        multiprocessing_context="spawn" if workers else None,
        worker_init_fn=_prepare_worker,
    )
    pin_memory = device is not None and device.type == "cuda"
    loaded = (
        read_features(_sound(batch), batches.regions, pin_memory=pin_memory)
        for sent_together in plans
        for batch in sent_together
    )
    if not workers:
        return loaded
    return _ahead(loaded, torch.cuda.current_device() if pin_memory else None)


def _prepare_worker(worker: int) -> None:
    """Names files that shrink, and ignores stop signals for GRACE_S: the trainer stops its workers
    after it has saved.

    Whoever stops a job (a scheduler, a container, Ctrl-C) often tells all of its processes, and a
    run that saves and goes on later needs its workers until it has saved.
    """
    name_shrunken_files()  # in place of torch's own handler, which names no file
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: signal.alarm(GRACE_S))


class _Plans(Dataset[list[HostBatch | InputError]]):
    """The plans of some batches each, or what is wrong with the data: an error that is raised in a
    worker comes with a traceback in its message.
    """

    def __init__(self, batches: StageBatches) -> None:
        self.batches = batches

    def __getitem__(self, numbers: Sequence[int]) -> list[HostBatch | InputError]:
        return [self._plan(number) for number in numbers]

    def _plan(self, number: int) -> HostBatch | InputError:
        try:
            return self.batches[number]
        except InputError as error:
            return error


def _sound(batch: HostBatch | InputError) -> HostBatch:
    if isinstance(batch, InputError):
        raise batch
    return batch


def _ahead(
    batches: Iterator[HostBatch], gpu: int | None = None
) -> Generator[HostBatch, None, None]:
    """Yields the same batches, which a thread reads a little ahead of who asks for them.

    A thread begins on the first GPU, whatever its process is on: without ``gpu`` it would pin
    memory there, and hold some of that GPU's.
    """
    waiting: queue.SimpleQueue[HostBatch | BaseException | None] = queue.SimpleQueue()
    slots, stopped = threading.Semaphore(AHEAD), threading.Event()

    def work() -> None:
        try:
            if gpu is not None:
                torch.cuda.set_device(gpu)
            while slots.acquire() and not stopped.is_set():
                waiting.put(next(batches, None))  # no name of ours keeps a batch's memory
        except BaseException as error:  # of whatever kind: it is raised where batches are asked for
            waiting.put(error)

    thread = threading.Thread(target=work, name="batches", daemon=True)
    thread.start()
    try:
        while (item := waiting.get()) is not None:
            slots.release()
            if isinstance(item, BaseException):
                raise item
            yield item
            del item
    finally:
        stopped.set()
        slots.release()
        thread.join()
