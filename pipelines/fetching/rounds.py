"""Rounds on a Beam runner: in each, every bucket that has URLs is fetched by one worker.

What leads from one bucket to another waits for the next round; when no URL is left, what failed
is tried once more.
"""

import time
from collections.abc import Iterable, Iterator, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from vlmill.pipelines.fetching.work import Fetching, fetch_bucket, retry_failed, unfinished
from vlmill.pipelines.launch.options import run_pipeline
from vlmill.schemas.console.command import say


class FetchBuckets(beam.DoFn):
    """Fetches buckets: (number, [number]) -> number."""

    def __init__(self, job: Fetching) -> None:
        self.job = job

    def process(self, numbered: tuple[int, Iterable[int]]) -> Iterator[int]:
        for bucket in numbered[1]:
            fetch_bucket(self.job, bucket)
            yield bucket


def run_round(job: Fetching, buckets: Sequence[int], options: PipelineOptions) -> None:
    """Fetches what waits in these buckets, spread over the workers."""
    numbered = [(bucket, bucket) for bucket in buckets]
    with run_pipeline(options) as p:
        (
            p
            | "Buckets" >> beam.Create(numbered, reshuffle=False)
            | "Spread" >> beam.GroupByKey()
            | "Fetch" >> beam.ParDo(FetchBuckets(job))
        )


def run_rounds(job: Fetching, options: PipelineOptions) -> None:
    """Runs round after round until no URL waits, then as many passes over what failed."""
    _until_done(job, options)
    for number in range(1, job.manners.retries + 1):
        if failed := retry_failed(job, number):
            say(f"trying {failed} failed URLs once more, in {job.manners.retry_wait_s:g} s")
            time.sleep(job.manners.retry_wait_s)
        _until_done(job, options)


def _until_done(job: Fetching, options: PipelineOptions) -> None:
    while buckets := unfinished(job):
        run_round(job, buckets, options)
