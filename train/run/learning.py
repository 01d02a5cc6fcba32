"""Defines the parts of a run that differ between objectives: batches, losses, scores."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from vlmill.train.loading.undecodable import Tolerance
from vlmill.train.run.loop import StageRun
from vlmill.train.run.step import CountLabels, Explain, StepPart
from vlmill.train.run.updates import Update


@dataclass(frozen=True, kw_only=True)
class Criterion:
    """Names the validation metric that chooses a run's best checkpoint: the lowest loss, or with
    ``highest`` the highest score.
    """

    name: str = "loss"
    highest: bool = False

    def get_value(self, measured: Mapping[str, float]) -> float:
        """Returns the metric among all metrics of a validation."""
        return measured[f"validation/{self.name}"]

    def rank(self, value: float) -> float:
        """Ranks a measurement: the lower, the better."""
        return -value if self.highest else value


class Learning(Protocol):
    """Gives the runner batches, losses, updates and validations."""

    @property
    def criterion(self) -> Criterion:
        """Returns the metric that chooses the best checkpoint."""
        ...

    @property
    def explain(self) -> Explain:
        """Writes the message of a step that is not finite."""
        ...

    @property
    def tolerance(self) -> Tolerance:
        """Returns how many training images may be undecodable."""
        ...

    def reads_images(self, run: StageRun) -> bool:
        """Returns whether the stage's steps decode images."""
        ...

    def training_parts(self, run: StageRun, done: int) -> Iterator[StepPart]:
        """Yields this process's parts of the stage's steps after ``done``, in order."""
        ...

    def step(
        self, model: nn.Module, run: StageRun, device: torch.device, *, blank: bool = False
    ) -> nn.Module | None:
        """Returns the module that computes a part's losses. A ``blank`` model has no values, so the
        module computes shapes, for :class:`vlmill.train.devices.throughput.Throughput`: None where
        that is impossible.
        """
        ...

    def count_labels(self, run: StageRun) -> CountLabels:
        """Returns the function that counts a part's labels for each of the stage's losses."""
        ...

    def update(self, model: nn.Module, run: StageRun) -> Update:
        """Returns the stage's optimiser of the wrapped model, with its rates and its clip."""
        ...

    def estimate_bytes(self, stages: tuple[Any, ...]) -> int:
        """Returns the estimated memory of a step in bytes, of the largest of ``stages``."""
        ...

    def validates_every(self, run: StageRun) -> int:
        """Returns the steps between validations of a stage; 0 if nothing is measured."""
        ...

    def measure(self, run: StageRun, step: int, module: nn.Module) -> dict[str, float]:
        """Returns the losses and metrics of held-out examples after a step (``validation/...``).

        All processes call it and get the same. ``module`` is the wrapped step; it is left in
        evaluation mode.
        """
        ...
