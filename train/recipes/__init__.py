"""Recipes are functions that return a whole pretraining run as frozen dataclasses.

Reading order: ``spec`` and ``parts`` (what a recipe is made of), ``feeding`` (what published runs
feed), then a paper: ``bert``, ``vilbert``, ``vlbert``, ``imagebert``, ``interbert``, ``vlmo`` and
``vlmo_ablations``; ``small`` (for trials). ``variants`` says what each model does in its own way,
``tasks`` and ``fine_tuning`` what recipes of tasks share; ``without_effect`` names changes
that change nothing; ``describe``, ``size`` and ``trunk_size`` estimate what a recipe costs.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, TypeVar

from vlmill.runtime.settings.plain_fields import parse_assignment, replace_fields
from vlmill.schemas.errors import InputError
from vlmill.train.recipes.bert import bert_base_recipe, bert_large_recipe, bert_small_recipe
from vlmill.train.recipes.imagebert import (
    imagebert,
    imagebert_cc,
    imagebert_cc_sbu,
    imagebert_cc_sbu_global,
    imagebert_hour_recipe,
    imagebert_lait,
    imagebert_mixed,
    imagebert_small_recipe,
)
from vlmill.train.recipes.interbert import (
    interbert,
    interbert_chinese_recipe,
    interbert_hour_recipe,
    interbert_random_negatives,
    interbert_released_recipe,
    interbert_single_masks,
    interbert_single_stream_recipe,
    interbert_small_recipe,
    interbert_without_bert,
)
from vlmill.train.recipes.parts import Feeding, Loading, Masking, MixedSource, Objectives, Optimizer
from vlmill.train.recipes.spec import Recipe, RunSettings, Stage, TrainingStage
from vlmill.train.recipes.vilbert import (
    vilbert,
    vilbert_hour_recipe,
    vilbert_large_layers,
    vilbert_layers,
    vilbert_paper,
    vilbert_share,
    vilbert_single_stream,
    vilbert_small_recipe,
)
from vlmill.train.recipes.vlbert import (
    vl_bert,
    vl_bert_captions,
    vl_bert_end_to_end,
    vl_bert_end_to_end_large,
    vl_bert_hour_recipe,
    vl_bert_large,
    vl_bert_paper,
    vl_bert_paper_end_to_end,
    vl_bert_small_recipe,
)
from vlmill.train.recipes.vlmo import (
    vlmo_hour_recipe,
    vlmo_images,
    vlmo_pairs,
    vlmo_small_recipe,
    vlmo_texts,
)
from vlmill.train.recipes.vlmo_ablations import (
    vlmo_base_without_texts,
    vlmo_vit,
    vlmo_vit_itc,
    vlmo_vit_itc_itm,
    vlmo_vit_itc_mlm,
    vlmo_vit_standard,
    vlmo_vit_without_vl_experts,
)

R = TypeVar("R", bound=RunSettings)
RECIPES: dict[str, Callable[[], Recipe]] = {
    "vilbert-small": vilbert_small_recipe,
    "vl-bert-small": vl_bert_small_recipe,
    "imagebert-small": imagebert_small_recipe,
    "interbert-small": interbert_small_recipe,
    "vlmo-small": vlmo_small_recipe,
    "bert-small": bert_small_recipe,
    "vilbert-hour": vilbert_hour_recipe,
    "vl-bert-hour": vl_bert_hour_recipe,
    "imagebert-hour": imagebert_hour_recipe,
    "interbert-hour": interbert_hour_recipe,
    "vlmo-hour": vlmo_hour_recipe,
    "bert-base": bert_base_recipe,
    "bert-large": bert_large_recipe,
    "vilbert": vilbert,
    "vilbert-paper": vilbert_paper,
    "vilbert-single-stream": vilbert_single_stream,
    "vilbert-2-layers": partial(vilbert_layers, 2),
    "vilbert-4-layers": partial(vilbert_layers, 4),
    "vilbert-8-layers": partial(vilbert_layers, 8),
    "vilbert-large": partial(vilbert_large_layers, 6),
    "vilbert-large-2-layers": partial(vilbert_large_layers, 2),
    "vilbert-large-4-layers": partial(vilbert_large_layers, 4),
    "vilbert-25-percent": partial(vilbert_share, 25),
    "vilbert-50-percent": partial(vilbert_share, 50),
    "vl-bert": vl_bert,
    "vl-bert-captions": vl_bert_captions,
    "vl-bert-large": vl_bert_large,
    "vl-bert-end-to-end": vl_bert_end_to_end,
    "vl-bert-end-to-end-large": vl_bert_end_to_end_large,
    "vl-bert-paper": vl_bert_paper,
    "vl-bert-paper-end-to-end": vl_bert_paper_end_to_end,
    "imagebert": imagebert,
    "imagebert-lait": imagebert_lait,
    "imagebert-cc": imagebert_cc,
    "imagebert-cc-sbu": imagebert_cc_sbu,
    "imagebert-cc-sbu-global": imagebert_cc_sbu_global,
    "imagebert-mixed": imagebert_mixed,
    "interbert": interbert,
    "interbert-random-negatives": interbert_random_negatives,
    "interbert-single-masks": interbert_single_masks,
    "interbert-without-bert": interbert_without_bert,
    "interbert-single-stream": interbert_single_stream_recipe,
    "interbert-released": interbert_released_recipe,
    "interbert-chinese": interbert_chinese_recipe,
    "vlmo-images-base": partial(vlmo_images, "base"),
    "vlmo-images-base-plus": partial(vlmo_images, "base-plus"),
    "vlmo-images-large": partial(vlmo_images, "large"),
    "vlmo-images-base-paper": partial(vlmo_images, "base-paper"),
    "vlmo-images-large-paper": partial(vlmo_images, "large-paper"),
    "vlmo-texts-base": partial(vlmo_texts, "base"),
    "vlmo-texts-base-plus": partial(vlmo_texts, "base-plus"),
    "vlmo-texts-large": partial(vlmo_texts, "large"),
    "vlmo-texts-base-paper": partial(vlmo_texts, "base-paper"),
    "vlmo-texts-large-paper": partial(vlmo_texts, "large-paper"),
    "vlmo-base": partial(vlmo_pairs, "base"),
    "vlmo-base-plus": partial(vlmo_pairs, "base-plus"),
    "vlmo-large": partial(vlmo_pairs, "large"),
    "vlmo-base-paper": partial(vlmo_pairs, "base-paper"),
    "vlmo-large-paper": partial(vlmo_pairs, "large-paper"),
    "vlmo-base-without-texts": vlmo_base_without_texts,
    "vlmo-vit": vlmo_vit,
    "vlmo-vit-itc": vlmo_vit_itc,
    "vlmo-vit-itc-mlm": vlmo_vit_itc_mlm,
    "vlmo-vit-itc-itm": vlmo_vit_itc_itm,
    "vlmo-vit-standard": vlmo_vit_standard,
    "vlmo-vit-without-vl-experts": vlmo_vit_without_vl_experts,
}


def recipe_named(name: str) -> Recipe:
    """The recipe of that name; InputError with the nearest name otherwise."""
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(RECIPES)}"
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
    """Apply ``field=value`` assignments.

    With one stage its fields can be written without ``stages.0.``, so that ``steps=100`` works on
    every recipe of one stage. ``epochs=2`` replaces the recipe's own ``steps``, and ``steps=100``
    its ``epochs``. Raises InputError for a stage that is given both.
    """
    changes = [parse_assignment(_full_path(recipe, assignment)) for assignment in assignments]
    return replace_fields(recipe, [*changes, *_replaced_lengths(dict(changes)).items()])


def _replaced_lengths(changes: Mapping[str, Any]) -> dict[str, None]:
    """Returns null for the length of each stage, in steps or in epochs, that another replaces."""
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
            f"{assignment}: recipe {recipe.name} has {len(recipe.stages)} stages; say which, "
            f"as in stages.0.{assignment}"
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
    "recipe_named",
    "require_sources",
]
