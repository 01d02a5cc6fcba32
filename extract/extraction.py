"""Defines the arguments of ``extract-rois run`` and runs it."""

import argparse
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vlmill.extract import from_flags
from vlmill.extract.config import IDS
from vlmill.extract.flags import add_engine, add_names
from vlmill.runtime.console.command import (
    add_lock_seconds,
    int_at_least,
    path_or_url,
    print_reading_hint,
    print_status,
)
from vlmill.runtime.console.cost import add_cost_arguments, print_estimate, require_disk_space
from vlmill.runtime.net.flags import add_allow_address
from vlmill.runtime.units.share import Share, parse_share
from vlmill.schemas.errors import InputError
from vlmill.schemas.plurals import format_count
from vlmill.schemas.rejects import format_rejects

if TYPE_CHECKING:
    from vlmill.extract.images.given_boxes import GivenBoxes
    from vlmill.extract.images.plan import InputImage

RUN_EXAMPLES = """examples:
  extract-rois run images/ --output regions/ --weights detector.pth --selection vilbert
  extract-rois run images/ --output regions/ --weights detector.pth --dry-run
  extract-rois run web/ --output regions/ --arch tiny --short-side 240 --long-side 400
  extract-rois run 'shards/*.tar' --output regions/ --weights detector.pth --workers 8 \\
      --device cuda:0,cuda:1
  extract-rois run vcr1images/ --boxes vcr1images/ --output regions/ --weights detector.pth
  extract-rois run images/ --output regions/ --weights detector.pth --part 3/8
  extract-rois run images/ --output regions/ --weights model_final.pth --config my_c4.yaml
  extract-rois run images/ --output regions/ --weights detector.pth \\
      --global-cnn densenet121,resnet152,googlenet \\
      --global-weights densenet121.pth resnet152.pth googlenet.pth

The third example reads a table of images (the output of web_pairs) and uses random weights.

The output is DIR/regions-*.parquet, DIR/rejects-*.parquet and DIR/_manifest.json. The same command
on the same --output continues a killed run. Every file is counted: it gets a row of regions or of
rejects, or the last line counts it as skipped, with the reason.

Images are rotated according to EXIF. Grey, palette, CMYK and 16-bit images are converted, alpha is
dropped, and the first frame of an animation is used. Empty, cut, damaged, too large, too thin and
unsupported images are rejected with a reason (docs/regions.md).

Memory does not grow with the number of images: about 1.5 GB with r101 at 600/1000 pixels, 0.5 GB
with tiny, the images of --batch-size, and 400 bytes per planned image."""


