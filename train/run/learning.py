"""What a run's model learns: the part of a run in which pretraining and fine-tuning differ."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from torch import nn

from vlmill.train.loading.stage_batches import StageBatches
from vlmill.train.run.loop import CountLabels, StageRun


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
    """What is learnt of which batches, and how it is measured."""

    @property
    def criterion(self) -> Criterion:
        """What the best checkpoint is best at."""
        ...

    def batches(self, run: StageRun, *, training: bool, **common: Any) -> StageBatches:
        """The batches of a stage, or the held-out ones as it reads them; ``common`` are the fields
        of `StageBatches`.
        """
        ...

    def step(
        self, model: nn.Module, run: StageRun, device: torch.device, *, blank: bool = False
    ) -> nn.Module:
        """The module that computes a batch's losses; a ``blank`` one computes nothing but shapes,
        for :class:`vlmill.train.devices.throughput.Throughput`.
        """
        ...

    def count_labels(self, run: StageRun) -> CountLabels:
        """How many labels a batch has of each of the stage's losses."""
        ...

    def measure(
        self, module: nn.Module, batches: StageBatches, examples: int, accelerator: Accelerator
    ) -> dict[str, float]:
        """``validation/...`` of the first ``examples`` of held-out batches, losses and metrics.

        All processes call it and get the same. ``module`` is the wrapped step; it is left in
        evaluation mode.
        """
        ...
