"""What a run's model learns: the part of a run in which pretraining, tasks and detectors differ."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from vlmill.train.loading.undecodable import Tolerance
from vlmill.train.run.loop import CountLabels, Explain, StageRun, StepPart
from vlmill.train.run.updates import Update


@dataclass(frozen=True, kw_only=True)
class Criterion:
    """The number of the held-out examples by which a run's best checkpoint is chosen: the lowest
    of a loss, the ``highest`` of a score.
    """

    name: str = "loss"
    highest: bool = False

    def get_value(self, measured: Mapping[str, float]) -> float:
        """The number among those that a validation gives."""
        return measured[f"validation/{self.name}"]

    def rank(self, value: float) -> float:
        """Ranks a measurement: the lower, the better."""
        return -value if self.highest else value


class Learning(Protocol):
    """What is learnt of which batches, by which updates, and how it is measured."""

    @property
    def criterion(self) -> Criterion:
        """What the best checkpoint is best at."""
        ...

    @property
    def explain(self) -> Explain:
        """Writes the message of a step that is not finite."""
        ...

    @property
    def tolerance(self) -> Tolerance:
        """How many of the images that are trained on may be undecodable."""
        ...

    def reads_images(self, run: StageRun) -> bool:
        """Whether images of the stage's steps may be undecodable."""
        ...

    def training_parts(self, run: StageRun, done: int) -> Iterator[StepPart]:
        """This process's parts of the stage's steps after ``done``, in order."""
        ...

    def step(
        self, model: nn.Module, run: StageRun, device: torch.device, *, blank: bool = False
    ) -> nn.Module | None:
        """The module that computes a part's losses; a ``blank`` one computes nothing but shapes,
        for :class:`vlmill.train.devices.throughput.Throughput`: None where that is impossible.
        """
        ...

    def count_labels(self, run: StageRun) -> CountLabels:
        """How many labels a part has of each of the stage's losses."""
        ...

    def update(self, model: nn.Module, run: StageRun) -> Update:
        """The stage's optimiser of the wrapped model, its rates and its clip."""
        ...

    def validates_every(self, run: StageRun) -> int:
        """The steps between validations of a stage; 0 where nothing is measured."""
        ...

    def measure(self, run: StageRun, step: int, module: nn.Module) -> dict[str, float]:
        """``validation/...`` of the held-out examples after a step: losses, metrics.

        All processes call it and get the same. ``module`` is the wrapped step; it is left in
        evaluation mode.
        """
        ...
