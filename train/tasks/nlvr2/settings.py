"""Defines the fields of the recipes of NLVR2."""

from dataclasses import dataclass, field

from vlmill.train.settings.tasks import TaskRecipe

NUM_IMAGES = 2  # of a statement


@dataclass(frozen=True, kw_only=True)
class Nlvr2Settings:
    """Holds the fields that only NLVR2 has."""

    task_token: int = 12  # of the task in 12-in-1's table of tokens [code]: TASK12

    @property
    def samples_of_pair(self) -> int:
        """Returns how many pairs are computed for a statement."""
        return NUM_IMAGES


@dataclass(frozen=True, kw_only=True)
class Nlvr2Recipe(TaskRecipe):
    """Describes a run of NLVR2."""

    task: str = "nlvr2"
    settings: Nlvr2Settings = field(default_factory=Nlvr2Settings)
