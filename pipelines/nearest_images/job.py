"""Finds nearest images: python -m vlmill.pipelines.nearest_images --help

The job computes vectors of all images, then the neighbours split by split, in shards of consecutive
ids. A killed run keeps its finished parts of vectors and its finished shards. The cost is measured
on the first images, because each vector is multiplied with all others.
"""

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from vlmill.pipelines.nearest_images.means import (
    Means,
    Vectors,
    marks_full_images,
    means_from,
    part_paths,
    write_part,
)
from vlmill.pipelines.nearest_images.report import finish, write_report
from vlmill.pipelines.nearest_images.search import QUERIES, NearestIndex
from vlmill.pipelines.nearest_images.splits import (
    STAGE,
    Split,
    Splits,
    group_by_split,
    make_single_split,
    read_splits,
)
from vlmill.runtime.console.command import print_status
from vlmill.runtime.console.cost import (
    Estimate,
    Rate,
    measure_rate,
    print_estimate,
    require_disk_space,
)
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.console.threads import gpu_number
from vlmill.runtime.extras import require_extra
from vlmill.runtime.files.atomic import local_folder, remove_leftovers
from vlmill.runtime.files.digests import table_input
from vlmill.runtime.files.inputs import Input
from vlmill.runtime.files.manifest import write_manifest
from vlmill.runtime.files.outputs import WORK, State, prepare_job
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.shards import ShardWriter, write_shard
from vlmill.runtime.readers.regions import RegionReader
from vlmill.runtime.units.numbers import Numbers
from vlmill.runtime.units.run_here import run_here
from vlmill.runtime.units.share import end_job
from vlmill.runtime.units.step import Step
from vlmill.runtime.units.unit import Result, Unit
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import IMAGES, NEIGHBOURS, PAIRS, REGIONS, REJECTS

ROWS_PER_GROUP = 1_024

SAMPLE_IMAGES = 4_096
ID_BYTES = 36  # of an image's id: 32 characters, and four bytes for its length
DISTANCE_BYTES = 4
FLOAT_BYTES = 4
WORK_COPIES = 2  # of each vector: unchanged, and minus the mean of all


@dataclass(frozen=True, kw_only=True)
class Job:
    """Describes one search for its units."""

    output: Path
    regions: RegionReader
    splits: Splits
    first: int  # first region that counts
    top: int
    threads: int
    gpu: int | None  # that searches
    images_per_shard: int
    producer: Mapping[str, Any]
    scratch: Path  # a folder on this machine
    indexes: dict[int, NearestIndex] = field(default_factory=dict)  # of the last searched split

    @property
    def mean_paths(self) -> list[Path]:
        """Returns the files of the images' vectors."""
        return part_paths(len(self.regions), self.output / WORK)

    @cached_property
    def means(self) -> Means:
        """Returns the images' vectors, after the first step has finished."""
        return Means(self.mean_paths, self.regions.feature_dim)

    @cached_property
    def grouped(self) -> tuple[list[Split], list[dict[str, object]]]:
        """Returns the images of each split, and the rejects."""
        return group_by_split(self.regions, self.means, self.splits, self.first)

    @cached_property
    def shards(self) -> list[tuple[int, range]]:
        """Returns the split and the images of each shard, of at most ``images_per_shard``."""
        size = self.images_per_shard
        return [
            (split, range(start, min(start + size, len(group.rows))))
            for split, group in enumerate(self.grouped[0])
            for start in range(0, len(group.rows), size)
        ]

    def index(self, split: int) -> NearestIndex:
        """Returns the index of a split; the next split's index replaces its file."""
        if split not in self.indexes:
            self.indexes.clear()
            rows, path = self.grouped[0][split].rows, self.scratch / "vectors.npy"
            self.indexes[split] = NearestIndex(
                self.means, rows, path, threads=self.threads, gpu=self.gpu
            )
        return self.indexes[split]


