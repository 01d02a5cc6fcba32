"""Holds the registry's row for classification."""

from typing import Any

from vlmill.train.tasks.classification.settings import ClassificationRecipe
from vlmill.train.tasks.rows import TaskRow


def make(*run: Any) -> Any:
    """Returns the task of a recipe; imports torch."""
    from vlmill.train.tasks.classification.examples import LABELLED
    from vlmill.train.tasks.classification.task import classification

    return classification("classification", LABELLED, *run)


ROW = TaskRow(
    name="classification",
    examples="labels",
    recipe=ClassificationRecipe,
    make=make,
    keeps_labels=False,
)
