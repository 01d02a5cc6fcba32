"""Defines the command line ``extract-rois``."""

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vlmill.extract import from_flags
from vlmill.extract.config import IDS, PAGE, ExtractConfig, InputLimits, require_weights
from vlmill.extract.flags import add_engine, add_names, add_sizes
from vlmill.extract.formats.command import (
    EXPORT_EXAMPLES,
    IMPORT_EXAMPLES,
    add_export,
    add_import,
    command_export,
    command_import,
)
from vlmill.extract.service.command import EXAMPLES as SERVE_EXAMPLES
from vlmill.extract.service.command import add_serve, serve_regions
from vlmill.extract.weights import resolve_weights
from vlmill.runtime.console.command import (
    Parser,
    add_count,
    add_lock_seconds,
    path_or_url,
    print_reading_hint,
    print_status,
    run_command,
)
from vlmill.runtime.console.cost import add_cost_arguments, print_estimate, require_disk_space
from vlmill.runtime.extras import require_extra
from vlmill.runtime.files.lock import lock_output
from vlmill.runtime.files.paths import require_local, to_path
from vlmill.runtime.net.flags import add_allow_address
from vlmill.runtime.units.share import Share, parse_share
from vlmill.runtime.weights.listing import add_weights_arguments, list_weights
from vlmill.schemas.errors import InputError
from vlmill.schemas.plurals import format_count
from vlmill.schemas.rejects import format_rejects
from vlmill.train.detector.command import EXAMPLES as TRAIN_EXAMPLES
from vlmill.train.detector.command import (
    RECIPES_HELP,
    add_recipes,
    add_train,
    command_recipes,
    command_train,
)

if TYPE_CHECKING:
    from vlmill.extract.images.given_boxes import GivenBoxes
    from vlmill.extract.images.plan import InputImage
    from vlmill.runtime.files.inputs import Input

EXAMPLES = """examples:
  extract-rois run images/ --output regions/ --weights detector.pth
  extract-rois verify regions/
  extract-rois show regions/ --images images/ --output regions.html

`extract-rois COMMAND --help` describes each command."""
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
VERIFY_EXAMPLES = """examples:
  extract-rois verify regions/
  extract-rois verify demo/pairs
  extract-rois verify runs/imagebert

DIR is the output of a command that writes tables, a training run, one of its checkpoints, a
detector, a search index, or a model of fit_scorer or fit_image_filter. Checkpoints, detectors and
indexes are compared with their recorded SHA-256. For tables, every file is compared with the
manifest (rows, bytes, SHA-256) and every row with the contract of its table: types, unique ids, the
SHA-256 of images, the images of pairs in the same folder, negatives with their similarities, known
reject reasons, boxes inside their images, finite numbers, probabilities from 0 to 1."""
COMPARE_EXAMPLES = """example:
  extract-rois compare --weights model_final.pth --config faster_rcnn_R_50_C4_1x.yaml a.jpg b.jpg

Needs Detectron2 (docs/install.md). Both implementations get the same input at each stage: an image,
Detectron2's feature map, its proposals. The regions are those that each computes from the image
alone, by the rule of the configuration. Rounding moves proposals by about 0.01 pixels and features
by 1e-5 of the largest. A misread configuration shows as larger differences, or as other proposals
and regions; the first column that differs is the stage where it begins."""
SHOW_EXAMPLES = """example:
  extract-rois show regions/ --images images/ --classes objects_vocab.txt --output regions.html
  extract-rois show regions/ --images images/ --classes objects_vocab.txt --serve

--serve prints the address of a page that shows all rows, reachable from this machine until Ctrl-C.
An image belongs to the row with its id, its file name (46.jpg matches 46 and coco/46) or its
SHA-256; an image that matches two rows is an error. If nothing is drawn, the status is 1."""


