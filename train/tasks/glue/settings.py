"""Defines the fields of the recipes of GLUE."""

from dataclasses import dataclass, field
from typing import Literal

from vlmill.train.settings.tasks import TaskRecipe

HALVES = ("mnli-m", "mnli-mm")  # of MNLI's development and test sets


@dataclass(frozen=True, kw_only=True)
class GlueSettings:
    """Holds the fields that only GLUE has."""

    # Which of its tasks: a table may hold all of them.
    task: Literal["cola", "sst-2", "mrpc", "qqp", "sts-b", "mnli", "qnli", "rte"] = "mnli"
    # Evaluations of the other tasks, a pattern of their folders: for the averages over all eight.
    scores: str | None = None


@dataclass(frozen=True, kw_only=True)
class GlueRecipe(TaskRecipe):
    """Describes a run of one of GLUE's tasks."""

    task: str = "glue"
    settings: GlueSettings = field(default_factory=GlueSettings)
