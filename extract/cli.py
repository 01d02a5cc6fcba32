"""``extract-rois``: region features of pictures."""

import argparse
import functools
import sys
from collections.abc import Sequence
from pathlib import Path

from vlmill.extract.config import IDS, PAGE, ExtractConfig, InputLimits, require_weights
from vlmill.extract.flags import (
    add_engine,
    add_sizes,
    check_detector,
    config_of,
    count,
    detector_inputs,
    detector_on,
    limits_of,
    warn_of_random_weights,
)
from vlmill.extract.formats.command import (
    EXPORT_EXAMPLES,
    IMPORT_EXAMPLES,
    add_export,
    add_import,
    command_export,
    command_import,
)
from vlmill.extract.run.share import Share, share
from vlmill.extract.service.command import EXAMPLES as SERVE_EXAMPLES
from vlmill.extract.service.command import add_serve, serve_regions
from vlmill.extract.train.command import EXAMPLES as TRAIN_EXAMPLES
from vlmill.extract.train.command import add_train, command_train
from vlmill.extract.train.describe import RECIPES_HELP, add_recipes, command_recipes
from vlmill.schemas.console.command import (
    Parser,
    add_lock_seconds,
    place,
    run_command,
    say_how_to_read,
)
from vlmill.schemas.console.cost import add_cost_arguments, print_estimate, require_room
from vlmill.schemas.errors import InputError
from vlmill.schemas.files.lock import locked
from vlmill.schemas.files.remote import require_local
from vlmill.schemas.rejects import rejects_said
from vlmill.schemas.service.settings import require_packages

EXAMPLES = """examples:
  extract-rois run pictures/ --output regions/ --weights detector.pth
  extract-rois verify regions/
  extract-rois show regions/ --images pictures/ --output regions.html

`extract-rois COMMAND --help` says more of each."""
RUN_EXAMPLES = """examples:
  extract-rois run pictures/ --output regions/ --weights detector.pth --selection vilbert
  extract-rois run pictures/ --output regions/ --weights detector.pth --dry-run
  extract-rois run web/ --output regions/ --arch tiny --short-side 240 --long-side 400
  extract-rois run 'shards/*.tar' --output regions/ --weights detector.pth --workers 8 \\
      --device cuda:0,cuda:1
  extract-rois run vcr1images/ --boxes vcr1images/ --output regions/ --weights detector.pth
  extract-rois run images/ --output regions/ --weights detector.pth --part 3/8
  extract-rois run pictures/ --output regions/ --weights model_final.pth --config my_c4.yaml
  extract-rois run pictures/ --output regions/ --weights detector.pth \\
      --global-cnn densenet121,resnet152,googlenet \\
      --global-weights densenet121.pth resnet152.pth googlenet.pth

--dry-run tells pictures, bytes and hours, and writes nothing. The third takes a table of images
(the folder that the web_pairs job wrote), without weights.
Pictures are turned as EXIF says; grey, palette, CMYK and 16-bit ones are converted, alpha is
dropped, of an animation the first frame counts; what is empty, cut, damaged, too large, too thin or
of another format is rejected with its reason (docs/regions.md).
The output is DIR/regions-*.parquet, DIR/rejects-*.parquet and DIR/_manifest.json. The same command
on the same --output continues what a killed run left. Every input is counted: it has a row of
regions or of rejects. Memory does not grow with the pictures: about 1.5 GB with r101 at 600/1000,
0.5 GB with tiny, the pictures of --batch-size, and 400 bytes for each picture of the plan."""
VERIFY_EXAMPLES = """examples:
  extract-rois verify regions/
  extract-rois verify demo/pairs

DIR is the output of any command that writes tables. Every file is read back against the manifest
(rows, bytes, SHA-256), every row against its table: types, unique ids, pictures as their SHA-256
says, pairs whose pictures lie in the same folder, negatives with their similarities, reasons of the
list; boxes inside their pictures, finite numbers, probabilities from 0 to 1."""
COMPARE_EXAMPLES = """example:
  extract-rois compare --weights model_final.pth --config faster_rcnn_R_50_C4_1x.yaml a.jpg b.jpg

Needs Detectron2 (docs/install.md). Each stage is given the same input: a picture, Detectron2's
feature map, its proposals; regions are what each makes of the file by itself, by the rule of the
configuration. Other roundings move proposals by about 0.01 pixels, features by 1e-5 of
the largest. A configuration that was misread shows as differences of another size, or as other
proposals and regions, and the first column that differs says where it begins."""
SHOW_EXAMPLES = """example:
  extract-rois show regions/ --images pictures/ --classes objects_vocab.txt --output regions.html
  extract-rois show regions/ --images pictures/ --classes objects_vocab.txt --serve

--serve prints the address of a page to look at all of them, on this machine alone, until Ctrl-C.
A picture is that of the row with its id, its file's name (46.jpg is 46 and coco/46) or its
SHA-256; one that may be two rows is an error. Where nothing is drawn the status is 1."""


