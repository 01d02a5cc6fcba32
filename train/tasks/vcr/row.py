"""Holds the registry's row for VCR."""

from typing import Any

from vlmill.train.tasks.rows import TaskRow
from vlmill.train.tasks.vcr.settings import VcrRecipe


def make(*run: Any) -> Any:
    """Returns the task of a recipe; imports torch."""
    from vlmill.train.tasks.vcr.task import vcr

    return vcr(*run)


ROW = TaskRow(
    name="vcr",
    examples="choices",
    recipe=VcrRecipe,
    make=make,
)
