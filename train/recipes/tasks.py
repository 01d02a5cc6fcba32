"""Recipes of fine-tuning: a task's model, data and optimiser, and where its weights start."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from vlmill.models import MODELS
from vlmill.schemas.errors import InputError, with_article
from vlmill.train.recipes.spec import RunSettings
from vlmill.train.recipes.variants import import_object


@dataclass(frozen=True, kw_only=True)
class TaskHome:
    """What a task reads, and where its parts stand, by their names: who lists recipes does not wait
    for torch.
    """

    examples: str  # the name of the table that ``--examples`` holds
    settings: str  # the class of the fields that only this task has
    recipes: str  # its recipes by name
    task: str  # makes the task of a recipe
    negatives: str = ""  # the table that ``--negatives`` holds; empty: the task reads none
    # What evaluates it given the command's arguments; empty: its examples are predicted one by one.
    evaluation: str = ""


# A new task is a folder in ``train/tasks`` and a line here.
TASKS: dict[str, TaskHome] = {
    "glue": TaskHome(
        examples="statements",
        settings="vlmill.train.tasks.glue.recipes.GlueSettings",
        recipes="vlmill.train.tasks.glue.recipes.RECIPES",
        task="vlmill.train.tasks.glue.task.glue",
    ),
    "nlvr2": TaskHome(
        examples="statements",
        settings="vlmill.train.tasks.nlvr2.recipes.Nlvr2Settings",
        recipes="vlmill.train.tasks.nlvr2.recipes.RECIPES",
        task="vlmill.train.tasks.nlvr2.task.nlvr2",
    ),
    "refcoco": TaskHome(
        examples="expressions",
        settings="vlmill.train.tasks.refcoco.recipes.RefcocoSettings",
        recipes="vlmill.train.tasks.refcoco.recipes.RECIPES",
        task="vlmill.train.tasks.refcoco.task.refcoco",
    ),
    "vcr": TaskHome(
        examples="choices",
        settings="vlmill.train.tasks.vcr.settings.VcrSettings",
        recipes="vlmill.train.tasks.vcr.recipes.RECIPES",
        task="vlmill.train.tasks.vcr.task.vcr",
    ),
    "vqa": TaskHome(
        examples="questions",
        settings="vlmill.train.tasks.vqa.recipes.VqaSettings",
        recipes="vlmill.train.tasks.vqa.recipes.RECIPES",
        task="vlmill.train.tasks.vqa.task.vqa",
    ),
    "retrieval": TaskHome(
        examples="pairs",
        settings="vlmill.train.tasks.retrieval.settings.RetrievalSettings",
        recipes="vlmill.train.tasks.retrieval.recipes.RECIPES",
        task="vlmill.train.tasks.retrieval.task.retrieval",
        negatives="neighbours",
        evaluation="vlmill.train.tasks.retrieval.command.run_retrieval",
    ),
}


@dataclass(frozen=True, kw_only=True)
class TaskRecipe(RunSettings):
    """A run of fine-tuning, of one stage."""

    command = "finetune"

    task: str  # a name of `TASKS`
    settings: Any  # the task's own fields
    starts_from: tuple[str, ...]  # the variants that ``--init`` may be
    # One run for each of them, in a folder of its own, and the spread of their results; if empty,
    # one run with ``seed``.
    seeds: tuple[int, ...] = ()
    blind: bool = False  # no image is shown: what the texts alone tell

    @classmethod
    def field_types(cls, values: Mapping[Any, Any]) -> dict[str, Any]:
        """The types of the fields: the variant decides the model's, the task its settings'."""
        hints = get_type_hints(cls)
        for field, known in (("variant", MODELS), ("task", TASKS)):
            if values.get(field) not in known:
                raise ValueError(f"{field}: {values.get(field)!r} is none of {', '.join(known)}")
        settings = import_object(TASKS[values["task"]].settings)
        return hints | {"model": MODELS[values["variant"]].config, "settings": settings}

    @property
    def samples_of_pair(self) -> int:
        """What the task's settings say, if they do."""
        samples: int = getattr(self.settings, "samples_of_pair", 1)
        return samples

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.stages) != 1:
            raise ValueError(f"recipe {self.name} has {len(self.stages)} stages; a task has one")
        if len(set(self.seeds)) < len(self.seeds) or min(self.seeds, default=0) < 0:
            raise ValueError(f"seeds={list(self.seeds)}: want different numbers from 0 up")


def task_recipes() -> dict[str, Callable[[], TaskRecipe]]:
    """The recipes of all tasks, by name."""
    recipes: dict[str, Callable[[], TaskRecipe]] = {}
    for home in TASKS.values():
        recipes |= import_object(home.recipes)
    return recipes


def make_recipes(task: str) -> list[TaskRecipe]:
    """A task's recipes, in their order."""
    return [make() for make in import_object(TASKS[task].recipes).values()]


def task_recipe_named(name: str, variant: str | None = None) -> TaskRecipe:
    """The recipe called ``name``; of a task's name, its first one that starts from ``variant``.

    Raises InputError with the nearest name for another.
    """
    recipes = task_recipes()
    if name in recipes:
        return recipes[name]()
    if name in TASKS and variant is not None:
        candidates = make_recipes(name)
        fitting = [recipe for recipe in candidates if variant in recipe.starts_from]
        if not fitting:
            raise InputError(
                f"TASK {name}: no recipe starts from {with_article(variant)}; there are "
                f"{', '.join(import_object(TASKS[name].recipes))}"
            )
        return fitting[0]
    near = difflib.get_close_matches(name, recipes, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(recipes)}"
    if name in TASKS:
        hint = f"without --init say of which model: {', '.join(import_object(TASKS[name].recipes))}"
    raise InputError(f"TASK {name}: unknown recipe; {hint}")
