"""Every recipe by its name: sizes, what it needs, what it costs, and losses that fall."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
import yaml
from tests.factories import SMALL, write_images
from tests.nightly import stand_for

from vlmill.models import VARIANTS
from vlmill.runtime.console.log import read_log
from vlmill.runtime.settings.plain_fields import from_plain, to_yaml
from vlmill.schemas.errors import InputError
from vlmill.train.cli import main
from vlmill.train.recipes import RECIPES, Optimizer, Recipe, Stage, change_recipe, recipe_named
from vlmill.train.recipes.describe import (
    PUBLISHED_PAIRS,
    compute_cost,
    describe,
    describe_length,
    describe_sources,
    step_bytes,
)
from vlmill.train.run.inputs import Inputs
from vlmill.train.run.job import pretrain
from vlmill.train.tasks.registry import task_recipe_named

if TYPE_CHECKING:
    from tests.factories import Tables


# So that losses fall in a few steps: sizes, rates and masks for twelve captions.
QUICK = {"steps": 20, "batch_size": 8, "log_every": 1, "optimizer.lr": 2e-3, "masking.words": 0.4}


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_resolves_and_its_model_builds(name: str) -> None:
    recipe = recipe_named(name)
    assert recipe.name == name and recipe.about
    assert from_plain(Recipe, yaml.safe_load(to_yaml(recipe))) == recipe
    cost = compute_cost(recipe)  # on a device without memory
    assert cost.parameters and cost.pair_bytes
    assert len(describe(recipe)) == (3 if recipe.needs else 2)
    for stage in recipe.stages:
        assert (
            stage.feeding.max_tokens is None
            or stage.feeding.kind == "pictures"
            or (stage.feeding.max_tokens <= recipe.max_text_tokens)
        )


@pytest.mark.parametrize("name", SMALL)
def test_small_recipes_need_pairs_and_images_alone(name: str) -> None:
    recipe = recipe_named(name)
    assert len(recipe.stages) == 1 and not recipe.needs
    assert 1e6 < compute_cost(recipe).parameters < 6e6
    assert recipe.stages[0].objectives.itm > 0 or recipe.variant == "bert"
    assert change_recipe(recipe, ["steps=7"]).stages[0].steps == 7


def test_published_sizes() -> None:
    millions = {
        "vilbert": 239.0,  # 250.0 with what is never used
        "vl-bert": 114.5,
        "vl-bert-large": 342.1,
        "imagebert": 113.9,
        "interbert": 199.5,
        "interbert-released": 157.0,
        "vlmo-base": 202.4,
        "vlmo-large": 599.1,
    }
    found = {name: round(compute_cost(recipe_named(name)).parameters / 1e6, 1) for name in millions}
    assert found == millions


@pytest.mark.parametrize(
    ("name", "accumulation", "whole", "in_parts"),
    [
        ("retrieval-vlmo-base-coco", 12, 562.1, 49.7),
        ("retrieval-vlmo-large-flickr30k", 48, 1500.0, 40.4),
        ("retrieval-vlmo-base-paper-coco", 8, 375.6, 49.6),
        ("vlmo-base", 8, 361.2, 48.2),
        ("vlmo-large", 32, 964.0, 39.7),
    ],
)
def test_a_contrast_in_parts_fits_a_card_with_80_gb(
    name: str, accumulation: int, whole: float, in_parts: float
) -> None:
    """The table of docs/training.md; with room for activations of 1.6 times the estimate."""
    make = task_recipe_named if name.startswith("retrieval") else recipe_named
    parts = change_recipe(make(name), [f"accumulation={accumulation}"])
    assert round(step_bytes(make(name)) / 1e9, 1) == whole
    assert round(step_bytes(parts) / 1e9, 1) == in_parts
    at_once = parts.stages[0].batch_size // accumulation
    assert step_bytes(parts) + 0.6 * compute_cost(parts).pair_bytes * at_once < 80e9
    recomputed = step_bytes(change_recipe(parts, ["checkpoint_activations=true"]))
    assert compute_cost(parts).fixed_bytes < recomputed < step_bytes(parts) / 2


def test_the_list_names_data_steps_and_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    listed = capsys.readouterr().out
    assert all(f"{name} " in listed for name in RECIPES)
    assert "10 epochs (61,250 steps) of 512 cc; 239.0 million parameters, 3.8 GB + " in listed
    assert "177.4 million parameters, 2.8 GB + 182.0 MB a pair (562.1 GB)" in listed
    assert main(["recipes", "show", "vlbert-small"]) == 2
    assert "did you mean vl-bert-small?" in capsys.readouterr().err


# make test trains each variant in behaviour/test_small_recipes.py; here two show that they learn.
FALLING = ("imagebert-small", "vlmo-small")


@pytest.mark.parametrize("name", stand_for(SMALL, *FALLING))
def test_losses_of_small_recipes_fall(name: str, tables: Tables, tmp_path: Path) -> None:
    inputs = tables.write()
    images = write_images(tmp_path / "images", 12) if name == "vlmo-small" else None
    recipe = recipe_named(name)
    reads_regions = recipe.stages[0].feeding.reads_regions
    inputs = Inputs(
        pairs=inputs.pairs, regions=inputs.regions if reads_regions else None, images=images
    )
    words = [f"{field}={value}" for field, value in QUICK.items()]
    said = pretrain(change_recipe(recipe, words), inputs, tmp_path / "out")
    assert "20 steps on 12 pairs" in said
    of_words = "loss/text_mlm" if recipe.variant == "bert" else "loss/mlm"
    losses = [line[of_words] for line in read_log(tmp_path / "out" / "log.jsonl")]
    found = [loss for loss in losses if loss]  # 0 where a step happens to mask no word
    assert np.mean(found[-5:]) < found[0] - 0.3


def test_a_gpu_precision_is_refused_without_one(tables: Tables, tmp_path: Path) -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    with pytest.raises(InputError, match=r"precision=fp16 needs a GPU; add precision=no"):
        pretrain(recipe_named("vl-bert-large"), tables.write(), tmp_path / "out")


def test_variants_of_recipes_are_known() -> None:
    assert {recipe_named(name).variant for name in RECIPES} <= set(VARIANTS)


def test_the_list_says_how_sources_are_mixed_and_what_share_is_visited() -> None:
    recipe = change_recipe(
        recipe_named("imagebert"),
        [
            "stages.1.mixture=[{source: sbu, weight: 2}, {source: cc, captions_per_picture: 1}]",
            "stages.0.share=0.5",
            "stages.0.max_pairs=480000",
        ],
    )
    assert describe_length(recipe.stages[0]) == "17 epochs (170,000 steps)"
    assert describe_length(recipe.stages[1]) == "17 epochs"  # nobody knows how many captions count
    more = ["stages.1.mixture=[{source: sbu, weight: 3}]", "stages.1.max_pairs=1000000"]
    second = change_recipe(recipe_named("imagebert"), more).stages[1]
    cc, sbu = PUBLISHED_PAIRS["cc"], PUBLISHED_PAIRS["sbu"]
    steps = 17 * 1_000_000 / (cc + sbu) * (cc + 3 * sbu) / second.batch_size
    assert describe_length(second) == f"17 epochs ({steps:,.0f} steps)"
    said = "cc (1 times, 1 captions an image), sbu (2 times)"
    assert describe_sources(recipe.stages[1]) == said and said in " ".join(describe(recipe))


def test_the_steps_of_epochs_by_hand() -> None:
    """1,000 pairs in batches of 300: 3 and a third."""
    stage = Stage(name="a", epochs=10, batch_size=300, optimizer=Optimizer(lr=1.0))
    lengths = {
        kind: [replace(stage, epoch_steps=kind).length(pairs) for pairs in (1000, 200, 0)]
        for kind in ("exact", "floor", "ceil")
    }
    assert lengths == {"exact": [34, 7, 0], "floor": [30, 10, 0], "ceil": [40, 10, 0]}
    assert replace(stage, steps=7, epochs=None).length(1000) == 7


def test_a_published_family_counts_steps_in_one_way() -> None:
    """The first step's rate, and the steps of an epoch, as the released scripts of each count."""
    conventions = {"vilbert": ("floor", 0), "interbert": ("floor", 0), "vl-bert": ("ceil", 1)}
    for name in RECIPES:
        if name.startswith(tuple(conventions)) and not name.endswith(("-small", "-hour")):
            family = next(family for family in conventions if name.startswith(family))
            for stage in recipe_named(name).stages:
                counts = (stage.epoch_steps, stage.optimizer.first_step)
                assert counts == conventions[family], name


def test_one_head_numbers_classes_in_one_way() -> None:
    recipe = recipe_named("imagebert")
    first, second = recipe.stages
    other = replace(second, feeding=replace(second.feeding, region_targets="distribution"))
    with pytest.raises(ValueError, match=r"region_targets is class in stage .* and distribution"):
        replace(recipe, stages=(first, other))
