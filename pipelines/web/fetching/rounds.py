"""Rounds: in each, every bucket that has URLs is fetched by one worker at a time.

What leads from one bucket to another waits for the next round; when no URL is left, what failed
is tried once more. The workers are processes here, or those of a Beam runner.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from vlmill.pipelines.web.fetching.work import Fetching, fetch_bucket, pull_all, retry_failed
from vlmill.runtime.console.command import print_status
from vlmill.runtime.files.remote_lock import require_held
from vlmill.runtime.units.pool import open_workers

RunRound = Callable[[Sequence[int]], None]
"""Fetches what waits in these buckets"""


def run_rounds(job: Fetching, run_round: RunRound) -> None:
    """Runs round after round until no URL waits, then as many passes over what failed."""
    _until_done(job, run_round)
    for number in range(1, job.policy.retries + 1):
        if failed := retry_failed(job, number):
            print_status(f"trying {failed} failed URLs once more, in {job.policy.retry_wait_s:g} s")
            time.sleep(job.policy.retry_wait_s)
        _until_done(job, run_round)


def _until_done(job: Fetching, run_round: RunRound) -> None:
    while buckets := pull_all(job):
        run_round(buckets)


@contextmanager
def rounds_here(job: Fetching, number: int) -> Iterator[RunRound]:
    """Gives what runs rounds in ``number`` processes of this machine, which serve all of them.

    A round ends where another run has taken over an output in a store.
    """
    with open_workers(number, job, fetch_bucket.__module__) as workers:

        def run_round(buckets: Sequence[int]) -> None:
            for _ in workers.map_units(fetch_bucket, buckets, lambda: require_held(job.output)):
                pass

        yield run_round
