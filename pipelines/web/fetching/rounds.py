"""Runs rounds: in each, every bucket that has URLs is fetched by one worker at a time.

URLs that lead from one bucket to another wait for the next round; when no URL remains, failed
URLs are tried once more. A round has two steps of the engine: the first exchanges URLs between the
buckets, in one process; the units of the second are the buckets with waiting URLs. Between them no
journal is open in two processes, so that the parts of a crawl may run on several machines.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from vlmill.pipelines.web.fetching.entries import SUCCESSES
from vlmill.pipelines.web.fetching.work import FetchState, fetch_bucket, pull_all, retry_failed
from vlmill.runtime.console.command import print_status
from vlmill.runtime.files.paths import remove_tree
from vlmill.runtime.units.numbers import BYTES, Numbers, count_rejects
from vlmill.runtime.units.run_here import run_here, wait_for_others
from vlmill.runtime.units.runner import RunSteps
from vlmill.runtime.units.share import Share
from vlmill.runtime.units.step import Step, single_unit
from vlmill.runtime.units.unit import Result, Unit

_OUTCOMES = """
SELECT outcome, count(*), total(bytes) FROM urls WHERE outcome IS NOT NULL GROUP BY outcome
"""
WAITING = "waiting"  # the buckets with waiting URLs, in the record of an exchange


def run_rounds(job: FetchState, run_steps: RunSteps, share: Share | None = None) -> None:
    """Runs rounds until no URL waits, then the retry rounds for failed URLs.

    The journals hold the remaining work, and the records of rounds are for the other parts of a
    crawl: without a ``share`` a run begins with new rounds.
    """
    if share is None:
        remove_tree(_records(job))
    number = 0
    for retry in range(job.policy.retries + 1):
        while buckets := _exchange(job, number, retry, share):
            run_steps(job, [make_round(buckets, number)])
            number += 1
        number += 1


def run_rounds_here(job: FetchState, workers: int) -> None:
    """Runs all rounds in ``workers`` processes of this machine."""
    run_rounds(job, partial(run_here, workers=workers, module=__name__))


def run_alone(
    job: FetchState, name: str, work: Callable[[FetchState, Unit], Result], share: Share | None
) -> Result:
    """Runs a step of a single unit in this process; with a ``share`` only part 1 runs it.

    The other parts wait for its result, which all parts return.
    """
    step = Step[FetchState](name=name, units=partial(single_unit, name), work=work, folder=_records)
    run_here(job, [step], workers=1, module=__name__, share=share)
    if share is not None and share.number > 1:
        wait_for_others(job, step, step.units(job), share)
    return next(step.results(job))


def make_round(buckets: Sequence[int], number: int) -> Step[FetchState]:
    """Returns the step of round ``number``, which fetches the waiting URLs of these buckets."""
    units = partial(_bucket_units, tuple(buckets), number)
    return Step(name="fetch", units=units, work=_fetch, folder=_records)


def _exchange(job: FetchState, number: int, retry: int, share: Share | None) -> list[int]:
    """Gives the buckets the URLs for round ``number``; returns those with waiting URLs."""
    result = run_alone(job, f"exchange-{number:04d}", partial(_exchange_urls, retry), share)
    waiting: list[int] = result.metrics[WAITING]
    return waiting


def _exchange_urls(retry: int, job: FetchState, _: Unit) -> Result:
    if retry and (failed := retry_failed(job, retry)):
        print_status(f"trying {failed} failed URLs once more, in {job.policy.retry_wait_s:g} s")
        time.sleep(job.policy.retry_wait_s)
    return Result(metrics={WAITING: pull_all(job)})


def _records(job: FetchState) -> Path:
    """Returns the folder of the records of rounds."""
    return job.folder.with_name("rounds")


def _bucket_units(buckets: tuple[int, ...], number: int, job: FetchState) -> list[Unit]:
    return [Unit(name=f"{number:04d}-bucket-{bucket:05d}", number=bucket) for bucket in buckets]


def _fetch(job: FetchState, unit: Unit) -> Result:
    before = count_outcomes(job, unit.number)
    fetch_bucket(job, unit.number)
    return Result(numbers=count_outcomes(job, unit.number) - before)


def count_outcomes(job: FetchState, bucket: int) -> Numbers:
    """Counts a bucket's URLs with an outcome, their bytes, and the URLs without content."""
    numbers = Numbers()
    with job.journal(bucket) as journal:
        for outcome, urls, num_bytes in journal.rows(_OUTCOMES):
            numbers += Numbers({"urls": urls, BYTES: int(num_bytes)})
            if outcome not in SUCCESSES:
                numbers += count_rejects({outcome: urls})
    return numbers
