"""Holds the registry's row for retrieval."""

from argparse import Namespace
from typing import Any

from vlmill.train.tasks.retrieval.settings import RetrievalRecipe
from vlmill.train.tasks.rows import TaskRow


def make(*run: Any) -> Any:
    """Returns the task of a recipe; imports torch."""
    from vlmill.train.tasks.retrieval.choice import retrieval

    return retrieval(*run)


def evaluate(args: Namespace) -> int:
    """Runs the evaluation of all pairs; imports torch."""
    from vlmill.train.tasks.retrieval.command import run_retrieval

    return run_retrieval(args)


ROW = TaskRow(
    name="retrieval",
    examples="pairs",
    recipe=RetrievalRecipe,
    make=make,
    negatives="neighbours",
    evaluate=evaluate,
)