def mean_units(job: Job) -> list[Unit]:
    """Returns a unit for each part of the vectors."""
    return [Unit(name=path.stem, number=number) for number, path in enumerate(job.mean_paths)]


def average(job: Job, unit: Unit) -> Result:
    """Writes a part of the vectors."""
    write_part(job.regions, unit.number, job.mean_paths[unit.number], job.first)
    return Result()


def shard_units(job: Job) -> list[Unit]:
    """Returns a unit for each shard of neighbours, split by split."""
    return [
        Unit(name=f"neighbours-{number:05d}", number=number, slices=images)
        for number, (_, images) in enumerate(job.shards)
    ]


def search(job: Job, unit: Unit) -> Result:
    """Writes a shard of neighbours."""
    split, images = job.shards[unit.number]
    rows = _rows(job.index(split), job.grouped[0][split], images, job.top)
    writer = ShardWriter(
        job.output, NEIGHBOURS, unit.number, len(job.shards), producer=job.producer
    )
    label = f"nearest images, shard {unit.number}"
    with writer, Progress(total=len(images), unit="image", label=label) as progress:
        while group := list(islice(rows, ROWS_PER_GROUP)):
            writer.write(group)
            progress.advance(len(group))
    return Result(shards=[writer.shard], numbers=Numbers(images=len(images)))


MEANS = Step(name="means", units=mean_units, work=average, threads=True)
NEAREST = Step(name="nearest", units=shard_units, work=search, threads=True)


def run(args: argparse.Namespace) -> int:
    """Writes the nearest images by the vectors of ``--regions``."""
    require_extra("search", "faiss")  # it is loaded after the means are computed
    gpu_number(args.search_device)  # an unusable one is refused before any work
    regions = RegionReader(args.regions)
    if regions.feature_dim < 1:
        raise InputError(f"--regions {args.regions}: its features have no numbers")
    if not regions.box_counts().any():
        raise InputError(f"--regions {args.regions}: no image has a box; give one with boxes")
    first = first_region(args.full_image, regions)
    output = to_path(args.output)
    if args.dry_run:
        averaging, searching = measure(regions, first, args.top, args.threads)
        sample = min(len(regions), SAMPLE_IMAGES)
        dim = regions.feature_dim
        estimate = estimate_cost(len(regions), dim, args.top, averaging, searching, sample)
        return print_estimate(estimate, output)
    splits = make_single_split(regions) if args.pairs is None else read_splits(args.pairs, regions)
    if splits.note:
        print_status(splits.note)
    tables = {"--regions": (args.regions, REGIONS), "--pairs": (args.pairs, PAIRS)}
    inputs = [
        table_input(flag, path, spec) for flag, (path, spec) in tables.items() if path is not None
    ]
    digests = {entry.flag.removeprefix("--"): entry.digest for entry in inputs}
    settings = {
        "top": args.top,
        "first_region": first,
        "images_per_shard": args.images_per_shard,
        "inputs": digests,
    }
    state = prepare_job(args, STAGE, settings)
    if state is not State.FINISHED:
        require_disk_space(work_bytes(len(regions), regions.feature_dim), output, force=args.force)
        if args.images is not None:
            inputs.append(table_input("--images", args.images, IMAGES))
        if not _search(args, regions, splits, settings, inputs):
            return 0
    return finish(output, state, args.top)


def first_region(full_image: str, regions: RegionReader) -> int:
    """Returns the number of the first region that counts: 1 if row 0 is the full image."""
    if full_image == "auto":
        marked = marks_full_images(regions)
        if marked:
            print_status("row 0 of every image is the full image and is skipped (--whole-image)")
        return int(marked)
    return int(full_image == "first")