def parser() -> Parser:
    """Returns the parser of the command line."""
    top = Parser(
        prog="extract-rois",
        description="Extract, verify, show and convert region features of images.",
        epilog=EXAMPLES,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, purpose: str, epilog: str | None = None) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=purpose, epilog=epilog)

    add_run(add("run", "extract the regions of images", RUN_EXAMPLES))
    serve = add("serve", "serve regions over HTTP", SERVE_EXAMPLES)
    add_serve(serve)
    add_engine(serve)
    verify = add("verify", "check rows and checksums of the output of any command", VERIFY_EXAMPLES)
    verify.description = "Checks every row and checksum of the output of any command."
    verify.add_argument(
        "folder", metavar="DIR", help="output folder of a run, or the file of a fitted model"
    )
    add_import(add("import", "convert feature files of other projects to tables", IMPORT_EXAMPLES))
    add_export(add("export", "convert tables to feature files of other projects", EXPORT_EXAMPLES))
    add_compare(add("compare", "compare the detector with Detectron2", COMPARE_EXAMPLES))
    add_train(add("train", "train a detector on boxes", TRAIN_EXAMPLES))
    add_recipes(add("recipes", "list and show the recipes of `train`", RECIPES_HELP))
    add_weights_arguments(add("weights", "list published detectors and where they are"))
    add_show(add("show", "draw regions on their images", SHOW_EXAMPLES))
    return top


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
    add_count(
        run,
        "--workers",
        "number of processes that read, decode and resize; the rows stay the same (default: "
        "%(default)s: the main process does it)",
        least=0,
        default=0,
    )
    add_engine(run)
    add_names(run)


def add_compare(compare: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``extract-rois compare``."""
    compare.description = "Compares the detector with Detectron2, stage by stage."
    compare.add_argument("images", nargs="+", type=Path, metavar="IMAGE")
    compare.add_argument(
        "--weights",
        required=True,
        metavar="FILE",
        help="detector weights, as for --weights of `run`",
    )
    add_allow_address(compare)
    compare.add_argument(
        "--config", required=True, type=Path, metavar="FILE", help=".yaml file of a C4 or FPN model"
    )
    compare.add_argument(
        "--device", default="cpu", help="device, such as cpu or cuda (default: %(default)s)"
    )
    add_sizes(compare.add_argument_group("images"), InputLimits())


def add_show(show: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``extract-rois show``."""
    show.description = "Draws the highest-scoring regions on their images."
    show.add_argument(
        "regions", metavar="REGIONS", help="table of regions: a folder, a file or a glob"
    )
    show.add_argument(
        "--images",
        nargs="+",
        default=[],
        metavar="INPUT",
        help="images, in the same form as the INPUT of `run`; optional with --serve, "
        "which then shows only the boxes",
    )
    where = show.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--output",
        type=path_or_url,
        metavar="PATH",
        help="one .html file that contains the images, or a folder for PNGs",
    )
    where.add_argument(
        "--serve",
        action="store_true",
        help="serve a page with all rows, for the browser (docs/serving.md)",
    )
    add_count(show, "--port", "port for --serve (default: any free port)", least=0, default=0)
    show.add_argument(
        "--classes", metavar="FILE", help="file with the names of all classes, one per line"
    )
    show.add_argument(
        "--attributes", metavar="FILE", help="file with the names of all attributes, one per line"
    )
    add_count(show, "--boxes", "largest number of boxes per image", least=0, default=12)
    add_count(show, "--max-images", "largest number of images to draw", least=0, default=50)


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
        inputs=[*list_inputs(arguments), *from_flags.detector_inputs(arguments)],
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


def list_inputs(arguments: argparse.Namespace) -> "list[Input]":
    """Records the images, the pairs that chose among them, and the boxes, for the manifest."""
    from vlmill.extract.images.plan import is_table
    from vlmill.runtime.files.digests import path_input, table_input
    from vlmill.schemas.tables import IMAGES, PAIRS

    pairs, boxes = arguments.pairs, arguments.boxes
    images = [
        table_input("INPUT", name, IMAGES) if is_table(name) else path_input("INPUT", name)
        for name in arguments.inputs
    ]
    chosen = [] if pairs is None else [table_input("--pairs", pairs, PAIRS)]
    return [*images, *chosen, *([] if boxes is None else [path_input("--boxes", boxes)])]


def command_serve(arguments: argparse.Namespace) -> int:
    """Runs ``extract-rois serve``."""
    config = from_flags.make_config(arguments)
    if from_flags.is_grid(arguments):
        raise InputError("--grid: `serve` describes regions; use `run` for the cells of a grid")
    from_flags.check_detector(arguments)
    from_flags.warn_of_random_weights(arguments)
    return serve_regions(arguments, config, functools.partial(from_flags.detector_on, arguments))


