"""Collects and restores the state for continuing: the optimiser's state and whole weights."""

from collections.abc import Mapping

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from vlmill.train.devices.gather import gather_tensor, laid_out_like


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
