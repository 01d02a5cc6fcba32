"""Declares ``extract-rois train`` and its arguments."""

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from vlmill.extract.config import DETECTOR, require_weights
from vlmill.extract.weights import resolve_weights
from vlmill.runtime.console.command import add_lock_seconds, path_or_url
from vlmill.runtime.console.cost import add_cost_arguments, print_estimate
from vlmill.runtime.console.recipes import add_recipes_arguments, run_recipes
from vlmill.runtime.files.mirror import (
    mirror_output,
    named_from,
    require_one_process,
    restore_paths,
)
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.net.flags import add_allow_address
from vlmill.runtime.readers.class_names import read_lines
from vlmill.runtime.settings.plain_fields import from_plain, override, read_yaml
from vlmill.runtime.weights.names import path_or_name
from vlmill.schemas.errors import InputError
from vlmill.train.detector.settings import DEFAULT_RECIPE, RECIPES, TrainingSettings, find_recipe

CLASSES, ATTRIBUTES = "classes.json", "attributes.json"  # next to a table that `manifest` wrote
EXAMPLES = """examples:
  python -m vlmill.pipelines.manifest vg-detector --input vg/ --output vg-boxes/
  extract-rois train --boxes vg-boxes/ --images vg-boxes/ --init R-101.pkl --output detector/
  extract-rois train --recipe small --boxes mine/ --images mine/ --output detector/ steps=1200
  extract-rois train --config mine.yaml --boxes mine/ --images mine/ --output s3://bucket/detector
  torchrun --nproc-per-node 8 -m vlmill.extract.cli train --boxes vg-boxes/ --images vg-boxes/ \\
      --init R-101.pkl --output detector/ precision=bf16
  extract-rois run images/ --weights detector/ --output regions/

The output is DIR/model.safetensors with DIR/detector.json (DIR can be used as --weights of
`run`), DIR/checkpoints/, DIR/log.jsonl, DIR/metrics.json and DIR/report.html for the split `val`,
and DIR/rejects-*.parquet. The same command on the same --output continues a killed run, with the
same losses bit for bit on the same machine. Boxes that extend beyond their image are cut. Boxes
without an area, of an unknown class or around a crowd are omitted and counted. An image without a
box is a negative. A loss that is not finite stops the run; the error names its step and images.
The rows of --boxes are kept in memory, the images are not. An --output in a store is updated at
each checkpoint, by one process."""


