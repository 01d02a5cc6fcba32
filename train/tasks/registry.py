"""Lists the tasks and their recipes by name."""

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from vlmill.runtime.settings.plain_fields import from_plain
from vlmill.schemas.errors import InputError, with_article
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.glue import row as glue
from vlmill.train.tasks.nlvr2 import row as nlvr2
from vlmill.train.tasks.refcoco import row as refcoco
from vlmill.train.tasks.retrieval import row as retrieval
from vlmill.train.tasks.rows import TaskRow
from vlmill.train.tasks.vcr import row as vcr
from vlmill.train.tasks.vqa import row as vqa

# A new task is a folder in ``train/tasks`` and a name here.
TASKS: dict[str, TaskRow] = {
    row.name: row for row in (glue.ROW, nlvr2.ROW, refcoco.ROW, vcr.ROW, vqa.ROW, retrieval.ROW)
}


def task_recipes() -> dict[str, Callable[[], TaskRecipe]]:
    """Returns the recipes of all tasks, by name."""
    return {name: make for row in TASKS.values() for name, make in row.recipes.items()}


def read_task_recipe(values: Mapping[Any, Any]) -> TaskRecipe:
    """Builds a task's recipe from plain values. Raises InputError for an unknown task too."""
    if (task := values.get("task")) not in TASKS:
        raise InputError(f"task: {task!r}: expected one of {', '.join(TASKS)}")
    return from_plain(TASKS[task].recipe, values)


def task_recipe_named(name: str, variant: str | None = None) -> TaskRecipe:
    """Returns the recipe called ``name``; for a task's name, its first from ``variant``.

    Raises InputError with the nearest name for an unknown one.
    """
    recipes = task_recipes()
    if name in recipes:
        return recipes[name]()
    if name in TASKS and variant is not None:
        candidates = TASKS[name].make_recipes()
        fitting = [recipe for recipe in candidates if variant in recipe.starts_from]
        if not fitting:
            raise InputError(
                f"TASK {name}: no recipe starts from {with_article(variant)}; there are "
                f"{', '.join(TASKS[name].recipes)}"
            )
        return fitting[0]
    near = difflib.get_close_matches(name, recipes, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(recipes)}"
    if name in TASKS:
        hint = f"without --init, name the model: {', '.join(TASKS[name].recipes)}"
    raise InputError(f"TASK {name}: unknown recipe; {hint}")
