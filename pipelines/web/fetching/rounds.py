"""Runs a fetch in rounds: in each, every bucket that has URLs is fetched by one worker at a time.

URLs that lead from one bucket to another wait for the next round; when no URL remains, failed
URLs are tried once more. The units of a round are buckets, on any runner. Between two rounds one
process reads the buckets' reports, and chooses the buckets of the next round. No journal is open in
two processes, so the workers may run on several machines.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from vlmill.pipelines.web.fetching.database import journal_errors
from vlmill.pipelines.web.fetching.hosts import MOST_BUCKETS
from vlmill.pipelines.web.fetching.tables import CrawlSummary, merge_summaries, write_tables
from vlmill.pipelines.web.fetching.work import FetchState, fetch_bucket
from vlmill.runtime.console.command import print_status
from vlmill.runtime.cores import all_cores
from vlmill.runtime.files.outputs import WORK
from vlmill.runtime.files.paths import remove_tree, to_path
from vlmill.runtime.units.run_here import run_here, wait_for_others
from vlmill.runtime.units.runner import RunSteps
from vlmill.runtime.units.share import Share
from vlmill.runtime.units.step import Step, single_unit
from vlmill.runtime.units.unit import Result, Unit

BUCKETS_PER_PART = 8  # without --buckets
BUCKETS_ON_RUNNER = 64  # without --buckets: the number of a runner's workers is not known here


def default_buckets(share: Share | None, *, on_runner: bool) -> int:
    """Returns the number of buckets; workers on different machines need the same number."""
    if share is not None:
        return min(share.count * BUCKETS_PER_PART, MOST_BUCKETS)
    return BUCKETS_ON_RUNNER if on_runner else all_cores()


def fetch_all(job: FetchState, run_steps: RunSteps, share: Share | None = None) -> None:
    """Runs rounds until no URL waits, then the retry rounds for failed URLs; writes the tables.

    The journals hold the remaining work, and the records of rounds are for the other parts of a
    crawl: without a ``share`` a run begins with new rounds.
    """
    if share is None:
        remove_tree(_records(job))
    plan: dict[str, Any] = {"buckets": list(range(job.buckets)), "retry": 0, "states": {}}
    number = 0
    while plan["buckets"]:
        run_steps(job, [make_round(plan["buckets"], number, plan["retry"])])
        choose = partial(_choose_buckets, plan, number)
        plan = run_alone(job, f"choose-{number:04d}", choose, share).metrics
        number += 1
    run_steps(job, [TABLES])


def _choose_buckets(plan: dict[str, Any], number: int, job: FetchState, _: Unit) -> Result:
    """Chooses the buckets of the next round, by the results of round ``number``."""
    step = make_round(plan["buckets"], number, plan["retry"])
    states: dict[str, dict[str, int]] = dict(plan["states"])
    buckets, retry = set[int](), int(plan["retry"])
    for bucket, result in zip(plan["buckets"], step.results(job), strict=True):
        buckets.update(result.metrics["sent"])
        states[str(bucket)] = {name: result.metrics[name] for name in ("failed", "retry")}
    while not buckets and retry < job.policy.retries:
        retry += 1
        failed = {int(b): s["failed"] for b, s in states.items() if s["retry"] < retry}
        buckets = {bucket for bucket, urls in failed.items() if urls}
        if buckets:
            urls = sum(failed.values())
            print_status(f"trying {urls} failed URLs once more, in {job.policy.retry_wait_s:g} s")
            time.sleep(job.policy.retry_wait_s)
    return Result(metrics={"buckets": sorted(buckets), "retry": retry, "states": states})


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


def make_round(buckets: Sequence[int], number: int, retry: int = 0) -> Step[FetchState]:
    """Returns the step of round ``number``, which fetches the waiting URLs of these buckets."""
    units = partial(_bucket_units, tuple(buckets), number)
    return Step(name="fetch", units=units, work=partial(_fetch, retry), folder=_records)


def _records(job: FetchState) -> Path:
    """Returns the folder of the records of rounds."""
    return to_path(job.output) / WORK / "rounds"


def _bucket_units(buckets: tuple[int, ...], number: int, job: FetchState) -> list[Unit]:
    return [Unit(name=f"{number:04d}-bucket-{bucket:05d}", number=bucket) for bucket in buckets]


def _fetch(retry: int, job: FetchState, unit: Unit) -> Result:
    with journal_errors():
        return fetch_bucket(job, unit.number, retry)


def table_units(job: FetchState) -> list[Unit]:
    """Returns a unit for each bucket, which writes its tables."""
    return [Unit(name=f"tables-{bucket:05d}", number=bucket) for bucket in range(job.buckets)]


def make_tables(job: FetchState, unit: Unit) -> Result:
    """Writes the tables of a bucket."""
    with journal_errors():
        summary = write_tables(job, unit.number)
    return Result(shards=summary.shards, tallies=summary.tallies, metrics=summary.to_metrics())


TABLES = Step(name="tables", units=table_units, work=make_tables, folder=_records)


def collect_tables(job: FetchState) -> CrawlSummary:
    """Returns the counts of all buckets, after their tables are written."""
    return merge_summaries(map(CrawlSummary.from_result, TABLES.results(job)))
