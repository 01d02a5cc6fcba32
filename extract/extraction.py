"""``extract-rois run``: its arguments, and what they mean."""

import argparse
import functools
from pathlib import Path

from vlmill.extract.config import IDS
from vlmill.extract.flags import add_engine, add_names
from vlmill.extract.from_flags import (
    check_detector,
    detector_inputs,
    detector_on,
    make_config,
    warn_of_random_weights,
)
from vlmill.extract.run.share import Share, share
from vlmill.runtime.console.command import (
    add_lock_seconds,
    int_at_least,
    path_or_url,
    print_reading_hint,
    print_status,
)
from vlmill.runtime.console.cost import add_cost_arguments, print_estimate, require_disk_space
from vlmill.runtime.net.flags import add_allow_address
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import rejects_said

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

--dry-run tells images, bytes and hours, and writes nothing. The third takes a table of images
(the folder that the web_pairs job wrote), without weights.
Images are turned as EXIF says; grey, palette, CMYK and 16-bit ones are converted, alpha is
dropped, of an animation the first frame counts; what is empty, cut, damaged, too large, too thin or
of another format is rejected with its reason (docs/regions.md).
The output is DIR/regions-*.parquet, DIR/rejects-*.parquet and DIR/_manifest.json. The same command
on the same --output continues what a killed run left. Every file is counted: it has a row of
regions or of rejects, or the last line counts it as skipped, with the reason. Memory does not grow
with the images: about 1.5 GB with r101 at 600/1000, 0.5 GB with tiny, the images of
--batch-size, and 400 bytes for each image of the plan."""


def add_run(run: argparse.ArgumentParser) -> None:
    """Arguments of ``extract-rois run``."""
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
        type=share,
        metavar="i/n",
        help="write only the i-th of n shares of the shards (from 1), while other "
        "processes, here or on other machines, write the other shares with the same "
        "flags; the last to finish writes the manifest",
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
    """``extract-rois run``."""
    config = make_config(arguments)
    check_detector(arguments)
    if arguments.part is not None and arguments.fresh:
        raise InputError(
            "--fresh would delete what the others of --part make; leave it out, and delete "
            f"{arguments.output} before all of them"
        )
    # A help text does without pyarrow.
    from vlmill.extract.images.choosing import only_of_pairs, require_ids, with_missing_boxes
    from vlmill.extract.images.discovery import Skipped
    from vlmill.extract.images.given_boxes import read_boxes
    from vlmill.extract.images.plan import plan_images

    given_boxes = None if arguments.boxes is None else read_boxes(arguments.boxes)
    skipped = Skipped()
    plan = plan_images(arguments.inputs, arguments.ids, skipped)
    if arguments.pairs is not None:
        plan = only_of_pairs(plan, arguments.pairs, skipped)
    if given_boxes is not None:
        plan = with_missing_boxes(plan, given_boxes, str(arguments.boxes))
    if arguments.part is not None:
        require_ids(plan)
    # torch takes seconds to load: not before the arguments are known to be good.
    from vlmill.extract.run.cost import estimate_cost, list_remaining, measure
    from vlmill.extract.run.devices import WorkerSettings
    from vlmill.extract.run.inputs import inputs_of_run
    from vlmill.extract.run.job import Job, run
    from vlmill.runtime.files.manifest import MANIFEST
    from vlmill.runtime.files.reading import reject_counts

    warn_of_random_weights(arguments)
    names = [name.strip() for name in arguments.device.split(",")]
    detector = detector_on(arguments, names[0])
    if arguments.weights is not None:
        print_status(detector.summary)
    job = Job(
        plan=plan,
        output=arguments.output,
        detector=detector,
        config=config,
        given_boxes=given_boxes,
        inputs=[
            *inputs_of_run(arguments.inputs, arguments.pairs, arguments.boxes),
            *detector_inputs(arguments),
        ],
    )
    opener = functools.partial(detector_on, arguments)
    worker_settings = WorkerSettings(workers=arguments.workers, devices=names, open_detector=opener)
    part: Share | None = arguments.part
    shard_indices = range(job.num_shards) if part is None else part.select_shards(job.num_shards)
    also = f"; {skipped.summary()}" if skipped.summary() else ""
    if arguments.dry_run:
        images = [image for index in shard_indices for image in job.part(index).images]
        if also:
            print_status(skipped.summary())
        return print_estimate(estimate_cost(job, images, measure(job, worker_settings)), job.output)
    left = list_remaining(job, shard_indices) if not arguments.fresh else job.plan
    require_disk_space(estimate_cost(job, left).min_bytes, job.output, force=arguments.force)
    regions, rejects = run(job, fresh=arguments.fresh, worker_settings=worker_settings, share=part)
    if part is not None and not (arguments.output / MANIFEST).exists():
        counts = f"{regions} rows of regions, {rejects} rejects"
        print(f"{arguments.output}: part {part.name}, {counts}{also}")
        return 0
    note = f" ({detector.weights})" if arguments.weights is None else ""
    print_reading_hint(arguments.output, "regions")
    reasons = rejects_said(reject_counts(arguments.output))
    counts = f"{len(plan)} images, {regions} rows of regions, {reasons}"
    print(f"{arguments.output}: {counts}{also}{note}")
    return 0 if regions or not rejects else 1
