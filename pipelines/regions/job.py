"""Regions of a table of images, here or as a Beam job: python -m vlmill.pipelines.regions --help

The engine is that of ``extract-rois run``, one detector in each worker process; the unit of work is
a shard, planned before anything runs and written by the worker that made it. Both ways write the
same bytes, so one continues what the other began.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from vlmill.extract.from_flags import (
    detector_inputs,
    make_config,
    make_detector,
    warn_of_random_weights,
)
from vlmill.runtime.console.command import print_reading_hint
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.atomic import remove_leftovers
from vlmill.runtime.files.digests import table_input
from vlmill.runtime.files.manifest import read_manifest, write_manifest
from vlmill.runtime.files.outputs import State, prepare_output
from vlmill.runtime.files.reading import reject_counts
from vlmill.runtime.files.shards import Shard
from vlmill.runtime.units.launch.loading import quiet_beam_import
from vlmill.schemas.rejects import rejects_said
from vlmill.schemas.tables import IMAGES, REGIONS

if TYPE_CHECKING:  # torch takes seconds to load: not before the arguments are known to be good
    from vlmill.extract.run.job import Job, Part

MakeParts: TypeAlias = "Callable[[Job, Sequence[Part]], None]"


def make_parts_here(job: "Job", parts: Sequence["Part"]) -> None:
    """Makes parts one by one in this process."""
    from vlmill.extract.run.job import make_shards

    total = sum(len(part.images) for part in parts)
    with Progress(total=total, unit="image", label="regions") as progress:
        for part in parts:
            make_shards(job, part, progress)


def maker_of_parts(args: argparse.Namespace, beam_flags: Sequence[str]) -> MakeParts:
    """Returns what makes parts: this process, or the Beam runner that flags name.

    Raises InputError for flags that no runner takes.
    """
    if not beam_flags:
        return make_parts_here
    # Beam takes seconds to load.
    with quiet_beam_import():
        from vlmill.pipelines.regions.on_beam import make_parts_on_beam

    return make_parts_on_beam(args, beam_flags)


def run(args: argparse.Namespace, tables: Sequence[Path], beam_flags: Sequence[str]) -> int:
    """Extracts what no finished shard of ``tables`` holds, and writes the manifest."""
    make_parts = maker_of_parts(args, beam_flags)
    config = make_config(args)

    from vlmill.extract.images.plan import list_rows, mark_repeats
    from vlmill.extract.run.job import JOB, Job, count_rows

    warn_of_random_weights(args)
    job = Job(
        plan=list(mark_repeats(list_rows(tables))),
        output=args.output,
        detector=make_detector(args),
        config=config,
        # Named as by `extract-rois run`: both write the same bytes.
        inputs=[table_input("INPUT", args.images, IMAGES), *detector_inputs(args)],
    )
    settings = job.settings()
    state = prepare_output(job.output, job=JOB, settings=settings, fresh=args.fresh)
    if state is not State.FINISHED:
        shards = extract_missing(job, make_parts)
        # Of workers that were killed while the run went on with others.
        remove_leftovers(job.output)
        write_manifest(job.output, shards, job=JOB, settings=settings, inputs=job.inputs)
    regions, rejects = count_rows(read_manifest(job.output)["shards"])
    done = "finished before" if state is State.FINISHED else "done"
    note = f" ({job.detector.weights})" if args.weights is None else ""
    reasons = rejects_said(reject_counts(job.output))
    counts = f"{len(job.plan)} images, {regions} rows of regions, {reasons}"
    print_reading_hint(job.output, REGIONS.name)
    print(f"{done}: {counts}: {job.output}{note}")
    return 0 if regions or not rejects else 1


def extract_missing(job: "Job", make_parts: MakeParts) -> list[Shard]:
    """Makes the parts that are not there yet; returns the shards of all parts."""
    from vlmill.extract.run.job import finished_shards

    parts = (job.part(index) for index in range(job.num_shards))
    missing = [part for part in parts if not finished_shards(job, part.index)]
    if len(missing) < job.num_shards:
        print(f"continuing: {job.num_shards - len(missing)} shards are there", file=sys.stderr)
    if missing:
        make_parts(job, missing)
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
