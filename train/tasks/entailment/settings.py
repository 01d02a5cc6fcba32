"""Defines the fields of the recipes of entailment, which are those of classification."""

from dataclasses import dataclass, field

from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.classification.settings import ClassificationSettings


@dataclass(frozen=True, kw_only=True)
class EntailmentRecipe(TaskRecipe):
    """Describes a run of entailment."""

    task: str = "entailment"
    settings: ClassificationSettings = field(default_factory=ClassificationSettings)
