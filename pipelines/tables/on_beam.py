"""Shards written by the workers of a Beam runner: the same bytes as on one machine.

A shard is the unit of work. Which rows ``concat`` keeps depends on all rows before them, so that
there each worker reads the shards up to its own; the other verbs read their own alone.
"""

import copy
from collections.abc import Iterator, Sequence

import apache_beam as beam

from vlmill.pipelines.tables.inputs import TableInput
from vlmill.pipelines.tables.job import Job, Tally, count_shard, finished_shard, write_table_shard
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.atomic import remove_leftovers
from vlmill.runtime.units.launch.clusters import require_for_cluster
from vlmill.runtime.units.launch.options import beam_options, run_pipeline


class WriteShard(beam.DoFn):
    """Place of a shard among all of the job -> the same, when it is written.

    Memory: a row group, and what the verb keeps of earlier rows, in each thread.
    """

    def __init__(self, job: Job) -> None:
        self._job = job

    def setup(self) -> None:
        self._reached = copy.deepcopy(self._job)  # with what it has kept of earlier rows
        self._next = 0

    def process(self, index: int) -> Iterator[int]:
        with Progress(total=None, unit="row", label="shard", visible=False) as progress:
            try:
                self._write(index, Tally(progress=progress))
            except BaseException:
                self.setup()  # what has been kept ends in the middle of a shard
                raise
        yield index

    def _write(self, index: int, tally: Tally) -> None:
        shards = list_shards(self._job)
        if self._job.rejected:
            if self._next > index:
                self.setup()
            for earlier in range(self._next, index):
                count_shard(self._reached, *shards[earlier], tally)
            self._next = index + 1
        write_table_shard(self._reached, *shards[index], tally)


def list_shards(job: Job) -> list[tuple[TableInput, int]]:
    """Returns all shards of the input: their table, and which of it."""
    return [(entry, index) for entry in job.tables.values() for index in range(len(entry.paths))]


def write_on_beam(job: Job, flags: Sequence[str]) -> None:
    """Has the shards written that are not there yet, by the runner that ``flags`` name."""
    options = beam_options(flags)
    paths = {f"IN {path}": str(path) for entry, i in list_shards(job) for path in [entry.paths[i]]}
    require_for_cluster(options, {**paths, "--output": str(job.output)})
    shards = enumerate(list_shards(job))
    missing = [index for index, shard in shards if finished_shard(job, *shard) is None]
    if missing:
        step = WriteShard(job)
        with run_pipeline(options) as pipeline:
            _ = pipeline | "Shards" >> beam.Create(missing) | "Write" >> beam.ParDo(step)
        remove_leftovers(job.output)  # of workers that were killed while others went on