def command_compare(arguments: argparse.Namespace) -> int:
    """Runs ``extract-rois compare``."""
    files = resolve_weights(arguments.weights, allow_addresses=arguments.allow_address)
    weights, file, device = files.weights, arguments.config, arguments.device
    require_weights(weights)
    # torch takes seconds to load: import it only after the arguments are checked.
    from vlmill.extract.compare import compare, format_differences
    from vlmill.extract.detect.detector import open_detector
    from vlmill.extract.detect.detectron2 import infer, open_detectron2, read_selection

    reference_detector = open_detectron2(file, weights, device=device)
    config = ExtractConfig(
        selection=read_selection(reference_detector), limits=from_flags.make_limits(arguments)
    )
    detector = open_detector(None, weights, config_file=file, device=device)
    images: list[Path] = arguments.images
    spec, limits = reference_detector.model.config, config.limits
    sides = limits.short_side or spec.short_side, limits.long_side or spec.long_side
    inferring = functools.partial(infer, reference_detector, sides=sides)
    differences = list(compare(images, detector, reference_detector, inferring, config))
    print("\n".join(format_differences([path.name for path in images], differences)))
    return 0


def command_verify(arguments: argparse.Namespace) -> int:
    """Runs ``extract-rois verify``."""
    from vlmill.extract.verify import verify

    if to_path(arguments.folder).is_file():
        from vlmill.pipelines.filters.model_file import model_problems

        problems = model_problems(to_path(arguments.folder))
    else:
        problems = verify(arguments.folder)
    for problem in problems:
        print(problem, file=sys.stderr)
    count = format_count(len(problems), "problem")
    verdict = count if problems else "every row and checksum is correct"
    print(f"{arguments.folder}: {verdict}")
    return 1 if problems else 0


def command_show(arguments: argparse.Namespace) -> int:
    """Runs ``extract-rois show``."""
    from vlmill.extract.show import Vocabulary, show
    from vlmill.runtime.readers.class_names import first_names

    names = Vocabulary(
        classes=first_names(arguments.classes, "--classes"),
        attributes=first_names(arguments.attributes, "--attributes"),
    )
    if arguments.serve:
        require_extra("service")
        from vlmill.extract.service.viewer import serve_table

        return serve_table(arguments.regions, arguments.images, names, arguments.port)
    if not arguments.images:
        raise InputError("--images is missing; give the images to draw on, or --serve")
    drawn, summary = show(
        arguments.regions,
        arguments.images,
        arguments.output,
        names=names,
        max_boxes=arguments.boxes,
        max_images=arguments.max_images,
    )
    print(f"{arguments.output}: {summary}")
    return 0 if drawn else 1


def command(argv: Sequence[str]) -> int:
    """Parses and runs; raises InputError for a user's mistake."""
    arguments = parser().parse_args(argv)
    commands: dict[str, Callable[[argparse.Namespace], int]] = {
        "run": command_run,
        "serve": command_serve,
        "verify": command_verify,
        "import": command_import,
        "export": command_export,
        "show": command_show,
        "compare": command_compare,
        "train": command_train,
        "recipes": command_recipes,
        "weights": lambda args: list_weights("detector", args.names),
    }
    dry = getattr(arguments, "dry_run", False)
    output = None if dry else getattr(arguments, "output", None)
    if arguments.command not in ("run", "show", "train"):
        require_local("--output", getattr(arguments, "output", None))
    part: Share | None = getattr(arguments, "part", None)
    name = None if part is None or dry else part.name
    seconds = getattr(arguments, "lock_seconds", None)
    with lock_output(output, alongside=appears_whole(arguments), part=name, seconds=seconds):
        return commands[arguments.command](arguments)


def appears_whole(arguments: argparse.Namespace) -> bool:
    """Returns whether the output appears by a rename: a file, or a folder that must not exist."""
    if arguments.command == "show":
        return arguments.output is not None and arguments.output.suffix.lower() == PAGE
    return bool(arguments.command == "export")


def main() -> int:
    """Runs the command; returns its exit status."""
    return run_command(command)


if __name__ == "__main__":
    sys.exit(main())