def parser() -> Parser:
    """The whole command line."""
    top = Parser(
        prog="extract-rois",
        description="Region features of pictures: make, check, look at.",
        epilog=EXAMPLES,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_run(commands.add_parser("run", help="extract regions", epilog=RUN_EXAMPLES))
    serve = commands.add_parser("serve", help="answer requests over HTTP", epilog=SERVE_EXAMPLES)
    add_serve(serve)
    add_engine(serve)
    verify = commands.add_parser(
        "verify", help="check every row and checksum of tables", epilog=VERIFY_EXAMPLES
    )
    verify.description = "Checks every row and checksum of a folder of tables, whoever wrote it."
    verify.add_argument("folder", metavar="DIR", help="output of a finished run")
    add_import(
        commands.add_parser(
            "import", help="feature files of other projects to tables", epilog=IMPORT_EXAMPLES
        )
    )
    add_export(
        commands.add_parser(
            "export", help="tables to feature files of other projects", epilog=EXPORT_EXAMPLES
        )
    )
    add_compare(
        commands.add_parser(
            "compare", help="our network beside Detectron2's own", epilog=COMPARE_EXAMPLES
        )
    )
    add_train(commands.add_parser("train", help="train a detector on boxes", epilog=TRAIN_EXAMPLES))
    add_recipes(
        commands.add_parser("recipes", help="list and show what `train` knows", epilog=RECIPES_HELP)
    )
    add_show(commands.add_parser("show", help="draw regions on the pictures", epilog=SHOW_EXAMPLES))
    return top


def add_run(run: argparse.ArgumentParser) -> None:
    """Arguments of ``extract-rois run``."""
    run.description = "Detects regions in pictures and writes their features."
    run.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="a picture, a folder or glob of pictures, a .txt list of paths, a .tar in "
        "WebDataset's layout, a table of images",
    )
    run.add_argument(
        "--output", required=True, type=place, metavar="DIR", help="where the tables go"
    )
    run.add_argument("--fresh", action="store_true", help="delete an earlier run's output first")
    run.add_argument(
        "--part",
        type=share,
        metavar="i/n",
        help="make only the i-th of n shares of the shards, from 1, beside processes that make the "
        "others with the same flags, here or elsewhere; the last to finish writes the manifest",
    )
    add_cost_arguments(run)
    add_lock_seconds(run)
    which = run.add_argument_group("which pictures")
    which.add_argument(
        "--ids",
        choices=IDS,
        default="auto",
        help="the image_id of a file or tar member: content (SHA-256) or name (without ending); "
        "auto: content for files, name for members",
    )
    which.add_argument(
        "--pairs",
        metavar="PAIRS",
        help="only the pictures that this table of pairs points to, under its ids (46.jpg for 46)",
    )
    which.add_argument(
        "--boxes",
        type=Path,
        metavar="BOXES",
        help="given boxes in place of proposals, all of them, in their order: JSON lines "
        '{"image_id": ID, "boxes": [[x1, y1, x2, y2], ...]}, ID the image_id or the file\'s name, '
        "with or without ending; or a folder of VCR's metadata files, named like the pictures; or "
        "the boxes, choices or expressions that `manifest` wrote",
    )
    run.add_argument(
        "--workers",
        type=count,
        default=0,
        metavar="N",
        help="processes that read, decode and resize (default: %(default)s, none beside this one); "
        "the rows stay the same",
    )
    add_engine(run)


