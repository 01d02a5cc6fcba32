"""Recipes: functions that return a whole pretraining run as frozen dataclasses."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import fields

from vlmill.schemas.errors import InputError
from vlmill.train.recipes.imagebert import (
    imagebert,
    imagebert_cc,
    imagebert_cc_sbu,
    imagebert_cc_sbu_global,
    imagebert_lait,
    imagebert_mixed,
    imagebert_small_recipe,
)
from vlmill.train.recipes.interbert import (
    interbert,
    interbert_chinese_recipe,
    interbert_random_negatives,
    interbert_released_recipe,
    interbert_single_masks,
    interbert_small_recipe,
)
from vlmill.train.recipes.plain import override
from vlmill.train.recipes.spec import (
    Feeding,
    Loading,
    Masking,
    Objectives,
    Optimizer,
    Recipe,
    Stage,
)
from vlmill.train.recipes.vilbert import (
    vilbert,
    vilbert_paper,
    vilbert_single_stream,
    vilbert_small_recipe,
)
from vlmill.train.recipes.vlbert import (
    vl_bert,
    vl_bert_captions,
    vl_bert_end_to_end,
    vl_bert_end_to_end_large,
    vl_bert_large,
    vl_bert_paper,
    vl_bert_small_recipe,
)
from vlmill.train.recipes.vlmo import (
    vlmo_base_paper_recipe,
    vlmo_base_recipe,
    vlmo_images_base,
    vlmo_images_large,
    vlmo_large_recipe,
    vlmo_small_recipe,
    vlmo_texts_base,
    vlmo_texts_large,
)

RECIPES: dict[str, Callable[[], Recipe]] = {
    "vilbert-small": vilbert_small_recipe,
    "vl-bert-small": vl_bert_small_recipe,
    "imagebert-small": imagebert_small_recipe,
    "interbert-small": interbert_small_recipe,
    "vlmo-small": vlmo_small_recipe,
    "vilbert": vilbert,
    "vilbert-paper": vilbert_paper,
    "vilbert-single-stream": vilbert_single_stream,
    "vl-bert": vl_bert,
    "vl-bert-captions": vl_bert_captions,
    "vl-bert-large": vl_bert_large,
    "vl-bert-end-to-end": vl_bert_end_to_end,
    "vl-bert-end-to-end-large": vl_bert_end_to_end_large,
    "vl-bert-paper": vl_bert_paper,
    "imagebert": imagebert,
    "imagebert-lait": imagebert_lait,
    "imagebert-cc": imagebert_cc,
    "imagebert-cc-sbu": imagebert_cc_sbu,
    "imagebert-cc-sbu-global": imagebert_cc_sbu_global,
    "imagebert-mixed": imagebert_mixed,
    "interbert": interbert,
    "interbert-random-negatives": interbert_random_negatives,
    "interbert-single-masks": interbert_single_masks,
    "interbert-released": interbert_released_recipe,
    "interbert-chinese": interbert_chinese_recipe,
    "vlmo-images-base": vlmo_images_base,
    "vlmo-images-large": vlmo_images_large,
    "vlmo-texts-base": vlmo_texts_base,
    "vlmo-texts-large": vlmo_texts_large,
    "vlmo-base": vlmo_base_recipe,
    "vlmo-base-paper": vlmo_base_paper_recipe,
    "vlmo-large": vlmo_large_recipe,
}


def recipe_named(name: str) -> Recipe:
    """The recipe of that name; InputError with the nearest name otherwise."""
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(RECIPES)}"
        raise InputError(f"RECIPE {name}: unknown recipe; {hint}")
    return RECIPES[name]()


def require_sources(recipe: Recipe, *, regions: str | None, images: str | None) -> None:
    """Raises InputError where the recipe reads regions or pictures and none are named."""
    feeds = [stage.feeding for stage in recipe.stages]
    if regions is None and any(feeding.reads_regions for feeding in feeds):
        raise InputError(f"--regions is missing: {recipe.name} learns from regions")
    if images is None and any(feeding.reads_pictures for feeding in feeds):
        raise InputError(f"--images is missing: {recipe.name} learns from pictures")


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
    "require_sources",
]
