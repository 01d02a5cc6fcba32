"""Defines the command line ``extract-rois``."""

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from vlmill.extract import from_flags
from vlmill.extract.config import PAGE, ExtractConfig, InputLimits, require_weights
from vlmill.extract.extraction import RUN_EXAMPLES, add_run, command_run
from vlmill.extract.flags import add_engine, add_sizes
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
from vlmill.runtime.console.command import Parser, int_at_least, path_or_url, run_command
from vlmill.runtime.extras import require_extra
from vlmill.runtime.files.lock import lock_output
from vlmill.runtime.files.paths import require_local, to_path
from vlmill.runtime.net.flags import add_allow_address
from vlmill.runtime.units.share import Share
from vlmill.runtime.weights.listing import add_weights_arguments, list_weights
from vlmill.schemas.errors import InputError
from vlmill.schemas.plurals import format_count
from vlmill.train.detector.command import EXAMPLES as TRAIN_EXAMPLES
from vlmill.train.detector.command import add_train, command_train
from vlmill.train.detector.describe import RECIPES_HELP, add_recipes, command_recipes

EXAMPLES = """examples:
  extract-rois run images/ --output regions/ --weights detector.pth
  extract-rois verify regions/
  extract-rois show regions/ --images images/ --output regions.html

`extract-rois COMMAND --help` describes each command."""
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
    add_run(commands.add_parser("run", help="extract the regions of images", epilog=RUN_EXAMPLES))
    serve = commands.add_parser("serve", help="serve regions over HTTP", epilog=SERVE_EXAMPLES)
    add_serve(serve)
    add_engine(serve)
    verify = commands.add_parser(
        "verify",
        help="check rows and checksums of the output of any command",
        epilog=VERIFY_EXAMPLES,
    )
    verify.description = "Checks every row and checksum of the output of any command."
    verify.add_argument(
        "folder", metavar="DIR", help="output folder of a run, or the file of a fitted model"
    )
    add_import(
        commands.add_parser(
            "import",
            help="convert feature files of other projects to tables",
            epilog=IMPORT_EXAMPLES,
        )
    )
    add_export(
        commands.add_parser(
            "export",
            help="convert tables to feature files of other projects",
            epilog=EXPORT_EXAMPLES,
        )
    )
    add_compare(
        commands.add_parser(
            "compare", help="compare the detector with Detectron2", epilog=COMPARE_EXAMPLES
        )
    )
    add_train(commands.add_parser("train", help="train a detector on boxes", epilog=TRAIN_EXAMPLES))
    add_recipes(
        commands.add_parser(
            "recipes", help="list and show the recipes of `train`", epilog=RECIPES_HELP
        )
    )
    add_weights_arguments(
        commands.add_parser("weights", help="list published detectors and where they are")
    )
    add_show(commands.add_parser("show", help="draw regions on their images", epilog=SHOW_EXAMPLES))
    return top


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
        "--config",
        required=True,
        type=Path,
        metavar="FILE",
        help=".yaml file of a C4 or FPN model",
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
    show.add_argument(
        "--port",
        type=int_at_least(0),
        default=0,
        metavar="N",
        help="port for --serve (default: any free port)",
    )
    show.add_argument(
        "--classes", metavar="FILE", help="file with the names of all classes, one per line"
    )
    show.add_argument(
        "--attributes", metavar="FILE", help="file with the names of all attributes, one per line"
    )
    show.add_argument(
        "--boxes",
        type=int_at_least(0),
        default=12,
        metavar="N",
        help="largest number of boxes per image (default: %(default)s)",
    )
    show.add_argument(
        "--max-images",
        type=int_at_least(0),
        default=50,
        metavar="N",
        help="largest number of images to draw (default: %(default)s)",
    )


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