def add_run(run: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``extract-rois run``."""
    run.description = "Detects regions in images and writes their features."
    run.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="an image, a folder or glob of images, a .txt list of paths, a .tar in "
        "WebDataset's layout (several: 'shards/{000..011}.tar'), or a table of images",
    )
    run.add_argument(
        "--output", required=True, type=path_or_url, metavar="DIR", help="folder for the tables"
    )
    run.add_argument(
        "--fresh", action="store_true", help="delete the output of an earlier run first"
    )
    run.add_argument(
        "--part",
        type=parse_share,
        metavar="i/n",
        help="write only the i-th of n shares of the shards (from 1); other processes, "
        "here or on other machines, write the other shares with the same flags; the "
        "last to finish writes the manifest",
    )
    add_cost_arguments(run)
    add_lock_seconds(run)
    add_allow_address(run)
    which = run.add_argument_group("which images")
    which.add_argument(
        "--ids",
        choices=IDS,
        default="auto",
        help="image_id of a file or tar member: content (SHA-256) or name (without "
        "extension); auto: content for files, name for members (default: auto)",
    )
    which.add_argument(
        "--pairs",
        metavar="PAIRS",
        help="extract only the images that this table of pairs refers to, with its ids "
        "(46.jpg for 46)",
    )
    which.add_argument(
        "--boxes",
        type=Path,
        metavar="BOXES",
        help="your own boxes instead of proposals; all are kept, in their order. JSON "
        'lines {"image_id": ID, "boxes": [[x1, y1, x2, y2], ...]}, where ID is the '
        "image_id or the file name with or without extension; or a folder of VCR's "
        "metadata files, named like the images; or a table of boxes, choices, "
        "expressions or regions",
    )
    run.add_argument(
        "--workers",
        type=int_at_least(0),
        default=0,
        metavar="N",
        help="number of processes that read, decode and resize; the rows stay the same "
        "(default: %(default)s: the main process does it)",
    )
    add_engine(run)
    add_names(run)


def command_run(arguments: argparse.Namespace) -> int:
    """Runs ``extract-rois run``."""
    config = from_flags.make_config(arguments)
    from_flags.check_detector(arguments)
    if arguments.part is not None and arguments.fresh:
        raise InputError(
            "--fresh would delete the output of the other parts; remove it, and delete "
            f"{arguments.output} before you start any part"
        )
    work = plan_run(arguments)
    # torch takes seconds to load: import it only after the arguments are checked.
    from vlmill.extract.run.cost import estimate_cost, list_remaining, measure
    from vlmill.extract.run.devices import WorkerSettings
    from vlmill.extract.run.inputs import inputs_of_run
    from vlmill.extract.run.job import Job, run

    from_flags.warn_of_random_weights(arguments)
    names = [name.strip() for name in arguments.device.split(",")]
    detector = from_flags.detector_on(arguments, names[0])
    if arguments.weights is not None:
        print_status(detector.summary)
    job = Job(
        plan=work.plan,
        output=arguments.output,
        detector=detector,
        config=config,
        given_boxes=work.given_boxes,
        inputs=[
            *inputs_of_run(arguments.inputs, arguments.pairs, arguments.boxes),
            *from_flags.detector_inputs(arguments),
        ],
    )
    opener = functools.partial(from_flags.detector_on, arguments)
    worker_settings = WorkerSettings(workers=arguments.workers, devices=names, open_detector=opener)
    part: Share | None = arguments.part
    shard_indices = range(job.num_shards) if part is None else part.select_shards(job.num_shards)
    if arguments.dry_run:
        images = [image for index in shard_indices for image in job.part(index).images]
        if work.skipped:
            print_status(work.skipped)
        return print_estimate(estimate_cost(job, images, measure(job, worker_settings)), job.output)
    left = list_remaining(job, shard_indices) if not arguments.fresh else job.plan
    require_disk_space(estimate_cost(job, left).min_bytes, job.output, force=arguments.force)
    made = run(job, fresh=arguments.fresh, worker_settings=worker_settings, share=part)
    weights = f" ({detector.weights})" if arguments.weights is None else ""
    return print_result(arguments, work, made, weights)


@dataclass(frozen=True, kw_only=True)
class RunWork:
    """Holds the images of a run, their given boxes, and a sentence about skipped inputs."""

    plan: "list[InputImage]"
    given_boxes: "GivenBoxes | None"
    skipped: str


def plan_run(arguments: argparse.Namespace) -> RunWork:
    """Reads which images are extracted. Raises InputError for inputs that do not fit together."""
    # Help texts do not need pyarrow.
    from vlmill.extract.images.choosing import require_ids, select_pair_images, with_missing_boxes
    from vlmill.extract.images.discovery import Skipped
    from vlmill.extract.images.given_boxes import read_boxes
    from vlmill.extract.images.plan import plan_images

    given_boxes = None if arguments.boxes is None else read_boxes(arguments.boxes)
    skipped = Skipped()
    plan = plan_images(arguments.inputs, arguments.ids, skipped)
    if arguments.pairs is not None:
        plan = select_pair_images(plan, arguments.pairs, skipped)
    if given_boxes is not None:
        plan = with_missing_boxes(plan, given_boxes, str(arguments.boxes))
    if arguments.part is not None:
        require_ids(plan)
    return RunWork(plan=plan, given_boxes=given_boxes, skipped=skipped.summary())


def print_result(
    arguments: argparse.Namespace, work: RunWork, made: tuple[int, int], weights: str
) -> int:
    """Prints the rows of regions and rejects that a run, or its part, has ``made``; returns the
    exit status.
    """
    from vlmill.runtime.files.manifest import MANIFEST
    from vlmill.runtime.files.reading import reject_counts

    regions, rejects = made
    rows = format_count(regions, "row of regions", "rows of regions")
    also = f"; {work.skipped}" if work.skipped else ""
    if arguments.part is not None and not (arguments.output / MANIFEST).exists():
        counts = f"{rows}, {format_count(rejects, 'reject')}"
        print(f"{arguments.output}: part {arguments.part.name}, {counts}{also}")
        return 0
    print_reading_hint(arguments.output, "regions")
    reasons = format_rejects(reject_counts(arguments.output))
    counts = f"{format_count(len(work.plan), 'image')}, {rows}, {reasons}"
    print(f"{arguments.output}: {counts}{also}{weights}")
    return 0 if regions or not rejects else 1
