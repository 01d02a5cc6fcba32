"""Defines a task's row: its tables, its recipes and its function; importing it needs no torch."""

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vlmill.train.settings.tasks import TaskRecipe


@dataclass(frozen=True, kw_only=True)
class TaskRow:
    """Describes a task. make: imports torch and returns the task of a recipe, given the path of its
    examples, the file of its labels and the starting checkpoint.
    """

    name: str
    examples: str  # the name of the table that ``--examples`` holds
    recipe: type[TaskRecipe]  # with the class of the fields that only this task has
    make: Callable[..., Any]
    # Its recipes other than the papers'; the registry adds those (``train/tasks/recipes``).
    recipes: Mapping[str, Callable[[], TaskRecipe]] = field(default_factory=dict)
    keeps_labels: bool = True  # whether a run has the list of labels that its --init has, if any
    num_images: int | None = None  # images of an example, where tasks share a table by it
    negatives: str = ""  # the table that ``--negatives`` holds; empty: the task reads none
    # Evaluates the task with the command's arguments; None: its examples are predicted one by one.
    evaluate: Callable[[Namespace], int] | None = None

    def make_recipes(self) -> list[TaskRecipe]:
        """Returns the task's recipes, in their order."""
        return [make() for make in self.recipes.values()]
