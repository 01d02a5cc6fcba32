"""Lists the tasks and their recipes by name."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from vlmill.runtime.settings.plain_fields import from_plain
from vlmill.schemas.errors import InputError
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.classification import row as classification
from vlmill.train.tasks.entailment import row as entailment
from vlmill.train.tasks.glue import row as glue
from vlmill.train.tasks.nlvr2 import row as nlvr2
from vlmill.train.tasks.recipes import (
    bert,
    classes,
    data_sets,
    imagebert,
    interbert,
    vilbert,
    vlbert,
    vlmo,
)
from vlmill.train.tasks.refcoco import row as refcoco
from vlmill.train.tasks.retrieval import row as retrieval
from vlmill.train.tasks.rows import TaskRow
from vlmill.train.tasks.vcr import row as vcr
from vlmill.train.tasks.vqa import row as vqa

# A new task is a folder in ``train/tasks`` and a name here; a new paper's tasks are a file in
# ``train/tasks/recipes`` and its recipes in `PAPERS`. BERT's own recipes come before other papers'
# runs that start from BERT, and those for trials last.
ROWS = (
    *(classification.ROW, entailment.ROW, glue.ROW, nlvr2.ROW, refcoco.ROW),
    *(vcr.ROW, vqa.ROW, retrieval.ROW),
)
PAPERS = (
    *(bert.RECIPES, vilbert.RECIPES, vlbert.RECIPES, imagebert.RECIPES, interbert.RECIPES),
    *(vlmo.RECIPES, data_sets.RECIPES, classes.RECIPES),
)


def _with_papers_recipes(row: TaskRow) -> TaskRow:
    recipes = dict(row.recipes)
    for of_tasks in PAPERS:
        recipes |= of_tasks.get(row.name, {})
    order = sorted(recipes, key=lambda name: name.endswith("-small"))
    return replace(row, recipes={name: recipes[name] for name in order})


TASKS: dict[str, TaskRow] = {row.name: _with_papers_recipes(row) for row in ROWS}


def task_recipes() -> dict[str, Callable[[], TaskRecipe]]:
    """Returns the recipes of all tasks, by name."""
    return {name: make for row in TASKS.values() for name, make in row.recipes.items()}


def read_task_recipe(values: Mapping[Any, Any]) -> TaskRecipe:
    """Builds a task's recipe from plain values. Raises InputError for an unknown task too."""
    if (task := values.get("task")) not in TASKS:
        raise InputError(f"task: {task!r}: expected one of {', '.join(TASKS)}")
    return from_plain(TASKS[task].recipe, values)


def task_recipe_named(name: str) -> TaskRecipe:
    """Returns the recipe called ``name``.

    Raises InputError with the nearest name for an unknown one.
    """
    recipes = task_recipes()
    if name in recipes:
        return recipes[name]()
    near = difflib.get_close_matches(name, recipes, n=1)
    hint = f"did you mean {near[0]}?" if near else "`train-vl recipes` lists them"
    if name in TASKS:
        hint = f"without --init, name the model: {', '.join(TASKS[name].recipes)}"
    raise InputError(f"TASK {name}: unknown recipe; {hint}")
