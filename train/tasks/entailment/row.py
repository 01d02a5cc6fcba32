"""Holds the registry's row for entailment."""

from typing import Any

from vlmill.train.tasks.entailment.settings import EntailmentRecipe
from vlmill.train.tasks.rows import TaskRow


def make(*run: Any) -> Any:
    """Returns the task of a recipe; imports torch."""
    from vlmill.train.tasks.classification.examples import STATED
    from vlmill.train.tasks.classification.task import classification

    return classification("entailment", STATED, *run)


ROW = TaskRow(
    name="entailment",
    examples="statements",
    recipe=EntailmentRecipe,
    make=make,
    num_images=1,
    keeps_labels=False,
)
