"""Recipes: functions that return a whole pretraining run as frozen dataclasses."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import fields

from vlmill.schemas.commands import InputError
from vlmill.train.config import override
from vlmill.train.recipes.base import (
    Feeding,
    Loading,
    Masking,
    Objectives,
    Optimizer,
    Recipe,
    Stage,
)
from vlmill.train.recipes.imagebert import imagebert, imagebert_small_recipe

RECIPES: dict[str, Callable[[], Recipe]] = {
    "imagebert": imagebert,
    "imagebert-small": imagebert_small_recipe,
}


def recipe_named(name: str) -> Recipe:
    """The recipe of that name; InputError with the nearest name otherwise."""
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(RECIPES)}"
        raise InputError(f"RECIPE {name}: unknown recipe; {hint}")
    return RECIPES[name]()


def change_recipe(recipe: Recipe, assignments: Sequence[str]) -> Recipe:
    """Apply ``field=value`` assignments.

    With one stage its fields can be written without ``stages.0.``, so that ``steps=100`` works on
    every recipe of one stage.
    """
    return override(recipe, [_full_path(recipe, assignment) for assignment in assignments])


def _full_path(recipe: Recipe, assignment: str) -> str:
    of_stages = {f.name for f in fields(Stage)} - {f.name for f in fields(Recipe)}
    if assignment.partition("=")[0].split(".")[0] not in of_stages:
        return assignment
    if len(recipe.stages) > 1:
        raise InputError(
            f"{assignment}: recipe {recipe.name} has {len(recipe.stages)} stages; say which, "
            f"as in stages.0.{assignment}"
        )
    return f"stages.0.{assignment}"


__all__ = [
    "RECIPES",
    "Feeding",
    "Loading",
    "Masking",
    "Objectives",
    "Optimizer",
    "Recipe",
    "Stage",
    "change_recipe",
    "recipe_named",
]