def add_compare(compare: argparse.ArgumentParser) -> None:
    """Arguments of ``extract-rois compare``."""
    compare.description = "Prints how far our network is from Detectron2, stage by stage."
    compare.add_argument("pictures", nargs="+", type=Path, metavar="PICTURE")
    compare.add_argument(
        "--weights", required=True, type=Path, metavar="FILE", help="as --weights of run"
    )
    compare.add_argument(
        "--config", required=True, type=Path, metavar="FILE", help="a C4 model's .yaml file"
    )
    compare.add_argument("--device", default="cpu", help="default: %(default)s")
    add_sizes(compare.add_argument_group("pictures"), InputLimits())


def add_show(show: argparse.ArgumentParser) -> None:
    """Arguments of ``extract-rois show``."""
    show.description = "Draws the highest-scoring regions on their pictures."
    show.add_argument("regions", metavar="REGIONS", help="a table of regions: folder, file or glob")
    show.add_argument(
        "--images",
        nargs="+",
        default=[],
        metavar="INPUT",
        help="as the INPUT of run; without, boxes are shown alone (--serve)",
    )
    where = show.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--output",
        type=place,
        metavar="PATH",
        help="one .html file with the pictures inside, or a folder of PNGs",
    )
    where.add_argument(
        "--serve", action="store_true", help="a page of all rows, in the browser (docs/serving.md)"
    )
    show.add_argument(
        "--port",
        type=count,
        default=0,
        metavar="N",
        help="of --serve (default: a free one)",
    )
    show.add_argument("--classes", metavar="FILE", help="names of all classes, one a line")
    show.add_argument("--attributes", metavar="FILE", help="names of all attributes, one a line")
    show.add_argument(
        "--boxes", type=count, default=12, metavar="N", help="per picture (default: %(default)s)"
    )
    show.add_argument(
        "--pictures", type=count, default=50, metavar="N", help="at most (default: %(default)s)"
    )


def command_run(arguments: argparse.Namespace) -> int:
    """``extract-rois run``."""
    config = config_of(arguments)
    check_detector(arguments)
    if arguments.part is not None and arguments.fresh:
        raise InputError(
            "--fresh would delete what the others of --part make; leave it out, and delete "
            f"{arguments.output} before all of them"
        )
    # A help text does without pyarrow.
    from vlmill.extract.pictures.given_boxes import read_boxes
    from vlmill.extract.pictures.plan import (
        only_of_pairs,
        plan_pictures,
        require_ids,
        with_missing_boxes,
    )

    given_boxes = None if arguments.boxes is None else read_boxes(arguments.boxes)
    plan = plan_pictures(arguments.inputs, arguments.ids)
    if arguments.pairs is not None:
        plan = only_of_pairs(plan, arguments.pairs)
    if given_boxes is not None:
        plan = with_missing_boxes(plan, given_boxes, str(arguments.boxes))
    if arguments.part is not None:
        require_ids(plan)
    # torch takes seconds to load: not before the arguments are known to be good.
    from vlmill.extract.run.cost import estimate_of, measure, what_is_left
    from vlmill.extract.run.devices import Crew
    from vlmill.extract.run.inputs import inputs_of_run
    from vlmill.extract.run.job import Job, run
    from vlmill.schemas.files.manifest import MANIFEST
    from vlmill.schemas.files.reading import reject_counts

    warn_of_random_weights(arguments)
    names = [name.strip() for name in arguments.device.split(",")]
    detector = detector_on(arguments, names[0])
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
    crew = Crew(workers=arguments.workers, devices=names, open_detector=opener)
    part: Share | None = arguments.part
    own = range(job.num_shards) if part is None else part.of(job.num_shards)
    if arguments.dry_run:
        pictures = [picture for index in own for picture in job.part(index).pictures]
        return print_estimate(estimate_of(job, pictures, measure(job, crew)), job.output)
    left = what_is_left(job, own) if not arguments.fresh else job.plan
    require_room(estimate_of(job, left).least_bytes, job.output, force=arguments.force)
    regions, rejects = run(job, fresh=arguments.fresh, crew=crew, share=part)
    if part is not None and not (arguments.output / MANIFEST).exists():
        print(f"{arguments.output}: part {part.name}, {regions} rows of regions, {rejects} rejects")
        return 0
    note = f" ({detector.weights})" if arguments.weights is None else ""
    say_how_to_read(arguments.output, "regions")
    reasons = rejects_said(reject_counts(arguments.output))
    print(f"{arguments.output}: {len(plan)} pictures, {regions} rows of regions, {reasons}{note}")
    return 0 if regions or not rejects else 1


