"""``extract-rois``: region features of pictures."""

import argparse
import dataclasses
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vlmill.extract.cli_formats import (
    EXPORT_EXAMPLES,
    IMPORT_EXAMPLES,
    add_export,
    add_import,
    command_export,
    command_import,
)
from vlmill.extract.config import (
    CLASS_PROBS,
    COMPRESSIONS,
    DTYPES,
    IDS,
    PRECISIONS,
    SELECTIONS,
    ExtractConfig,
    InputLimits,
    Selection,
    Storage,
)
from vlmill.models.detector_config import ARCHITECTURES, DEFAULT_ARCH
from vlmill.schemas.commands import InputError, Parser, run_command

if TYPE_CHECKING:
    from vlmill.extract.weights import Detector

RUN_EXAMPLES = """examples:
  extract-rois run pictures/ --output regions/ --weights detector.pth --selection vilbert
  extract-rois run web/ --output regions/ --arch tiny --short-side 240 --long-side 400
  extract-rois run 'shards/*.tar' --output regions/ --weights detector.pth --workers 8 \\
      --device cuda:0,cuda:1
  extract-rois run vcr1images/ --boxes vcr1images/ --output regions/ --weights detector.pth

The second takes a table of images (the folder that the web_pairs job wrote), without weights.
Pictures are turned as EXIF says; grey, palette, CMYK and 16-bit ones are converted, alpha is
dropped, of an animation the first frame counts; what is empty, cut, damaged, too large, too thin or
of another format is rejected with its reason (docs/regions.md).
The output is DIR/regions-*.parquet, DIR/rejects-*.parquet and DIR/_manifest.json. The same command
on the same --output continues what a killed run left. Every input is counted: it has a row of
regions or of rejects. Memory does not grow with the pictures: about 1.5 GB with r101 at 600/1000,
0.5 GB with tiny, and 400 bytes for each picture of the plan."""
BACKENDS = ("vlmill", "detectron2")
VERIFY_EXAMPLES = """example:
  extract-rois verify regions/"""
SHOW_EXAMPLES = """example:
  extract-rois show regions/ --images pictures/ --classes objects_vocab.txt --output regions.html"""


