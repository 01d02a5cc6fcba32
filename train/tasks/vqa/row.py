"""Holds the registry's row for VQA."""

from typing import Any

from vlmill.train.tasks.rows import TaskRow
from vlmill.train.tasks.vqa.settings import VqaRecipe


def make(*run: Any) -> Any:
    """Returns the task of a recipe; imports torch."""
    from vlmill.train.tasks.vqa.task import vqa

    return vqa(*run)


ROW = TaskRow(
    name="vqa",
    examples="questions",
    recipe=VqaRecipe,
    make=make,
)
