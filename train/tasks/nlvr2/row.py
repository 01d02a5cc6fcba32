"""Holds the registry's row for NLVR2."""

from typing import Any

from vlmill.train.tasks.nlvr2.settings import Nlvr2Recipe
from vlmill.train.tasks.rows import TaskRow


def make(*run: Any) -> Any:
    """Returns the task of a recipe; imports torch."""
    from vlmill.train.tasks.nlvr2.task import nlvr2

    return nlvr2(*run)


ROW = TaskRow(
    name="nlvr2",
    examples="statements",
    recipe=Nlvr2Recipe,
    make=make,
    num_images=2,
)
