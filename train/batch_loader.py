"""Batches one after the other, planned by processes and filled by a thread ahead of training."""

import queue
import threading
from collections.abc import Generator, Iterator

import torch
from torch.utils.data import DataLoader, Dataset

from vlmill.schemas.commands import InputError
from vlmill.train.assembly import assemble
from vlmill.train.batches import PretrainBatches
from vlmill.train.planned_batch import PlannedBatch
from vlmill.train.stored_batch import StoredBatch

AHEAD = 2  # assembled batches that wait


def batch_loader(
    batches: PretrainBatches,
    first: int,
    last: int,
    *,
    workers: int,
    pin_memory: bool,
    every: int = 1,
) -> Generator[StoredBatch, None, None]:
    """Batches ``first`` up to but not including ``last``, in order, made by ``workers`` processes.

    With ``every`` above 1 only each so-many-th: the share of one of several processes. Workers plan
    the batches; a thread of this process copies the features, so that these never travel between
    processes. Workers are spawned, not forked: Arrow's threads do not survive a fork.
    """
    planned = DataLoader(
        _Plans(batches),
        batch_size=None,
        sampler=range(first, last, every),
        num_workers=workers,
        # Without one of its own the loader draws from the random numbers that dropout uses, and a
        # resumed run would have other ones than a run without a pause.
        generator=torch.Generator(),
        multiprocessing_context="spawn" if workers else None,
    )
    made = (assemble(_sound(one), batches.regions, pin_memory=pin_memory) for one in planned)
    return _ahead(made) if workers else made


class _Plans(Dataset[PlannedBatch | InputError]):
    """The plans of batches, or what is wrong with the data: an error that is raised in a worker
    comes with a traceback in its message.
    """

    def __init__(self, batches: PretrainBatches) -> None:
        self.batches = batches

    def __getitem__(self, index: int) -> PlannedBatch | InputError:
        try:
            return self.batches[index]
        except InputError as error:
            return error


def _sound(planned: PlannedBatch | InputError) -> PlannedBatch:
    if isinstance(planned, InputError):
        raise planned
    return planned


def _ahead(made: Iterator[StoredBatch]) -> Generator[StoredBatch, None, None]:
    """The same batches, made by a thread a little ahead of who asks for them."""
    waiting: queue.Queue[StoredBatch | BaseException | None] = queue.Queue(maxsize=AHEAD)
    stopped = threading.Event()

    def put(value: StoredBatch | BaseException | None) -> bool:
        while not stopped.is_set():
            try:
                waiting.put(value, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for one in made:
                if not put(one):
                    return
            put(None)
        except BaseException as error:  # of whatever kind: it is raised where batches are asked for
            put(error)

    thread = threading.Thread(target=work, name="batches", daemon=True)
    thread.start()
    try:
        while (one := waiting.get()) is not None:
            if isinstance(one, BaseException):
                raise one
            yield one
    finally:
        stopped.set()
        thread.join()