def _search(
    args: argparse.Namespace,
    regions: RegionReader,
    splits: Splits,
    settings: Mapping[str, Any],
    inputs: Sequence[Input],
) -> bool:
    """Averages features, searches the missing shards, and writes report and manifest.

    Returns False if another part of the job writes report and manifest.
    """
    output = to_path(args.output)
    (output / WORK).mkdir(exist_ok=True)
    if args.part is None:
        remove_leftovers(output / WORK)
    fingerprint = {"detector_fingerprint": regions.detector_fingerprint}
    with local_folder(output / WORK) as scratch:
        job = Job(
            output=output,
            regions=regions,
            splits=splits,
            first=settings["first_region"],
            top=args.top,
            threads=args.threads,
            gpu=gpu_number(args.search_device),
            images_per_shard=args.images_per_shard,
            producer={"job": STAGE, **settings, **fingerprint},
            scratch=scratch,
        )
        run_here(job, [MEANS, NEAREST], workers=1, module=__name__, share=args.part)
    with end_job(output, args.part) as is_last:
        if is_last:
            _write_end(args, job, settings, inputs)
        return is_last


def _write_end(
    args: argparse.Namespace, job: Job, settings: Mapping[str, Any], inputs: Sequence[Input]
) -> None:
    """Writes rejects, report and manifest."""
    output = job.output
    shards = [shard for result in NEAREST.results(job) for shard in result.shards]
    rejects, num_images = job.grouped[1], sum(len(images) for _, images in job.shards)
    rejected = write_shard(output, REJECTS, rejects, producer=job.producer)
    counts = Counter(str(row["reason"]) for row in rejects)
    write_report(output, num_images, counts, settings, args.images)
    write_manifest(output, [*shards, rejected], job=STAGE, settings=settings, inputs=inputs)


def _rows(index: NearestIndex, split: Split, images: range, top: int) -> Iterator[dict[str, Any]]:
    for position, nearest in enumerate(index.search(images.start, images.stop, top), images.start):
        yield {
            "image_id": split.image_ids[position],
            "neighbour_ids": [split.image_ids[other] for other in nearest.positions.tolist()],
            "distances": nearest.distances.tolist(),
        }


def output_bytes(num_images: int, top: int) -> int:
    """Returns the largest size of the neighbours of a number of images."""
    nearest = min(top, max(num_images - 1, 0))
    return num_images * (ID_BYTES + nearest * (ID_BYTES + DISTANCE_BYTES))


def work_bytes(num_images: int, dim: int) -> int:
    """Returns the disk space of the vectors until the run has finished."""
    return num_images * dim * FLOAT_BYTES * WORK_COPIES


def measure(regions: RegionReader, first: int, top: int, threads: int) -> tuple[Rate, Rate]:
    """Returns the rates of averaging and of searching, measured on the first images."""
    count = min(len(regions), SAMPLE_IMAGES)
    vectors: list[Vectors] = []

    def averaged() -> Iterator[Vectors | None]:
        for mean in means_from(regions, 0, count, first):
            if mean is not None:
                vectors.append(mean)
            yield mean

    averaging = measure_rate(averaged(), "images")
    if not vectors:
        return averaging, Rate(items=0, seconds=0, unit="images")
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "means.npy", np.stack(vectors))
        means = Means([Path(folder) / "means.npy"], regions.feature_dim)
        path = Path(folder) / "vectors.npy"
        index = NearestIndex(means, np.arange(len(vectors)), path, threads=threads)
        searching = measure_rate(index.search(0, min(len(index), QUERIES), top), "images")
    return averaging, searching


def estimate_cost(
    num_images: int, dim: int, top: int, averaging: Rate, searching: Rate, sample: int
) -> Estimate:
    """Returns the cost of all images, which grows with the square of their number."""
    times = max(1.0, num_images / sample)
    seconds = averaging.seconds_for(num_images)
    search_s = searching.seconds_for(num_images * times)
    work = work_bytes(num_images, dim)
    return Estimate(
        inputs={"--regions": f"{num_images:,} images, vectors of {dim}"},
        min_bytes=work,
        max_bytes=work + output_bytes(num_images, top),
        seconds=None if seconds is None or search_s is None else seconds + search_s,
        rate=searching,
        note=f"the rate is measured by a search among {sample:,} images; --output also "
        "stores the vectors during the run",
    )
