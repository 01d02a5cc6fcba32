"""Holds the registry's row for referring expressions."""

from typing import Any

from vlmill.train.tasks.refcoco.settings import RefcocoRecipe
from vlmill.train.tasks.rows import TaskRow


def make(*run: Any) -> Any:
    """Returns the task of a recipe; imports torch."""
    from vlmill.train.tasks.refcoco.task import refcoco

    return refcoco(*run)


ROW = TaskRow(
    name="refcoco",
    examples="expressions",
    recipe=RefcocoRecipe,
    make=make,
)