def command_serve(arguments: argparse.Namespace) -> int:
    """``extract-rois serve``."""
    config = config_of(arguments)
    check_detector(arguments)
    warn_of_random_weights(arguments)
    return serve_regions(arguments, config, functools.partial(detector_on, arguments))


def command_compare(arguments: argparse.Namespace) -> int:
    """``extract-rois compare``."""
    weights, file, device = arguments.weights, arguments.config, arguments.device
    require_weights(weights)
    # torch takes seconds to load: not before the arguments are known to be good.
    from vlmill.extract.compare import compare, lines
    from vlmill.extract.detect.detector import open_detector
    from vlmill.extract.detect.detectron2 import infer, open_detectron2, own_rule

    theirs = open_detectron2(file, weights, device=device)
    config = ExtractConfig(selection=own_rule(theirs), limits=limits_of(arguments))
    ours = open_detector(None, weights, config_file=file, device=device)
    pictures: list[Path] = arguments.pictures
    spec, limits = theirs.model.config, config.limits
    sides = limits.short_side or spec.short_side, limits.long_side or spec.long_side
    inferring = functools.partial(infer, theirs, sides=sides)
    differences = list(compare(pictures, ours, theirs, inferring, config))
    print("\n".join(lines([path.name for path in pictures], differences)))
    return 0


def command_verify(arguments: argparse.Namespace) -> int:
    """``extract-rois verify``."""
    from vlmill.extract.verify import verify

    problems = verify(arguments.folder)
    for problem in problems:
        print(problem, file=sys.stderr)
    verdict = f"{len(problems)} problems" if problems else "every row and checksum holds"
    print(f"{arguments.folder}: {verdict}")
    return 1 if problems else 0


def command_show(arguments: argparse.Namespace) -> int:
    """``extract-rois show``."""
    from vlmill.extract.show import Vocabulary, first_names, show

    names = Vocabulary(
        classes=first_names(arguments.classes, "--classes"),
        attributes=first_names(arguments.attributes, "--attributes"),
    )
    if arguments.serve:
        require_packages()
        from vlmill.extract.service.viewer import serve_table

        return serve_table(arguments.regions, arguments.images, names, arguments.port)
    if not arguments.images:
        raise InputError("--images is missing: the pictures that --output draws on")
    drawn, said = show(
        arguments.regions,
        arguments.images,
        arguments.output,
        names=names,
        max_boxes=arguments.boxes,
        max_pictures=arguments.pictures,
    )
    print(f"{arguments.output}: {said}")
    return 0 if drawn else 1


def command(argv: Sequence[str]) -> int:
    """Parses and runs; raises InputError for a user's mistake."""
    arguments = parser().parse_args(argv)
    commands = {
        "run": command_run,
        "serve": command_serve,
        "verify": command_verify,
        "import": command_import,
        "export": command_export,
        "show": command_show,
        "compare": command_compare,
        "train": command_train,
        "recipes": command_recipes,
    }
    dry = getattr(arguments, "dry_run", False)
    output = None if dry else getattr(arguments, "output", None)
    if arguments.command not in ("run", "show", "train"):
        require_local("--output", getattr(arguments, "output", None))
    part: Share | None = getattr(arguments, "part", None)
    name = None if part is None or dry else part.name
    seconds = getattr(arguments, "lock_seconds", None)
    with locked(output, beside=appears_whole(arguments), part=name, seconds=seconds):
        return commands[arguments.command](arguments)


def appears_whole(arguments: argparse.Namespace) -> bool:
    """Whether the output is renamed into its place: a file, or a folder that must not be there."""
    if arguments.command == "show":
        return arguments.output is not None and arguments.output.suffix.lower() == PAGE
    return bool(arguments.command == "export")


def main() -> int:
    """The entry point."""
    return run_command(command)


if __name__ == "__main__":
    sys.exit(main())
