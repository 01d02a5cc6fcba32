"""Defines the recipe of a task: the initial checkpoint, the task's settings, and one stage."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, get_type_hints

from vlmill.models.registry import MODELS
from vlmill.train.settings.spec import RunSettings


@dataclass(frozen=True, kw_only=True)
class TaskRecipe(RunSettings):
    """Sets a run of fine-tuning, of one stage. Each task has its subclass, with its settings."""

    command = "finetune"
    published: ClassVar[dict[str, Any]] = {}  # the fields that the task's published runs share

    task: str = ""  # a name of `vlmill.train.tasks.registry.TASKS`
    settings: Any = None  # the task's own fields
    starts_from: tuple[str, ...]  # the variants that ``--init`` accepts
    # One run for each of them, in a separate folder, and the spread of their results; if empty, one
    # run with ``seed``.
    seeds: tuple[int, ...] = ()
    blind: bool = False  # no image is shown: measures the information in the texts alone

    @classmethod
    def field_types(cls, values: Mapping[Any, Any]) -> dict[str, Any]:
        """Returns the types of the fields: the variant decides the model's."""
        variant, task = values.get("variant"), values.get("task", cls.task)
        if variant not in MODELS:
            raise ValueError(f"variant: {variant!r}: expected one of {', '.join(MODELS)}")
        if task != cls.task:
            raise ValueError(f"task: {task!r} has other settings than {cls.task}; remove it")
        return get_type_hints(cls) | {"model": MODELS[variant].config}

    @property
    def samples_of_pair(self) -> int:
        """Returns the samples of a pair in the task's settings; 1 if these have no such field."""
        samples: int = getattr(self.settings, "samples_of_pair", 1)
        return samples

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.stages) != 1:
            raise ValueError(f"recipe {self.name} has {len(self.stages)} stages; a task has one")
        if len(set(self.seeds)) < len(self.seeds) or min(self.seeds, default=0) < 0:
            raise ValueError(f"seeds={list(self.seeds)}: expected different numbers of at least 0")
