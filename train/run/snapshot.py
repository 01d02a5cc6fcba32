"""Defines the content of a run's checkpoint: weights, the optimiser's state, random states."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from vlmill.train.devices.gather import gather_tensor, laid_out_like
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


def training_state(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, accelerator: Accelerator
) -> dict[str, Tensor]:
    """Returns the state for continuing, without weights: moments by parameter name, random states.

    Every process has its own random numbers for dropout. All processes have to call this.
    """
    state: dict[str, Tensor] = {}
    moments = {} if optimizer is None else optimizer.state
    for name, parameter in model.named_parameters():
        for key, value in moments.get(parameter, {}).items():
            if value is not None:  # SGD without momentum
                state[f"optimizer.{key}.{name}"] = gather_tensor(value)
    if accelerator.scaler is not None:
        for key, value in accelerator.scaler.state_dict().items():
            state[f"scaler.{key}"] = torch.tensor(value, dtype=torch.float64)
    generators = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        generators["cuda"] = torch.cuda.get_rng_state()
    for kind, numbers in generators.items():
        sent = accelerator.gather(numbers[None].to(accelerator.device))
        for process, process_state in enumerate(sent.cpu()):
            state[f"rng.{kind}.{process}"] = process_state
    return state


def num_processes(state: Mapping[str, Tensor]) -> int:
    """Returns how many processes wrote a training state."""
    return sum(name.startswith("rng.cpu.") for name in state)


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """Returns the state dict, each tensor whole where processes hold parts of it; all have to call
    this.
    """
    return {name: gather_tensor(value.detach()) for name, value in model.state_dict().items()}


def restore_training_state(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Tensor],
    accelerator: Accelerator,
) -> None:
    """Restores the state of :func:`training_state`; a process without a random state in it keeps
    its current one.
    """
    process = accelerator.process_index
    fused = any(group.get("fused") for group in optimizer.param_groups)
    for name, parameter in model.named_parameters():
        for key in ("step", "exp_avg", "exp_avg_sq", "momentum_buffer"):
            if (value := state.get(f"optimizer.{key}.{name}")) is not None:
                # Adam counts steps on the CPU, unless it is fused.
                here = key == "step" and not fused
                optimizer.state[parameter][key] = value if here else laid_out_like(value, parameter)
    if accelerator.scaler is not None:
        scales = accelerator.scaler.state_dict()
        saved = {key: type(value)(state[f"scaler.{key}"].item()) for key, value in scales.items()}
        accelerator.scaler.load_state_dict(saved)
    if f"rng.cpu.{process}" in state:
        torch.set_rng_state(state[f"rng.cpu.{process}"])
    if torch.cuda.is_available() and f"rng.cuda.{process}" in state:
        torch.cuda.set_rng_state(state[f"rng.cuda.{process}"])
