"""Rounds: in each, every bucket that has URLs is fetched by one worker at a time.

What leads from one bucket to another waits for the next round; when no URL is left, what failed
is tried once more. The workers are processes here, or those of a Beam runner.
"""

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.synchronize import Event

from vlmill.pipelines.fetching.work import Fetching, fetch_bucket, pull_all, retry_failed
from vlmill.schemas.console.command import say

RunRound = Callable[[Fetching, Sequence[int]], None]
"""Fetches what waits in these buckets"""

_stop: Event | None = None  # of a worker's process


def run_rounds(job: Fetching, run_round: RunRound) -> None:
    """Runs round after round until no URL waits, then as many passes over what failed."""
    _until_done(job, run_round)
    for number in range(1, job.manners.retries + 1):
        if failed := retry_failed(job, number):
            say(f"trying {failed} failed URLs once more, in {job.manners.retry_wait_s:g} s")
            time.sleep(job.manners.retry_wait_s)
        _until_done(job, run_round)


def _until_done(job: Fetching, run_round: RunRound) -> None:
    while buckets := pull_all(job):
        run_round(job, buckets)


@contextmanager
def local_workers(number: int) -> Iterator[RunRound]:
    """Gives what runs rounds in ``number`` processes, which serve all of them; 1: in this one."""
    if number == 1:
        yield _in_this_process
        return
    context = multiprocessing.get_context("spawn")  # this process may have threads
    stop = context.Event()
    pool = ProcessPoolExecutor(number, context, initializer=_begin, initargs=(stop,))

    def run_round(job: Fetching, buckets: Sequence[int]) -> None:
        try:
            for future in as_completed([pool.submit(_fetch, job, b) for b in buckets]):
                future.result()
        except BrokenProcessPool:
            raise OSError("a worker was killed, perhaps for memory; give fewer --workers") from None

    try:
        yield run_round
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _in_this_process(job: Fetching, buckets: Sequence[int]) -> None:
    for bucket in buckets:
        fetch_bucket(job, bucket)


def _begin(stop: Event) -> None:
    """Begins a worker: an interruption is its run's to take, which tells it to stop."""
    global _stop
    _stop = stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _fetch(job: Fetching, bucket: int) -> None:
    assert _stop is not None
    fetch_bucket(job, bucket, stopped=_stop.is_set)
