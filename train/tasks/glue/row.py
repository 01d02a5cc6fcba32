"""Holds the registry's row for GLUE."""

from typing import Any

from vlmill.train.tasks.glue.settings import GlueRecipe
from vlmill.train.tasks.rows import TaskRow


def make(*run: Any) -> Any:
    """Returns the task of a recipe; imports torch."""
    from vlmill.train.tasks.glue.task import glue

    return glue(*run)


ROW = TaskRow(
    name="glue",
    examples="statements",
    recipe=GlueRecipe,
    make=make,
    num_images=0,
)
