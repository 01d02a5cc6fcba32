"""Regions of a table of images as a Beam job: python -m vlmill.pipelines.regions --help

The engine is that of ``extract-rois run``, one detector in each worker process; the unit of work is
a shard, planned before anything runs and written by the worker that made it. Both ways write the
same bytes, so one continues what the other began.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.utils.shared import Shared

from vlmill.extract.from_flags import (
    config_of,
    detector_inputs,
    detector_of,
    warn_of_random_weights,
)
from vlmill.pipelines.counting.numbers import Numbers, rejects_of, timed
from vlmill.pipelines.launch.clusters import require_for_cluster
from vlmill.pipelines.launch.metrics import count_in_beam
from vlmill.pipelines.launch.options import beam_options, run_pipeline
from vlmill.schemas.console.command import say_how_to_read
from vlmill.schemas.console.progress import Progress
from vlmill.schemas.files.atomic import remove_leftovers
from vlmill.schemas.files.digests import table_input
from vlmill.schemas.files.manifest import read_manifest, write_manifest
from vlmill.schemas.files.outputs import State, prepare_output
from vlmill.schemas.files.paths import path_of
from vlmill.schemas.files.reading import reject_counts
from vlmill.schemas.files.shards import Shard
from vlmill.schemas.rejects import rejects_said
from vlmill.schemas.tables import IMAGES, REGIONS

if TYPE_CHECKING:  # torch takes seconds to load: not before the arguments are known to be good
    from vlmill.extract.detect.detector import Detector
    from vlmill.extract.run.job import Job, Part


class ExtractPart(beam.DoFn):
    """Part -> (rows of regions, rows of rejects) of the two shards that it has written.

    Memory: one detector a process, whatever the number of threads; the pictures among which batches
    are formed and the rows that wait to be written a thread.
    """

    def __init__(self, arguments: argparse.Namespace, identity: tuple[str, ...]) -> None:
        self.arguments, self.identity = arguments, identity
        self.shared = Shared()

    def setup(self) -> None:
        self.detector: Detector = self.shared.acquire(self._open)
        identity = self.detector.identity
        if identity != self.identity:
            raise OSError(
                f"the worker's networks have the fingerprints {', '.join(identity)}, those of the "
                f"process which planned the job {', '.join(self.identity)}: both need the same "
                "vlmill, --weights and --global-weights"
            )

    def _open(self) -> "Detector":
        return detector_of(self.arguments)

    def process(self, part: "Part") -> Iterator[tuple[int, int]]:
        from vlmill.extract.run.job import Job, make_shards

        config, output = config_of(self.arguments), path_of(self.arguments.output)
        job = Job(plan=(), output=output, detector=self.detector, config=config)
        numbers = Numbers(pictures=len(part.pictures))
        progress = Progress(total=len(part.pictures), unit="picture", label=f"regions {part.index}")
        with progress, timed(numbers):
            regions, rejects = make_shards(job, part, progress)
        numbers.update(rows=regions.rows, bytes=regions.bytes + rejects.bytes)
        numbers.update(rejects_of(reject_counts(output / rejects.name)))
        count_in_beam("regions", numbers)
        yield regions.rows, rejects.rows


def run(args: argparse.Namespace, tables: Sequence[Path], beam_flags: Sequence[str]) -> int:
    """Extracts what no finished shard of ``tables`` holds, and writes the manifest."""
    options = beam_options(beam_flags, __name__)
    require_for_cluster(options, {"--images": args.images, "--output": str(args.output)})
    config = config_of(args)

    from vlmill.extract.pictures.plan import repeats_marked, rows_of
    from vlmill.extract.run.job import JOB, Job, count_rows

    warn_of_random_weights(args)
    job = Job(
        plan=list(repeats_marked(rows_of(tables))),
        output=args.output,
        detector=detector_of(args),
        config=config,
        # Named as by `extract-rois run`: both write the same bytes.
        inputs=[table_input("INPUT", args.images, IMAGES), *detector_inputs(args)],
    )
    settings = job.settings()
    state = prepare_output(job.output, job=JOB, settings=settings, fresh=args.fresh)
    if state is not State.FINISHED:
        shards = extract_missing(job, args, options)
        # Of workers that were killed while the run went on with others.
        remove_leftovers(job.output)
        write_manifest(job.output, shards, job=JOB, settings=settings, inputs=job.inputs)
    regions, rejects = count_rows(read_manifest(job.output)["shards"])
    done = "finished before" if state is State.FINISHED else "done"
    note = f" ({job.detector.weights})" if args.weights is None else ""
    reasons = rejects_said(reject_counts(job.output))
    counts = f"{len(job.plan)} pictures, {regions} rows of regions, {reasons}"
    say_how_to_read(job.output, REGIONS.name)
    print(f"{done}: {counts}: {job.output}{note}")
    return 0 if regions or not rejects else 1


def extract_missing(
    job: "Job", arguments: argparse.Namespace, options: PipelineOptions
) -> list[Shard]:
    """Runs the pipeline over the parts that are not there yet; returns the shards of all parts."""
    from vlmill.extract.run.job import finished_shards

    parts = (job.part(index) for index in range(job.num_shards))
    missing = [part for part in parts if not finished_shards(job, part.index)]
    if len(missing) < job.num_shards:
        print(f"continuing: {job.num_shards - len(missing)} shards are there", file=sys.stderr)
    if missing:
        step = ExtractPart(arguments, job.detector.identity)
        # A worker inside this process takes the detector that is here already.
        step.shared.acquire(lambda: job.detector)
        with run_pipeline(options) as pipeline:
            _ = pipeline | "Parts" >> beam.Create(missing) | "Extract" >> beam.ParDo(step)
    shards: list[Shard] = []
    for index in range(job.num_shards):
        written = finished_shards(job, index)
        if not written:
            raise OSError(
                f"{job.output} lacks shard {index}, which a worker has written: --output must lie "
                "where all workers and this process see the same files"
            )
        shards += written
    return shards
