"""Recipes are functions that return a whole pretraining run as frozen dataclasses.

Reading order: a paper (the inputs of its runs, and its recipes): ``bert``, ``vilbert``, ``vlbert``,
``imagebert``, ``interbert``, ``vlmo``. ``rows`` defines the row of a paper and its recipes for
trials, ``training`` the row of a variant; ``without_effect`` names changes that change nothing;
``describe`` estimates the cost of a recipe. [code] marks values that only the
released code has, [choice] values that neither paper nor code has.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from vlmill.runtime.settings.plain_fields import parse_assignment, replace_fields
from vlmill.schemas.errors import InputError
from vlmill.train.recipes import bert, imagebert, interbert, vilbert, vlbert, vlmo
from vlmill.train.recipes.rows import PaperTraining
from vlmill.train.settings.parts import (
    Feeding,
    Loading,
    Masking,
    MixedSource,
    Objectives,
    Optimizer,
)
from vlmill.train.settings.spec import Recipe, RunSettings, Stage, TrainingStage

if TYPE_CHECKING:
    from vlmill.train.recipes.training import VariantTraining

R = TypeVar("R", bound=RunSettings)

# A new model's recipes are a file here and a name in this list.
PAPERS: tuple[PaperTraining, ...] = (
    *(vilbert.ROW, vlbert.ROW, imagebert.ROW, interbert.ROW, vlmo.ROW, bert.ROW),
)


def _collect_recipes() -> dict[str, Callable[[], Recipe]]:
    """Returns all recipes by name: those for trials first, of minutes and then of an hour."""
    recipes = {name: make for paper in PAPERS for name, make in paper.recipes.items()}
    order = sorted(recipes, key=lambda n: (not n.endswith("-small"), not n.endswith("-hour")))
    return {name: recipes[name] for name in order}


RECIPES: dict[str, Callable[[], Recipe]] = _collect_recipes()


def get_training(variant: str | None) -> "VariantTraining":
    """Returns how a variant is trained; without its own row, like a plain model on regions.

    Imports torch.
    """
    from vlmill.train.recipes.training import VariantTraining

    rows: dict[str, VariantTraining] = {}
    for paper in PAPERS:
        rows |= paper.variant_trainings()
    return rows.get(variant or "", VariantTraining())


def recipe_named(name: str) -> Recipe:
    """Returns the recipe of that name; raises InputError with the nearest name otherwise."""
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {near[0]}?" if near else "`train-vl recipes` lists them"
        raise InputError(f"RECIPE {name}: unknown recipe; {hint}")
    return RECIPES[name]()


def require_sources(
    recipe: Recipe, *, pairs: str | None, regions: str | None, images: str | None
) -> None:
    """Raises InputError where the recipe reads texts, regions or images and none are named."""
    feeds = [stage.feeding for stage in recipe.stages]
    if pairs is None and any(feeding.kind != "pictures" for feeding in feeds):
        raise InputError(f"--pairs is missing: {recipe.name} learns from texts")
    if regions is None and any(feeding.reads_regions for feeding in feeds):
        raise InputError(f"--regions is missing: {recipe.name} learns from regions")
    if images is None and any(feeding.reads_images for feeding in feeds):
        raise InputError(f"--images is missing: {recipe.name} learns from images")


def change_recipe(recipe: R, assignments: Sequence[str]) -> R:
    """Applies ``field=value`` assignments.

    With one stage its fields can be written without ``stages.0.``, so that ``steps=100`` works on
    every recipe of one stage. ``epochs=2`` replaces the recipe's own ``steps``, and ``steps=100``
    its ``epochs``. Raises InputError for a stage that is given both.
    """
    changes = [parse_assignment(_full_path(recipe, assignment)) for assignment in assignments]
    return replace_fields(recipe, [*changes, *_replaced_lengths(dict(changes)).items()])


def _replaced_lengths(changes: Mapping[str, Any]) -> dict[str, None]:
    """Returns null for the length of each stage, in steps or in epochs, that the other replaces."""
    counterparts = {"steps": "epochs", "epochs": "steps"}
    lengths: dict[str, None] = {}
    for path, value in changes.items():
        stage, _, field = path.rpartition(".")
        if stage.startswith("stages.") and value is not None and field in counterparts:
            other = f"{stage}.{counterparts[field]}"
            if other not in changes:
                lengths[other] = None
    return lengths


def _full_path(recipe: RunSettings, assignment: str) -> str:
    stage_fields = {field.name for field in fields(type(recipe.stages[0]))}
    stage_only_fields = stage_fields - {field.name for field in fields(type(recipe))}
    if assignment.partition("=")[0].split(".")[0] not in stage_only_fields:
        return assignment
    if len(recipe.stages) > 1:
        raise InputError(
            f"{assignment}: recipe {recipe.name} has {len(recipe.stages)} stages; name "
            f"one of them, as in stages.0.{assignment}"
        )
    return f"stages.0.{assignment}"


__all__ = [
    "RECIPES",
    "Feeding",
    "Loading",
    "Masking",
    "MixedSource",
    "Objectives",
    "Optimizer",
    "Recipe",
    "RunSettings",
    "Stage",
    "TrainingStage",
    "change_recipe",
    "get_training",
    "recipe_named",
    "require_sources",
]
