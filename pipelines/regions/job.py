"""Extracts regions of a table, locally or on Beam: python -m vlmill.pipelines.regions --help

It uses the extraction engine of ``extract-rois run``, with one detector per worker process. A unit
is a shard, planned in advance. Both commands record it in the same manner and write the same bytes,
so each can continue a run of the other.
"""

import argparse
import json
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlmill.extract.from_flags import (
    detector_inputs,
    make_config,
    make_detector,
    warn_of_random_weights,
)
from vlmill.runtime.console.command import print_reading_hint
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.atomic import remove_leftovers, write_bytes
from vlmill.runtime.files.digests import table_input
from vlmill.runtime.files.manifest import read_manifest, write_manifest
from vlmill.runtime.files.outputs import WORK, State, prepare_job, remove_work
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.reading import reject_counts
from vlmill.runtime.units.numbers import Numbers, count_rejects
from vlmill.runtime.units.runner import select_runner
from vlmill.runtime.units.share import end_job
from vlmill.runtime.units.step import Step
from vlmill.runtime.units.unit import Result, Unit
from vlmill.schemas.plain_json import parse_json
from vlmill.schemas.rejects import format_rejects
from vlmill.schemas.tables import IMAGES, REGIONS

if TYPE_CHECKING:  # torch takes seconds to load: imported after the arguments are checked
    from vlmill.extract.run.job import Job

_opening = threading.Lock()  # a worker process may have several threads, and one detector


@dataclass(frozen=True)
class RegionsRun:
    """Describes the job for workers: its flags, and the fingerprints of its networks."""

    args: argparse.Namespace
    identity: tuple[str, ...]
    num_shards: int
    opened: "list[Job]" = field(default_factory=list)  # the detector of this process

    @property
    def output(self) -> Path:
        """Returns ``--output``."""
        return to_path(self.args.output)

    def plan_path(self, index: int) -> Path:
        """Returns the file that lists the images of a shard."""
        return self.output / WORK / "plan" / f"images-{index:05d}.json"

    def open(self) -> "Job":
        """Returns the job that writes shards; its detector is opened once per process.

        Raises OSError if its networks differ from the networks of the process that planned the job.
        """
        with _opening:
            if not self.opened:
                self.opened.append(open_job(self.args, self.identity))
        return self.opened[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return RegionsRun, (self.args, self.identity, self.num_shards)


def open_job(args: argparse.Namespace, identity: tuple[str, ...]) -> "Job":
    """Opens the detector that the flags name. Raises OSError if the fingerprints differ."""
    from vlmill.extract.run.job import Job

    detector = make_detector(args)
    if detector.identity != identity:
        raise OSError(
            "the worker's networks have the fingerprints "
            f"{', '.join(detector.identity)}, the networks of the process that planned "
            f"the job have {', '.join(identity)}: both need the same vlmill, --weights "
            "and --global-weights"
        )
    config = make_config(args)
    return Job(plan=(), output=to_path(args.output), detector=detector, config=config)


def shard_units(run: RegionsRun) -> list[Unit]:
    """Returns a unit for each shard, named as by ``extract-rois run``."""
    from vlmill.extract.run.job import part_unit

    return [part_unit(index) for index in range(run.num_shards)]


def extract(run: RegionsRun, unit: Unit) -> Result:
    """Writes a shard of regions and one of rejects.

    Memory: one detector per process, for any number of threads; per thread, the images of a batch
    window and the rows that wait to be written.
    """
    from vlmill.extract.images.plan import InputImage
    from vlmill.extract.run.job import Part, make_shards

    planned = parse_json(run.plan_path(unit.number).read_bytes())
    images = [InputImage(**image) for image in planned]
    part = Part(index=unit.number, total=run.num_shards, images=images)
    label = f"regions, shard {unit.number}"
    with Progress(total=len(images), unit="image", label=label) as progress:
        regions, rejects = make_shards(run.open(), part, progress)
    numbers = Numbers(images=len(images), rows=regions.rows)
    numbers += count_rejects(reject_counts(run.output / rejects.name))
    return Result(shards=[regions, rejects], numbers=numbers)


EXTRACT = Step(name="extract", units=shard_units, work=extract)


def run(args: argparse.Namespace, tables: Sequence[Path], beam_flags: Sequence[str]) -> int:
    """Extracts the images that no finished shard of ``tables`` has, and writes the manifest."""
    run_steps = select_runner(
        beam_flags,
        workers=1,
        module=__name__,
        paths={"--images": args.images, "--output": str(args.output)},
        share=args.part,
    )
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
    state = prepare_job(args, JOB, settings)
    if state is not State.FINISHED:
        regions_run = RegionsRun(args, job.detector.identity, job.num_shards, [job])
        for index in range(job.num_shards):
            images = [asdict(image) for image in job.part(index).images]
            write_bytes(regions_run.plan_path(index), json.dumps(images).encode())
        run_steps(regions_run, [EXTRACT])
        with end_job(job.output, args.part) as is_last:
            if not is_last:
                return 0
            shards = [shard for result in EXTRACT.results(regions_run) for shard in result.shards]
            # Files of workers that were killed during the run.
            remove_leftovers(job.output)
            write_manifest(job.output, shards, job=JOB, settings=settings, inputs=job.inputs)
    remove_work(job.output)
    regions, rejects = count_rows(read_manifest(job.output)["shards"])
    note = f" ({job.detector.weights})" if args.weights is None else ""
    reasons = format_rejects(reject_counts(job.output))
    counts = f"{len(job.plan)} images, {regions} rows of regions, {reasons}"
    print_reading_hint(job.output, REGIONS.name)
    print(f"{state.outcome}: {counts}: {job.output}{note}")
    return 0 if regions or not rejects else 1
