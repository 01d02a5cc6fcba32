"""Every number that a paper or a released code prints is read from the recipe that states it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import pytest
import torch
from tests.train.recipes.published_numbers import PRETRAINING
from tests.train.recipes.published_task_numbers import FINE_TUNING, OURS
from torch import nn

from vlmill.train.optim.average import MovingAverage
from vlmill.train.recipes import RECIPES, Stage
from vlmill.train.settings.spec import RunSettings
from vlmill.train.tasks.registry import task_recipes

TRIALS = ("-small", "-hour")
EVERY = {name: make for name, make in {**RECIPES, **task_recipes()}.items()}
PUBLISHED = [name for name in EVERY if not name.endswith(TRIALS)]
OF_A_STAGE = {field.name for field in fields(Stage)}
# What a row must state of every recipe, in one of these fields.
NEEDED = (
    ("optimizer.lr",),
    ("batch_size",),
    ("epochs", "steps"),
    ("optimizer.warmup", "optimizer.warmup_steps"),
    ("optimizer.weight_decay",),
)


def names_of(patterns: str) -> list[str]:
    found = {
        pattern: [name for name in PUBLISHED if fnmatchcase(name, pattern)]
        for pattern in patterns.split()
    }
    assert all(found.values()), f"no recipe is called {[p for p in found if not found[p]]}"
    return list(dict.fromkeys(name for names in found.values() for name in names))


@cache
def numbers() -> dict[str, dict[str, tuple[Any, str]]]:
    """The published value of each field of each recipe, and its source."""
    table: dict[str, dict[str, tuple[Any, str]]] = {}
    for patterns, source, values in (*PRETRAINING, *FINE_TUNING):
        for name in names_of(patterns):
            of_recipe = table.setdefault(name, {})
            for field, value in values.items():
                known = of_recipe.setdefault(field, (value, source))
                assert known[0] == value, f"{name}: {field} is {known} and {value} ({source})"
    return table


def read(recipe: RunSettings, field: str) -> list[Any]:
    """The values of a field: of every stage, where it is a stage's."""
    first, _, rest = field.partition(".")
    if first == "stages":
        number, _, rest = rest.partition(".")
        return [attribute(recipe.stages[int(number)], rest)]
    if first in OF_A_STAGE:
        return [attribute(stage, field) for stage in recipe.stages]
    return [attribute(recipe, field)]


def attribute(value: Any, path: str) -> Any:
    if path == "objectives":
        return {name: weight for name, weight in vars(value.objectives).items() if weight}
    for name in path.split("."):
        value = getattr(value, name)
    return value


def differences(name: str, recipe: RunSettings) -> Iterator[str]:
    for field, (value, source) in numbers()[name].items():
        for found in read(recipe, field):
            if found != value:
                yield f"{name}: {field} is {found}, published is {value} ({source})"


def of_ours() -> set[str]:
    return {name for name in PUBLISHED if any(fnmatchcase(name, pattern) for pattern in OURS)}


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name not in of_ours()])
def test_a_recipe_has_the_published_numbers(name: str) -> None:
    recipe, stated = EVERY[name](), numbers()[name]
    assert not list(differences(name, recipe))
    missing = [among for among in NEEDED if not any(stated.get(field) for field in among)]
    assert not missing, f"{name}: the table states none of {missing}"
    assert ("objectives" if name in RECIPES else "average") in stated
    if "optimizer.warmup" in stated:  # a number of steps would replace the share
        assert read(recipe, "optimizer.warmup_steps") == [None] * len(recipe.stages)


def test_a_wrong_number_is_found() -> None:
    recipe = EVERY["imagebert"]()
    wrong = replace(recipe.stages[1], batch_size=47)
    (said,) = differences("imagebert", replace(recipe, stages=(recipe.stages[0], wrong)))
    assert said.startswith("imagebert: batch_size is 47, published is 48 (arXiv:2001.07966")


@pytest.mark.parametrize("name", [name for name in PUBLISHED if EVERY[name]().average])
def test_an_average_keeps_almost_all_of_itself(name: str) -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    average = MovingAverage(model, EVERY[name]().average)
    nn.init.ones_(model.weight)
    average.update(model)
    torch.testing.assert_close(average.shadow["weight"], torch.full((1, 1), 1e-4))


@pytest.mark.parametrize("average", [1e-4, 0.49, 1.0, -0.1, float("nan")])
def test_an_average_that_forgets_or_never_moves_is_refused(average: float) -> None:
    with pytest.raises(ValueError, match=r"average=.*expected the decay .* from 0\.5 to below 1"):
        replace(EVERY["retrieval-interbert"](), average=average)
