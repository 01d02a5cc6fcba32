"""Nearest images: python -m vlmill.pipelines.nearest_images --help

Vectors of all images, then the neighbours of one split after the other, in shards of consecutive
ids. A killed run keeps its finished parts of vectors and its finished shards.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from vlmill.pipelines.nearest_images.cost import (
    SAMPLE_IMAGES,
    estimate_cost,
    measure,
    work_bytes,
)
from vlmill.pipelines.nearest_images.means import Means, marks_full_images, pool
from vlmill.pipelines.nearest_images.published import neighbour_rows, read_pool
from vlmill.pipelines.nearest_images.report import write_report
from vlmill.pipelines.nearest_images.search import NearestIndex
from vlmill.pipelines.nearest_images.splits import (
    STAGE,
    Split,
    Splits,
    group_by_split,
    make_single_split,
    read_splits,
)
from vlmill.runtime.console.command import print_reading_hint, print_status
from vlmill.runtime.console.cost import print_estimate, require_disk_space
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.atomic import local_folder
from vlmill.runtime.files.digests import file_input, table_input
from vlmill.runtime.files.inputs import Input
from vlmill.runtime.files.manifest import read_manifest, write_manifest
from vlmill.runtime.files.outputs import WORK, State, prepare_output
from vlmill.runtime.files.paths import remove_tree, to_path
from vlmill.runtime.files.reading import iter_batches, reject_counts
from vlmill.runtime.files.shards import (
    Shard,
    ShardWriter,
    describe_shard,
    shard_name,
    write_shard,
)
from vlmill.runtime.readers.regions import RegionReader
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import rejects_said
from vlmill.schemas.tables import IMAGES, NEIGHBOURS, PAIRS, REGIONS, REJECTS

ROWS_PER_GROUP = 1_024


@dataclass(frozen=True, kw_only=True)
class Range:
    """Consecutive images of a split: what a shard holds."""

    number: int
    start: int
    stop: int


def run(args: argparse.Namespace) -> int:
    """Runs the search, or the import; returns the exit status."""
    return run_search(args) if args.published is None else run_import(args)


def run_search(args: argparse.Namespace) -> int:
    """Writes the nearest images by the vectors of ``--regions``."""
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
    state = prepare_output(output, job=STAGE, settings=settings, fresh=args.fresh)
    if state is not State.FINISHED:
        require_disk_space(work_bytes(len(regions), regions.feature_dim), output, force=args.force)
        if args.images is not None:
            inputs.append(table_input("--images", args.images, IMAGES))
        _search(args, regions, splits, settings, inputs)
    return _finish(output, state, args.top)


def first_region(full_image: str, regions: RegionReader) -> int:
    """The number of the first region that counts: 1 where row 0 is the full image."""
    if full_image == "auto":
        marked = marks_full_images(regions)
        if marked:
            print_status("row 0 of every image is the full image, and is left out (--whole-image)")
        return int(marked)
    return int(full_image == "first")


def _search(
    args: argparse.Namespace,
    regions: RegionReader,
    splits: Splits,
    settings: Mapping[str, Any],
    inputs: Sequence[Input],
) -> None:
    """Averages, searches what no finished shard holds, and writes report and manifest."""
    output, first = to_path(args.output), int(settings["first_region"])
    means = pool(regions, output / WORK, first)
    groups, rejects = group_by_split(regions, means, splits, first)
    producer = {
        "job": STAGE,
        **settings,
        "detector_fingerprint": regions.detector_fingerprint,
    }
    ranges = list(make_ranges([len(group.rows) for group in groups], args.images_per_shard))
    total = sum(map(len, ranges))
    names = [shard_name(NEIGHBOURS, number, total) for number in range(total)]
    num_images = sum(len(group.rows) for group in groups)
    there = [
        r for group_ranges in ranges for r in group_ranges if (output / names[r.number]).exists()
    ]
    if there:
        print_status(f"continuing: {len(there)} shards are there")
    done = sum(r.stop - r.start for r in there)
    with Progress(total=num_images, unit="image", label="nearest", done=done) as progress:
        for group, group_ranges in zip(groups, ranges, strict=True):
            missing = [r for r in group_ranges if not (output / names[r.number]).exists()]
            if missing:
                _search_split(args, means, group, missing, total, producer, progress)
    rejected = write_shard(output, REJECTS, rejects, producer=producer)
    shards = [describe_shard(output / name, NEIGHBOURS.name) for name in names]
    counts = Counter(str(row["reason"]) for row in rejects)
    write_report(output, num_images, counts, settings, args.images)
    write_manifest(output, [*shards, rejected], job=STAGE, settings=settings, inputs=inputs)


def _search_split(
    args: argparse.Namespace,
    means: Means,
    split: Split,
    ranges: Sequence[Range],
    total: int,
    producer: Mapping[str, Any],
    progress: Progress,
) -> None:
    output = to_path(args.output)
    # Written anew by each run: half a file of a killed one is never read.
    with local_folder(output / WORK) as scratch:
        index = NearestIndex(means, split.rows, scratch / "vectors.npy", threads=args.threads)
        for part in ranges:
            with ShardWriter(output, NEIGHBOURS, part.number, total, producer=producer) as writer:
                rows = _rows(index, split, part, args.top)
                while group := list(islice(rows, ROWS_PER_GROUP)):
                    writer.write(group)
                    progress.advance(len(group))


def _rows(index: NearestIndex, split: Split, part: Range, top: int) -> Iterator[dict[str, Any]]:
    for position, nearest in enumerate(index.search(part.start, part.stop, top), part.start):
        yield {
            "image_id": split.image_ids[position],
            "neighbour_ids": [split.image_ids[other] for other in nearest.positions.tolist()],
            "distances": nearest.distances.tolist(),
        }


def make_ranges(sizes: Sequence[int], max_images: int) -> Iterator[list[Range]]:
    """Yields for each split the ranges of at most ``max_images`` images, numbered through all."""
    number = 0
    for size in sizes:
        starts = range(0, size, max_images)
        yield [
            Range(number=number + k, start=start, stop=min(start + max_images, size))
            for k, start in enumerate(starts)
        ]
        number += len(starts)


def run_import(args: argparse.Namespace) -> int:
    """Writes the published list of nearest images as ``neighbours``."""
    path, output = to_path(args.published), to_path(args.output)
    published = read_pool(path, args.id_prefix)
    entry = file_input("--import", path)
    settings = {"top": args.top, "id_prefix": args.id_prefix, "import_sha256": entry.digest}
    state = prepare_output(output, job=STAGE, settings=settings, fresh=args.fresh)
    if state is not State.FINISHED:
        rows = list(neighbour_rows(published, args.top))
        producer = {"job": STAGE, **settings}
        lists = [row for row in rows if "neighbour_ids" in row]
        rejects = [row for row in rows if "reason" in row]
        shards: list[Shard] = [
            write_shard(output, NEIGHBOURS, lists, producer=producer),
            write_shard(output, REJECTS, rejects, producer=producer),
        ]
        counts = Counter(str(row["reason"]) for row in rejects)
        write_report(output, len(lists), counts, settings, args.images)
        write_manifest(output, shards, job=STAGE, settings=settings, inputs=[entry])
    return _finish(output, state, args.top)


def _finish(output: Path, state: State, top: int) -> int:
    """Removes what the run is continued from, and says what there is; the exit status."""
    remove_tree(output / WORK)  # twice as large as the vectors, and no use
    shards: Sequence[Shard] = read_manifest(output)["shards"]
    count = sum(shard.rows for shard in shards if shard.table == NEIGHBOURS.name)
    done = "finished before" if state is State.FINISHED else "done"
    print_reading_hint(output, NEIGHBOURS.name)
    short = short_lists(output, top) if count else 0
    fewer = f", {short} with fewer than {top}" if short else ""
    print(
        f"{done}: neighbours of {count} images{fewer}, {rejects_said(reject_counts(output))}: "
        f"{output}"
    )
    return 0 if count else 1


def short_lists(folder: Path, top: int) -> int:
    """Counts the images with fewer than ``top`` neighbours."""
    count = 0
    for batch in iter_batches(folder, NEIGHBOURS, columns=["neighbour_ids"]):
        lengths = pc.list_value_length(batch.column(0))
        count += pc.sum(pc.less(lengths, top)).as_py() or 0
    return count
