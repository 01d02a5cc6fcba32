"""The file of sizes has what the recipes' models hold, built without memory for their weights."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.nightly import stand_for

from vlmill.models import preset
from vlmill.models.registry import MODELS
from vlmill.train.recipes import RECIPES, change_recipe, recipe_named
from vlmill.train.recipes.describe import (
    FILE,
    ModelSize,
    find_size,
    measure_model,
    read_sizes,
    size_key,
)
from vlmill.train.settings.spec import RunSettings
from vlmill.train.tasks.registry import task_recipes


def all_models() -> dict[str, RunSettings]:
    """A recipe for each different model."""
    made: Iterator[RunSettings] = (make() for make in (*RECIPES.values(), *task_recipes().values()))
    return {size_key(recipe): recipe for recipe in made}


MODELS_OF_RECIPES = all_models()


def test_the_file_has_every_model_and_no_other() -> None:
    assert sorted(read_sizes()) == sorted(MODELS_OF_RECIPES)


def tried() -> list[Any]:
    """Every model; in ``make test`` the first of each variant."""
    first = {recipe.variant: key for key, recipe in reversed(MODELS_OF_RECIPES.items())}
    return stand_for(MODELS_OF_RECIPES, *first.values())


@pytest.mark.parametrize("key", tried())
def test_the_file_is_fresh(key: str) -> None:
    recipe = MODELS_OF_RECIPES[key]
    assert measure_model(recipe.variant, recipe.model) == read_sizes()[key]


def test_a_changed_model_is_measured() -> None:
    recipe = recipe_named("vilbert-small")
    changed = change_recipe(recipe, ["model.num_region_classes=17"])
    assert size_key(changed) not in read_sizes()
    head = recipe.model.visual_width + 1
    difference = head * (recipe.model.num_region_classes - 17)
    assert find_size(changed).parameters == find_size(recipe).parameters - difference


def test_one_expert_of_a_row_is_counted() -> None:
    config = preset("vlmo-small", mlm=False, contrast=False)
    width, inner = config.width, config.intermediate_width
    layer = 6 * width + 2 * (width + inner)
    with torch.device("meta"):
        model = MODELS["vlmo"].build(config)
    parameters = sum(p.numel() for p in model.parameters())
    assert measure_model("vlmo", config) == ModelSize(parameters, 0, 0, config.num_layers * layer)


if __name__ == "__main__":
    lines = (
        f'"{key}": {list(measure_model(recipe.variant, recipe.model))}'
        for key, recipe in sorted(MODELS_OF_RECIPES.items())
    )
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
