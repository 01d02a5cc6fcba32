"""Implements ``extract-rois recipes``: each recipe's training, number of images, and start."""

import argparse
from collections.abc import Iterator

from vlmill.runtime.console.recipes import add_recipes_arguments, run_recipes
from vlmill.train.detector.recipes import RECIPES, find_recipe
from vlmill.train.detector.settings import TrainingSettings

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
