"""Runs rounds: in each, every bucket that has URLs is fetched by one worker at a time.

URLs that lead from one bucket to another wait for the next round; when no URL remains, failed
URLs are tried once more. A round is a step of the engine whose units are buckets: their journals
hold the remaining work, so that no unit has a record.
"""

import time
from collections.abc import Sequence
from functools import partial

from vlmill.pipelines.web.fetching.entries import SUCCESSES
from vlmill.pipelines.web.fetching.work import Fetching, fetch_bucket, pull_all, retry_failed
from vlmill.runtime.console.command import print_status
from vlmill.runtime.units.numbers import BYTES, Numbers, count_rejects
from vlmill.runtime.units.run_here import run_here
from vlmill.runtime.units.runner import RunSteps
from vlmill.runtime.units.step import Step
from vlmill.runtime.units.unit import Result, Unit

_OUTCOMES = """
SELECT outcome, count(*), total(bytes) FROM urls WHERE outcome IS NOT NULL GROUP BY outcome
"""


def run_rounds(job: Fetching, run_steps: RunSteps) -> None:
    """Runs rounds until no URL waits, then the retry rounds for failed URLs."""
    _until_done(job, run_steps)
    for number in range(1, job.policy.retries + 1):
        if failed := retry_failed(job, number):
            print_status(f"trying {failed} failed URLs once more, in {job.policy.retry_wait_s:g} s")
            time.sleep(job.policy.retry_wait_s)
        _until_done(job, run_steps)


def run_rounds_here(job: Fetching, workers: int) -> None:
    """Runs all rounds in ``workers`` processes of this machine."""
    run_rounds(job, partial(run_here, workers=workers, module=__name__))


def _until_done(job: Fetching, run_steps: RunSteps) -> None:
    while buckets := pull_all(job):
        run_steps(job, [make_round(buckets)])


def make_round(buckets: Sequence[int]) -> Step[Fetching]:
    """Returns the step that fetches the waiting URLs of these buckets."""
    units = partial(_bucket_units, tuple(buckets))
    return Step(name="fetch", units=units, work=_fetch, recorded=False)


def _bucket_units(buckets: tuple[int, ...], job: Fetching) -> list[Unit]:
    return [Unit(name=f"bucket-{bucket:05d}", number=bucket) for bucket in buckets]


def _fetch(job: Fetching, unit: Unit) -> Result:
    before = count_outcomes(job, unit.number)
    fetch_bucket(job, unit.number)
    return Result(numbers=count_outcomes(job, unit.number) - before)


def count_outcomes(job: Fetching, bucket: int) -> Numbers:
    """Counts a bucket's URLs with an outcome, their bytes, and the URLs without content."""
    numbers = Numbers()
    with job.journal(bucket) as journal:
        for outcome, urls, num_bytes in journal.rows(_OUTCOMES):
            numbers += Numbers({"urls": urls, BYTES: int(num_bytes)})
            if outcome not in SUCCESSES:
                numbers += count_rejects({outcome: urls})
    return numbers
