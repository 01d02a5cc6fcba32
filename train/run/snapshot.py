"""Defines the content of a run's checkpoint, and the protocol of its writers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from vlmill.train.checkpoints.state import training_state, whole_weights
from vlmill.train.devices.gather import gather_tensor
from vlmill.train.optim.average import MovingAverage
from vlmill.train.run.loop import StageRun

RAW = "weight."  # before a parameter's name in a training state: its own value, not the average's


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Holds a run after ``step``, in the stage ``run``.

    ``measured`` is the criterion of the held-out examples, where this step has measured it.
    """

    run: StageRun
    step: int
    model: nn.Module
    average: MovingAverage | None = None
    optimizer: torch.optim.Optimizer | None = None
    measured: float | None = None

    def gather(self, accelerator: Accelerator) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Returns the weights (averaged ones if there is an average) and the training state. All
        processes have to call it.
        """
        state = training_state(self.model, self.optimizer, accelerator)
        weights = whole_weights(self.model)
        if self.average is not None:
            shadow = self.average.shadow
            state |= {f"{RAW}{name}": weights[name].clone() for name in shadow}
            weights |= {name: gather_tensor(value) for name, value in shadow.items()}
        return weights, state


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """Holds the checkpoint that a run continues from, with its training state."""

    step: int
    model: nn.Module
    state: Mapping[str, Tensor]

    def own_weights(self) -> dict[str, Tensor]:
        """Returns the model's weights where the checkpoint's are their average's."""
        return {k.removeprefix(RAW): v for k, v in self.state.items() if k.startswith(RAW)}


class Checkpoints(Protocol):
    """Writes and reads a run's checkpoints."""

    def last(self) -> Resumed | None:
        """Reads the last checkpoint; None for a new run."""
        ...

    def begin(self, run: StageRun) -> None:
        """Records a stage that is trained, or was, for later checkpoints."""
        ...

    def save(self, snapshot: Snapshot) -> None:
        """Writes a checkpoint; all processes take part, the first one writes."""
        ...