def count(text: str) -> int:
    """An argument that is a whole number from 0."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} is below 0")
    return number


def parser() -> Parser:
    """The whole command line."""
    top = Parser(
        prog="extract-rois", description="Region features of pictures: make, check, look at."
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_run(commands.add_parser("run", help="extract regions", epilog=RUN_EXAMPLES))
    verify = commands.add_parser(
        "verify", help="check every row and checksum", epilog=VERIFY_EXAMPLES
    )
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
        "--output", required=True, type=Path, metavar="DIR", help="where the tables go"
    )
    run.add_argument("--fresh", action="store_true", help="delete an earlier run's output first")
    which = run.add_argument_group("which pictures")
    which.add_argument(
        "--ids",
        choices=IDS,
        default="auto",
        help="the image_id of a file or tar member: content (SHA-256) or name (without ending); "
        "auto: content for files, name for members",
    )
    which.add_argument(
        "--pairs", metavar="PAIRS", help="only the pictures that this table of pairs points to"
    )
    which.add_argument(
        "--boxes",
        type=Path,
        metavar="FILE",
        help="given boxes in place of proposals, all of them, in their order: JSON lines "
        '{"image_id": ID, "boxes": [[x1, y1, x2, y2], ...]}, ID the image_id or the file\'s name '
        "without ending; or a folder of VCR's metadata files, named like the pictures",
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


def add_engine(run: argparse.ArgumentParser) -> None:
    """What decides the rows, for every command that extracts."""
    add_detector(run.add_argument_group("detector"))
    add_selection(run.add_argument_group("which regions"))
    add_sizes(run.add_argument_group("pictures"), InputLimits())
    add_storage(run.add_argument_group("storage"), Storage())


def add_detector(net: argparse._ArgumentGroup) -> None:
    """Which network, with which weights, computed where and how."""
    net.add_argument(
        "--arch",
        choices=ARCHITECTURES,
        help="sizes and conventions (default: what --weights says, else r101)",
    )
    net.add_argument(
        "--weights",
        metavar="FILE",
        help="published detector: .pth, .pkl, .bin or .safetensors in the layout of detectron2, "
        "airsplay, milvlg or hf-frcnn; without it the weights are RANDOM",
    )
    net.add_argument(
        "--backend",
        choices=BACKENDS,
        default="vlmill",
        help="detectron2: Detectron2 itself computes, where it is installed (docs/install.md); it "
        "needs --d2-config and --weights (default: %(default)s)",
    )
    net.add_argument(
        "--d2-config", type=Path, metavar="FILE", help="a C4 model's .yaml file, for detectron2"
    )
    net.add_argument(
        "--seed", type=count, default=0, help="of random weights (default: %(default)s)"
    )
    net.add_argument(
        "--device",
        default="cpu",
        help="cpu, cuda, cuda:1, ...; of run also several: cuda:0,cuda:1 (default: %(default)s)",
    )
    net.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="exact",
        help="exact: float32, the published numbers; fast: bfloat16 and TensorFloat-32, other "
        "numbers and some other regions (docs/regions.md), meant for CUDA: slow on CPUs without "
        "bfloat16 units (default: %(default)s)",
    )


def add_selection(choice: argparse._ArgumentGroup) -> None:
    """Which proposals become regions."""
    rules = "; ".join(
        f"{name}: {s.min_boxes}-{s.max_boxes} from {s.threshold:g}"
        for name, s in SELECTIONS.items()
    )
    choice.add_argument(
        "--selection",
        choices=SELECTIONS,
        default="imagebert",
        help=f"the papers' rules, boxes and threshold: {rules} (default: %(default)s)",
    )
    choice.add_argument(
        "--threshold", type=float, metavar="P", help="replaces the rule's threshold"
    )
    choice.add_argument("--min-boxes", type=count, metavar="N", help="replaces the rule's minimum")
    choice.add_argument("--max-boxes", type=count, metavar="N", help="replaces the rule's maximum")


def add_sizes(size: argparse._ArgumentGroup, limits: InputLimits) -> None:
    """How pictures are resized, and which are refused."""
    size.add_argument(
        "--short-side",
        type=count,
        default=limits.short_side,
        metavar="PX",
        help="default: the detector's own, 600 or 800",
    )
    size.add_argument(
        "--long-side",
        type=count,
        default=limits.long_side,
        metavar="PX",
        help="at most; default: the detector's own, 1000 or 1333",
    )
    size.add_argument(
        "--max-pixels",
        type=count,
        default=limits.max_pixels,
        metavar="N",
        help="larger pictures are rejected (default: %(default)s)",
    )


def add_storage(out: argparse._ArgumentGroup, storage: Storage) -> None:
    """What of a region is written, and how."""
    out.add_argument(
        "--class-probs",
        default=storage.class_probs,
        metavar="|".join(CLASS_PROBS),
        help="argmax: id and score; topk:K: the K highest probabilities too, with their numbers; "
        "full: all of them too (default: %(default)s)",
    )
    out.add_argument(
        "--dtype", choices=DTYPES, default=storage.dtype, help="of features (default: %(default)s)"
    )
    out.add_argument(
        "--compression",
        choices=COMPRESSIONS,
        default=storage.compression,
        help="default: %(default)s",
    )
    out.add_argument(
        "--pictures-per-shard",
        type=count,
        default=storage.pictures_per_shard,
        metavar="N",
        help="what a kill costs at most (default: %(default)s)",
    )
    out.add_argument(
        "--global-feature",
        action="store_true",
        help="also the feature of the region that is the whole picture",
    )


def add_show(show: argparse.ArgumentParser) -> None:
    """Arguments of ``extract-rois show``."""
    show.description = "Draws the highest-scoring regions on their pictures."
    show.add_argument("regions", metavar="REGIONS", help="a table of regions: folder, file or glob")
    show.add_argument(
        "--images", nargs="+", required=True, metavar="INPUT", help="as the INPUT of run"
    )
    show.add_argument(
        "--output",
        required=True,
        type=Path,
        metavar="PATH",
        help="one .html file with the pictures inside, or a folder of PNGs",
    )
    show.add_argument("--classes", metavar="FILE", help="names of the classes, one a line")
    show.add_argument("--attributes", metavar="FILE", help="names of the attributes, one a line")
    show.add_argument(
        "--boxes", type=count, default=12, metavar="N", help="per picture (default: %(default)s)"
    )
    show.add_argument(
        "--pictures", type=count, default=50, metavar="N", help="at most (default: %(default)s)"
    )


def config_of(arguments: argparse.Namespace) -> ExtractConfig:
    """The settings that the flags of ``run`` say."""
    changes = {
        name: getattr(arguments, name)
        for name in ("threshold", "min_boxes", "max_boxes")
        if getattr(arguments, name) is not None
    }
    if "max_boxes" in changes:  # a lower maximum alone lowers the rule's minimum with it
        rule = SELECTIONS[arguments.selection]
        changes.setdefault("min_boxes", min(rule.min_boxes, changes["max_boxes"]))
    try:
        selection: Selection = dataclasses.replace(SELECTIONS[arguments.selection], **changes)
        limits = InputLimits(
            short_side=arguments.short_side,
            long_side=arguments.long_side,
            max_pixels=arguments.max_pixels,
        )
        storage = Storage(
            class_probs=arguments.class_probs,
            dtype=arguments.dtype,
            compression=arguments.compression,
            pictures_per_shard=arguments.pictures_per_shard,
            global_feature=arguments.global_feature,
        )
    except ValueError as error:
        raise InputError(str(error)) from None
    return ExtractConfig(
        selection=selection, limits=limits, storage=storage, precision=arguments.precision
    )


def warn_of_random_weights(arguments: argparse.Namespace) -> None:
    """Says loudly what a run without ``--weights`` is worth."""
    if arguments.weights is None and arguments.backend == "vlmill":
        print(
            f"WARNING: no --weights, so the detector ({arguments.arch or DEFAULT_ARCH}) has RANDOM "
            f"weights from --seed {arguments.seed}.\n"
            "WARNING: its regions, classes and attributes mean nothing; the output says so.",
            file=sys.stderr,
        )


def detectron2_of(arguments: argparse.Namespace) -> "Detector":
    """The same for ``--backend detectron2``, which takes everything from two files."""
    from vlmill.extract.backend_detectron2 import open_detectron2

    if arguments.d2_config is None or arguments.weights is None:
        raise InputError("--backend detectron2: give --d2-config FILE and --weights FILE")
    if arguments.arch is not None:
        raise InputError(f"--arch {arguments.arch}: --backend detectron2 has it from --d2-config")
    if arguments.precision != "exact":
        raise InputError("--precision fast: --backend detectron2 computes exact only; leave it out")
    return open_detectron2(arguments.d2_config, Path(arguments.weights), device=arguments.device)


def detector_of(arguments: argparse.Namespace) -> "Detector":
    """The detector that the flags say. Raises InputError."""
    if arguments.backend == "detectron2":
        return detectron2_of(arguments)
    if arguments.d2_config is not None:
        raise InputError(f"--d2-config {arguments.d2_config}: only for --backend detectron2")

    from vlmill.extract.weights import open_detector

    return open_detector(
        ARCHITECTURES.get(arguments.arch),
        arguments.weights,
        seed=arguments.seed,
        device=arguments.device,
    )


def detector_on(arguments: argparse.Namespace, device: str) -> "Detector":
    """The same on one of several devices."""
    return detector_of(argparse.Namespace(**{**vars(arguments), "device": device}))


def command_run(arguments: argparse.Namespace) -> int:
    """``extract-rois run``."""
    # torch takes seconds to load: not before the arguments are known to be good.
    from vlmill.extract.engine import Crew
    from vlmill.extract.given import read_boxes
    from vlmill.extract.inputs import only_of_pairs, plan_pictures, with_missing_boxes
    from vlmill.extract.run import Job, run

    config = config_of(arguments)
    given = None if arguments.boxes is None else read_boxes(arguments.boxes)
    plan = plan_pictures(arguments.inputs, arguments.ids)
    if arguments.pairs is not None:
        plan = only_of_pairs(plan, arguments.pairs)
    if given is not None:
        plan = with_missing_boxes(plan, given, str(arguments.boxes))
    warn_of_random_weights(arguments)
    names = [name.strip() for name in arguments.device.split(",")]
    detector = detector_on(arguments, names[0])
    job = Job(plan=plan, output=arguments.output, detector=detector, config=config, given=given)
    opener = functools.partial(detector_on, arguments)
    crew = Crew(workers=arguments.workers, devices=names, open_detector=opener)
    regions, rejects = run(job, fresh=arguments.fresh, crew=crew)
    note = f" ({detector.weights})" if arguments.weights is None else ""
    counts = f"{len(plan)} pictures, {regions} rows of regions, {rejects} rejects"
    print(f"{arguments.output}: {counts}{note}")
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
    from vlmill.extract.show import Vocabulary, read_names, show

    names = Vocabulary(
        classes=read_names(arguments.classes, "--classes"),
        attributes=read_names(arguments.attributes, "--attributes"),
    )
    drawn = show(
        arguments.regions,
        arguments.images,
        arguments.output,
        names=names,
        max_boxes=arguments.boxes,
        max_pictures=arguments.pictures,
    )
    print(f"{arguments.output}: {drawn} pictures drawn")
    return 0


def command(argv: Sequence[str]) -> int:
    """Parses and runs; raises InputError for a user's mistake."""
    arguments = parser().parse_args(argv)
    commands = {
        "run": command_run,
        "verify": command_verify,
        "import": command_import,
        "export": command_export,
        "show": command_show,
    }
    return commands[arguments.command](arguments)


def main() -> int:
    """The entry point."""
    return run_command(command)


if __name__ == "__main__":
    sys.exit(main())
