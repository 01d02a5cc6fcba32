"""A miniature of retrieval: two captions an image, regions, images and which lie near."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from tests.factories import Tables, caption, write_images
from tests.train.tasks.finetuning.starts import save_random

from vlmill.models.registry import get_variant
from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.tables import NEIGHBOURS
from vlmill.train.loading.vocabulary import train_vocabulary
from vlmill.train.recipes import change_recipe
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.finetuning.job import TaskInputs
from vlmill.train.tasks.registry import task_recipe_named

IMAGES = 12  # two of them for validation
TINY = {
    "retrieval-vilbert-small": (
        *("model.trunk.width=16", "model.trunk.num_heads=2", "model.trunk.intermediate_width=32"),
        *("model.trunk.visual_width=16", "model.trunk.visual_num_heads=2"),
        *("model.trunk.visual_intermediate_width=16", "model.trunk.co_width=16"),
        *("model.trunk.co_num_heads=2", "model.trunk.dropout=0.1"),
    ),
    "retrieval-interbert-small": (
        *("model.trunk.width=16", "model.trunk.num_heads=2", "model.trunk.intermediate_width=32"),
        *("model.trunk.visual_num_heads=2", "model.trunk.visual_intermediate_width=32"),
        *("model.trunk.pooled_width=16", "model.trunk.num_interaction_layers=1"),
    ),
    "retrieval-imagebert-small": (
        *("model.trunk.width=16", "model.trunk.num_heads=2", "model.trunk.intermediate_width=32"),
        "model.trunk.num_layers=2",
    ),
    "retrieval-vlmo-small": (
        *("model.width=16", "model.num_heads=2", "model.intermediate_width=32"),
        *("model.image_size=32", "feeding.image_size=32"),
    ),
}
USUAL = ("batch_size=4", "log_every=1", "save_every=2", "keep_checkpoints=9", "trackers=[]")


def name_of(number: int) -> str:
    return f"image-{number}"


def world(folder: Path, count: int = IMAGES) -> TaskInputs:
    """Captions with regions, images, and the two images that lie near each."""
    tables, numbers = Tables(folder), range(count)
    rows = [(name_of(n), f"{caption(n + 40 * of)} again") for n in numbers for of in range(2)]
    splits = ["val" if n % 6 == 5 else "train" for n in numbers for _ in range(2)]
    tables.write_pairs(rows, {"split": splits})
    tables.write_regions([name_of(n) for n in numbers])
    near = {n: [(n + 1) % count, (n + 2) % count] for n in numbers}
    return TaskInputs(
        examples=tables.pairs,
        regions=tables.regions,
        images=write_images(folder / "images", count),
        negatives=write_neighbours(folder, near),
    )


def write_neighbours(folder: Path, near: dict[int, list[int]]) -> str:
    """A table of nearest images below ``folder``, by their numbers."""
    rows: list[dict[str, Any]] = [
        {"image_id": name_of(n), "neighbour_ids": [name_of(o) for o in others], "distances": None}
        for n, others in near.items()
    ]
    write_shard(folder / "neighbours", NEIGHBOURS, rows)
    return str(folder / "neighbours")


def retrieval_start(folder: Path, name: str, variant: str | None = None) -> str:
    """A checkpoint of what a recipe starts from, with random weights; images are smaller."""
    recipe = tiny(name)
    variant = variant or recipe.starts_from[0]
    config = get_variant(recipe.variant).get_body(recipe.model)
    words = train_vocabulary([caption(n) for n in range(80)], 200)
    sizes: dict[str, Any] = {"vocab_size": words.get_vocab_size()}
    if variant == "vlmo":
        sizes |= {"image_size": 64, "num_contrast_pairs": 2, "match": True, "mlm": True}
    else:
        sizes |= {"region_width": 16, "num_region_classes": 7}
    return str(save_random(folder, variant, dataclasses.replace(config, **sizes), words))


def tiny(name: str, *changes: str) -> TaskRecipe:
    """A small recipe made smaller."""
    return change_recipe(task_recipe_named(name), [*TINY[name], *USUAL, "steps=2", *changes])
