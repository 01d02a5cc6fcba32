"""Defines the runs of learning.py: the small recipes, and each with one change."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from worlds import NOISY
from worlds.writing import SOURCE

from vlmill.train.recipes import Recipe, change_recipe, recipe_named

Tables = Literal["world", "shuffled", "staged", "captions", "many-boxes"]

# Each small recipe, and by how much it has to beat the matcher that sees colours alone.
MARGINS = {
    "vilbert-small": 0.1,
    "vl-bert-small": 0.1,
    "imagebert-small": 0.1,
    "interbert-small": 0.1,
    "vlmo-small": 0.02,
}
# R@1 that a recipe of an hour has to reach, both ways.
BARS = {
    "vilbert-hour": 0.92,
    "vl-bert-hour": 0.92,
    "imagebert-hour": 0.92,
    "interbert-hour": 0.92,
    "vlmo-hour": 0.85,
}
BASE = "base"


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A small recipe with ``changes`` to its fields, trained on one of the tables of pairs.

    ``noisy_first`` spends the first half of the steps on the noisy pairs, in a stage of their own.
    ``negatives``: the pairs' hard negatives are given. ``from_bert``: it starts from the small
    BERT, which has learned from the captions first.
    """

    recipe: str
    name: str = BASE
    changes: tuple[str, ...] = ()
    tables: Tables = "world"
    noisy_first: bool = False
    negatives: bool = False
    from_bert: bool = False


def recipe_of(arm: Arm, seed: int, steps: int | None = None) -> Recipe:
    """The arm's recipe; ``steps`` in place of its own. Raises InputError for unknown fields."""
    named = recipe_named(arm.recipe)
    recipe = change_recipe(named, [*arm.changes, f"seed={seed}", "keep_checkpoints=1"])
    (stage,) = recipe.stages
    count = stage.steps if steps is None else steps
    assert count is not None  # small recipes say it
    if not arm.noisy_first:
        return dataclasses.replace(recipe, stages=(dataclasses.replace(stage, steps=count),))
    half = count // 2
    noisy = dataclasses.replace(stage, name="noisy", sources=(NOISY,), steps=half)
    clean = dataclasses.replace(stage, sources=(SOURCE,), steps=count - half)
    return dataclasses.replace(recipe, stages=(noisy, clean))


GROUPS = ("masking.region_rule=groups", "masking.regions=0.1", "masking.region_to_zero=1.0")
SINGLE_REGIONS = (
    "masking.region_rule=regions",
    "masking.regions=0.15",
    "masking.region_to_zero=0.9",
)
SINGLE_WORDS = ("masking.word_rule=tokens", "masking.words=0.15")
# Half of a batch's captions have another one of their image in it, as where Conceptual Captions,
# SBU, COCO and Visual Genome come in blocks of 64 in windows of 16,384.
BLOCKS = ("loading.window=640", "loading.block=64")
HALF = ("hard_negative_share=0.5",)


def ablations(recipe: str, *masks: Arm) -> tuple[Arm, ...]:
    """What is asked of ImageBERT and InterBERT alike, and their own ``masks``.

    The first stage is on twice as many pairs, of which three in ten have another image's
    caption. All arms take as many steps in all: the stage is measured against as many on clean
    pairs alone, and on all pairs at once.
    """
    return (
        Arm(recipe=recipe),
        *masks,
        Arm(recipe=recipe, name="hard-negatives", negatives=True),
        Arm(recipe=recipe, name="hard-negatives-half", negatives=True, changes=HALF),
        Arm(recipe=recipe, name="stage-1", tables="staged", noisy_first=True),
        Arm(recipe=recipe, name="mixed", tables="staged"),
        Arm(recipe=recipe, name="shuffled", tables="shuffled"),
        from_bert(recipe),
    )


def from_bert(recipe: str) -> Arm:
    """The recipe on top of a BERT that has learned from the same captions."""
    return Arm(recipe=recipe, name="from-bert", from_bert=True)


def ablation_arms() -> tuple[Arm, ...]:
    """The ablations, arm by arm; the recipes that have none come as they are."""
    image, inter, vlmo = "imagebert-small", "interbert-small", "vlmo-small"
    no_joint = ("model.first_vl_layer=4", "model.num_contrast_pairs=1")
    return (
        Arm(recipe="vilbert-small"),
        from_bert("vilbert-small"),
        Arm(recipe="vl-bert-small"),
        from_bert("vl-bert-small"),
        *ablations(image, Arm(recipe=image, name="masked-groups", changes=GROUPS)),
        *ablations(
            inter,
            Arm(recipe=inter, name="single-regions", changes=SINGLE_REGIONS),
            Arm(recipe=inter, name="single-masks", changes=(*SINGLE_REGIONS, *SINGLE_WORDS)),
        ),
        Arm(recipe=vlmo),
        Arm(recipe=vlmo, name="without-contrast", changes=("objectives.itc=0",)),
        Arm(recipe=vlmo, name="without-matching", changes=("objectives.itm=0",)),
        Arm(recipe=vlmo, name="without-words", changes=("objectives.mlm=0",)),
        Arm(recipe=vlmo, name="without-joint-expert", changes=no_joint),
        Arm(recipe=vlmo, name="captions", tables="captions"),
        Arm(recipe=vlmo, name="captions-blocks", tables="captions", changes=BLOCKS),
        Arm(
            recipe=vlmo,
            name="captions-false-negatives",
            tables="captions",
            changes=(*BLOCKS, "same_picture_negatives=true"),
        ),
    )


def base_arms(variants: tuple[str, ...]) -> tuple[Arm, ...]:
    """The small recipes as they are."""
    return tuple(Arm(recipe=name) for name in variants)
