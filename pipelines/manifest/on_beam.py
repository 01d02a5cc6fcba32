"""Parts made by the workers of a Beam runner: the same bytes as on one machine.

A part is the unit of work. What a row becomes may depend on rows before it, so that each worker
reads the file of entries from its beginning up to its parts, which is cheap, and reads images and
writes shards of its own parts alone.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import apache_beam as beam

from vlmill.pipelines.manifest.own import job as own
from vlmill.pipelines.manifest.part import finished_part
from vlmill.pipelines.manifest.published import parts
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.atomic import remove_leftovers
from vlmill.runtime.files.shards import Shard
from vlmill.runtime.units.launch.clusters import require_for_cluster
from vlmill.runtime.units.launch.metrics import count_in_beam
from vlmill.runtime.units.launch.options import beam_options, run_pipeline
from vlmill.runtime.units.numbers import Numbers, timed


class PartSequence(Protocol):
    """A data set's parts in their order; ``index`` is that of the one which comes next."""

    index: int

    def make(self) -> None:
        """Writes the next part's shards."""

    def skip(self) -> None:
        """Passes the next part."""


Open = Callable[[argparse.Namespace, ThreadPoolExecutor, Progress], PartSequence]
"""Opens the parts from the command's arguments: a function of a module, for workers to find."""


class MakePart(beam.DoFn):
    """Index of a part -> the same, when its shards are written.

    Memory: that of the job on one machine, in each thread.
    """

    def __init__(self, open_parts: Open, arguments: argparse.Namespace) -> None:
        self._open, self._arguments = open_parts, arguments

    def setup(self) -> None:
        self._pool = ThreadPoolExecutor(self._arguments.workers)
        self._parts: PartSequence | None = None

    def teardown(self) -> None:
        self._pool.shutdown()

    def process(self, index: int) -> Iterator[int]:
        label, numbers = f"part {index}", Numbers(parts=1)
        with (
            timed(numbers),
            Progress(total=None, unit="row", label=label, visible=False) as progress,
        ):
            try:
                self._parts_at(index, progress).make()
            except BaseException:
                self._parts = None  # it stands in the middle of a part
                raise
        count_in_beam("manifest", numbers)
        yield index

    def _parts_at(self, index: int, progress: Progress) -> PartSequence:
        """The parts, of which the one with this index comes next: opened anew to go back."""
        if self._parts is None or self._parts.index > index:
            self._parts = self._open(self._arguments, self._pool, progress)
        while self._parts.index < index:
            self._parts.skip()
        return self._parts


def make_on_beam(open_parts: Open, arguments: argparse.Namespace, missing: Sequence[int]) -> None:
    """Has the parts with these indices made by the runner that the flags for Beam name."""
    options = beam_options(arguments.beam_flags, __name__)
    paths: dict[str, Any] = {"--input": arguments.input, "--output": arguments.output}
    require_for_cluster(options, {flag: str(path) for flag, path in paths.items()})
    if not missing:
        return
    step = MakePart(open_parts, arguments)
    with run_pipeline(options) as pipeline:
        _ = pipeline | "Parts" >> beam.Create(list(missing)) | "Make" >> beam.ParDo(step)
    remove_leftovers(arguments.output)  # of workers that were killed while others went on


def require_shards(arguments: argparse.Namespace, index: int, shards: list[Shard]) -> list[Shard]:
    """A part's shards. Raises OSError where a worker has written them and they cannot be seen."""
    if not shards:
        raise OSError(
            f"{arguments.output} lacks part {index}, which a worker has written: --output must lie "
            "where all workers and this process see the same files"
        )
    return shards


# Published data sets


def published_parts(
    job: parts.Job, open_parts: Open, args: argparse.Namespace
) -> tuple[list[Shard], parts.Tally]:
    """Has the parts made that are not there yet; returns all shards, and what was counted."""

    def finished(index: int) -> list[Shard]:
        return finished_part(job.output, job.tables, (index, None))

    with ThreadPoolExecutor(job.workers) as pool, parts.make_progress(job) as progress:
        all_parts = parts.Parts(job, pool, progress)
        while not all_parts.ended:
            all_parts.skip()  # what is dropped is counted in the rejects
    parts.refuse_stale(job, all_parts.index)
    missing = [index for index in range(all_parts.index) if not finished(index)]
    arguments = argparse.Namespace(**vars(args), placeholders=job.placeholders)
    make_on_beam(open_parts, arguments, missing)
    shards = [s for i in range(all_parts.index) for s in require_shards(args, i, finished(i))]
    return shards, all_parts.run.tally


# One's own captions


def own_parts(job: own.OwnJob, open_parts: Open, args: argparse.Namespace) -> list[Shard]:
    """Has the parts made that are not there yet; returns all shards."""
    indices = range(job.num_parts)
    missing = [index for index in indices if not own.finished_at(job, index)]
    make_on_beam(open_parts, args, missing)
    for index in indices:
        require_shards(args, index, own.finished_at(job, index))
    return own.collect_shards(job)