def add_train(train: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``extract-rois train``."""
    train.description = "Trains a Faster R-CNN with attributes on annotated boxes."
    train.add_argument(
        "assignments", nargs="*", metavar="field=value", help="changes to fields of the recipe"
    )
    train.add_argument(
        "--boxes", required=True, metavar="TABLE", help="table of boxes, the output of `manifest`"
    )
    train.add_argument("--images", required=True, metavar="TABLE", help="table of images")
    train.add_argument("--output", required=True, type=path_or_url, metavar="DIR")
    train.add_argument(
        "--recipe",
        choices=RECIPES,
        help="recipe: vg-r101-c4 (Visual Genome with MILVLG's settings), vg-r101-caffe "
        "(the original's settings), coco-r101-c4 (Detectron2's), tao-r101 (33 classes "
        f"of goods), small (minutes on a CPU) (default: {DEFAULT_RECIPE}); "
        "`extract-rois recipes` has details",
    )
    train.add_argument(
        "--config", metavar="FILE", help="recipe in a YAML file, instead of --recipe"
    )
    train.add_argument(
        "--init",
        type=path_or_name,
        metavar="FILE",
        help="weights to start from: an ImageNet ResNet with the names of torchvision, "
        "Detectron2 or MSRA, a published detector, the --output of another training, "
        "or a name accepted by --weights of `run`; output weights are copied for classes "
        "that are in both vocabularies",
    )
    add_allow_address(train)
    for flag, names in (("--classes", CLASSES), ("--attributes", ATTRIBUTES)):
        train.add_argument(
            flag,
            type=Path,
            metavar="FILE",
            help=f"file of names, one per line or a JSON list (default: {names} in the folder "
            "of --boxes, else numbers)",
        )
    train.add_argument(
        "--fresh", action="store_true", help="delete the output of an earlier run first"
    )
    add_lock_seconds(train)
    add_cost_arguments(train)


def command_train(arguments: argparse.Namespace) -> int:
    """Runs ``extract-rois train``."""
    settings = read_settings(arguments.recipe, arguments.config, arguments.assignments)
    require_one_process(arguments.output)
    if arguments.init is not None:
        arguments.init = resolve_weights(
            arguments.init, allow_addresses=arguments.allow_address, flag="--init"
        ).weights
        require_weights(arguments.init, "--init")
    classes = read_vocabulary(arguments.classes, arguments.boxes, CLASSES, "--classes")
    attributes = read_vocabulary(arguments.attributes, arguments.boxes, ATTRIBUTES, "--attributes")
    # torch takes seconds to load: not before the arguments are known to be valid.
    from vlmill.train.detector.examples import count_classes
    from vlmill.train.detector.job import TrainJob
    from vlmill.train.detector.run import estimate_run, train
    from vlmill.train.detector.settings import for_classes
    from vlmill.train.detector.start import Names
    from vlmill.train.run.step import NonFiniteLoss

    num_classes, num_attributes = count_classes(arguments.boxes)
    if not settings.detector.num_attributes:
        attributes, num_attributes = [], 0
    settings = for_classes(settings, len(classes) or num_classes, len(attributes) or num_attributes)
    job = TrainJob(
        boxes=str(named_from(arguments.output, arguments.boxes)),
        images=str(named_from(arguments.output, arguments.images)),
        output=arguments.output,
        settings=settings,
        names=Names(classes=classes, attributes=attributes),
        init=arguments.init,
    )
    if arguments.dry_run:
        return print_estimate(estimate_run(job), arguments.output)
    try:
        with mirror_output(arguments.output, last=DETECTOR) as output:
            job = dataclasses.replace(job, output=output)
            print(restore_paths(train(job, fresh=arguments.fresh, force=arguments.force)))
    except NonFiniteLoss as error:
        print(f"{arguments.output}: diverged at {error}")
        return 1
    return 0


def read_settings(
    recipe: str | None, config: str | None, assignments: Sequence[str]
) -> TrainingSettings:
    """Returns a recipe, or the recipe of a file, with other fields; ``recipe=NAME`` among them
    names another recipe.
    """
    recipe_names = [text.partition("=")[2] for text in assignments if text.startswith("recipe=")]
    fields = [text for text in assignments if not text.startswith("recipe=")]
    if config is None:
        return override(find_recipe([recipe or DEFAULT_RECIPE, *recipe_names][-1]), fields)
    if recipe is not None or recipe_names:
        raise InputError(f"--config {config}: give either --config or the name of a recipe")
    return override(from_plain(TrainingSettings, read_yaml(config)), fields)


def read_vocabulary(names_file: Path | None, boxes: str, name: str, flag: str) -> list[str]:
    """Reads a vocabulary: a line per class, synonyms separated by commas; empty without a file.

    Raises InputError for a file that cannot be read or has an empty line.
    """
    table = to_path(boxes)
    path = names_file or (table if table.is_dir() else table.parent) / name
    if names_file is None and not path.is_file():
        return []
    lines = read_lines(path, flag)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise InputError(f"{flag} {path}: line {number} is empty; expected one class per line")
    return [line.strip().lower() for line in lines]


RECIPES_HELP = """examples:
  extract-rois recipes
  extract-rois recipes show small > mine.yaml
  extract-rois train --config mine.yaml --boxes mine/ --images mine/ --output detector/"""
NOTES = (
    "detector.num_classes and detector.num_attributes are replaced by the sizes of the "
    "vocabularies, unless",
    "num_attributes is 0, which trains no attributes.",
)


def add_recipes(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``extract-rois recipes``."""
    parser.description = "Lists the recipes of `train`, or prints one with all of its fields."
    add_recipes_arguments(parser)


def command_recipes(arguments: argparse.Namespace) -> int:
    """Runs ``extract-rois recipes``."""
    return run_recipes(arguments, RECIPES, find_recipe, describe_recipes, NOTES)


def describe_recipes() -> Iterator[str]:
    """Yields the lines of all recipes."""
    for make in RECIPES.values():
        yield from describe(make())


def describe(settings: TrainingSettings) -> list[str]:
    """Returns the lines of a recipe in the list."""
    detector, solver = settings.detector, settings.solver
    sides = [min(settings.short_sides), max(settings.short_sides)]
    short = "-".join(map(str, dict.fromkeys(sides)))
    keeps = detector.frozen_stages or detector.batch_norm == "frozen"
    start = "--init (ImageNet or a detector)" if keeps else "nothing, or --init"
    return [
        f"{settings.name:15} {settings.about}",
        f"    {settings.steps:,} steps of {settings.batch_size} images of {short}/"
        f"{settings.long_side} pixels, rate {solver.lr:g}; ResNet-{detector.depth}, "
        f"{detector.num_classes} classes, {detector.num_attributes} attributes; from {start}",
    ]
