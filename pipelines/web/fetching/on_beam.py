"""A round on a Beam runner: each bucket is an element, which one worker fetches."""

from collections.abc import Iterable, Iterator, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from vlmill.pipelines.web.fetching.entries import SUCCESSES
from vlmill.pipelines.web.fetching.rounds import RunRound
from vlmill.pipelines.web.fetching.work import Fetching, fetch_bucket
from vlmill.runtime.units.launch.clusters import require_for_cluster
from vlmill.runtime.units.launch.metrics import count_in_beam
from vlmill.runtime.units.launch.options import run_pipeline
from vlmill.runtime.units.numbers import BYTES, Numbers, count_rejects, timed

_OUTCOMES = """
SELECT outcome, count(*), total(bytes) FROM urls WHERE outcome IS NOT NULL GROUP BY outcome
"""


class FetchBuckets(beam.DoFn):
    """Fetches buckets: (number, [number]) -> number."""

    def __init__(self, job: Fetching) -> None:
        self.job = job

    def process(self, numbered: tuple[int, Iterable[int]]) -> Iterator[int]:
        for bucket in numbered[1]:
            before, numbers = outcomes(self.job, bucket), Numbers()
            with timed(numbers):
                fetch_bucket(self.job, bucket)
            count_in_beam("fetch", numbers + (outcomes(self.job, bucket) - before))
            yield bucket


def outcomes(job: Fetching, bucket: int) -> Numbers:
    """How many URLs of a bucket have an outcome, their bytes, and those that gave nothing."""
    numbers = Numbers()
    with job.journal(bucket) as journal:
        for outcome, urls, num_bytes in journal.rows(_OUTCOMES):
            numbers += Numbers({"urls": urls, BYTES: int(num_bytes)})
            if outcome not in SUCCESSES:
                numbers += count_rejects({outcome: urls})
    return numbers


def rounds_on_beam(job: Fetching, options: PipelineOptions) -> RunRound:
    """Returns what runs a round as a pipeline with these options, and waits for its end.

    Raises InputError where Dataflow's workers would not find vlmill or the output.
    """

    def run_round(buckets: Sequence[int]) -> None:
        require_for_cluster(options, {"--output": job.output})
        with run_pipeline(options) as p:
            (
                p
                | "Buckets" >> beam.Create([(b, b) for b in buckets], reshuffle=False)
                | "Spread" >> beam.GroupByKey()
                | "Fetch" >> beam.ParDo(FetchBuckets(job))
            )

    return run_round
