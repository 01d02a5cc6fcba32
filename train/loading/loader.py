"""Loads batches in order: processes plan them, and a thread fills them ahead of training."""

import queue
import signal
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, get_worker_info

from vlmill.runtime.bus_errors import name_shrunken_files
from vlmill.runtime.console.stopping import STOP_SIGNALS
from vlmill.runtime.processes import process_context
from vlmill.runtime.readers.regions import RegionReader, Regions
from vlmill.schemas.errors import InputError
from vlmill.train.loading.batch import HostBatch
from vlmill.train.loading.features import read_features
from vlmill.train.loading.stage_batches import StageBatches

# Batches that are assembled or wait. One is enough, as plans wait as well. The cache also holds a
# larger share of fewer blocks of memory: five of 13 MB take a quarter longer than two.
AHEAD = 1
# Plans that a worker sends per message: a message for each would cost 8 us per image.
TOGETHER = 8
GRACE_S = 60  # that a worker stays after a stop signal: enough for a step and a saved checkpoint


def batch_loader(
    batches: StageBatches,
    first: int,
    last: int,
    *,
    workers: int,
    device: torch.device | None = None,
    every: int = 1,
) -> Generator[HostBatch, None, None]:
    """Yields batches ``first`` to below ``last`` in order, made by ``workers`` processes.

    With ``every`` = N, yields every N-th batch: the share of one rank. Workers collate the batches;
    a thread of this process copies the features, so that these never travel between processes. For
    a GPU ``device`` they are in pinned memory. Workers are forks of a process that has only
    imported this module: Arrow's threads do not survive a fork of the trainer, and to import torch
    again takes each worker two seconds.
    """
    # Images are sent with their plans, so messages are frequent enough without grouping.
    together = TOGETHER if workers and batches.images is None else 1
    plans = DataLoader(
        _Plans(batches),
        batch_size=None,
        sampler=BatchSampler(range(first, last, every), together, drop_last=False),
        num_workers=workers,
        # Without its own generator the loader would use dropout's random numbers, and a resumed run
        # would have different ones than an uninterrupted run.
        generator=torch.Generator(),
        multiprocessing_context=process_context(__name__) if workers else None,
        worker_init_fn=_prepare_worker,
    )
    pin_memory = device is not None and device.type == "cuda"
    loaded = _read(plans, batches.regions, pin_memory=pin_memory)
    if not workers:
        return loaded
    return _ahead(loaded, torch.cuda.current_device() if pin_memory else None)


def _prepare_worker(worker: int) -> None:
    """Names files that shrink, and ignores stop signals for GRACE_S: the trainer stops its workers
    after it has saved.

    A scheduler, a container or Ctrl-C often signals all processes of a job, and a run that saves
    and continues later needs its workers until it has saved.
    """
    name_shrunken_files()  # replaces torch's handler, which does not name the file
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: signal.alarm(GRACE_S))


class _Plans(Dataset[list[HostBatch | InputError]]):
    """Plans batches in lists, or returns the InputError of invalid data: an error that is raised in
    a worker would have a traceback in its message.
    """

    def __init__(self, batches: StageBatches) -> None:
        self.batches = batches

    def __getitem__(self, numbers: Sequence[int]) -> list[HostBatch | InputError]:
        plans = list[HostBatch | InputError]()
        for number in numbers:
            try:
                plans.append(batch := self.batches[number])
            except InputError as error:
                plans.append(error)
                continue
            if get_worker_info() is not None:  # elsewhere the features are read immediately
                _read_ahead(batch, self.batches.regions)
        return plans


def _read_ahead(batch: HostBatch, regions: Regions | None) -> None:
    """Makes the system read the features ahead while this and other batches are planned."""
    if isinstance(regions, RegionReader):
        for part in (part for first in batch.stored for part in (first, *first.more)):
            if part.location is not None:
                regions.read_ahead(*part.location)


def _read(
    plans: Iterable[Sequence[HostBatch | InputError]],
    regions: Regions | None,
    *,
    pin_memory: bool,
) -> Generator[HostBatch, None, None]:
    """Yields each batch with its features, or raises its error."""
    for sent_together in plans:
        for batch in sent_together:
            if isinstance(batch, InputError):
                raise batch
            yield read_features(batch, regions, pin_memory=pin_memory)


def _ahead(
    batches: Iterator[HostBatch], gpu: int | None = None
) -> Generator[HostBatch, None, None]:
    """Yields the same batches, read a little ahead by a thread.

    A new thread uses the first GPU, regardless of its process's GPU: without ``gpu`` it would pin
    memory there, and occupy some of that GPU's memory.
    """
    waiting: queue.SimpleQueue[HostBatch | BaseException | None] = queue.SimpleQueue()
    slots, stopped = threading.Semaphore(AHEAD), threading.Event()

    def work() -> None:
        try:
            if gpu is not None:
                torch.cuda.set_device(gpu)
            while slots.acquire() and not stopped.is_set():
                waiting.put(next(batches, None))  # no local name keeps a batch's memory
        except BaseException as error:  # of any type: it is raised where batches are requested
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
