"""AdamW, its schedule, and the state that continuing needs."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from vlmill.train.recipes.base import Optimizer


def make_optimizer(model: nn.Module, settings: Optimizer) -> AdamW:
    """AdamW without weight decay on biases and layer norms, which are the vectors."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=settings.lr, betas=(settings.beta1, settings.beta2), eps=settings.eps)


def learning_rate(step: int, *, steps: int, peak: float, warmup: float) -> float:
    """The rate of step 1..``steps``: a line up to ``peak`` over the share ``warmup``, then down.

    It would reach 0 at the step after the last.
    """
    rising = int(warmup * steps)
    if step <= rising:
        return peak * step / rising
    return peak * (steps - step + 1) / (steps - rising)


def training_state(model: nn.Module, optimizer: AdamW) -> dict[str, Tensor]:
    """AdamW's moments by parameter name, and the state of the random numbers that dropout uses."""
    state = {
        f"optimizer.{key}.{name}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }
    state["rng.cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        state["rng.cuda"] = torch.cuda.get_rng_state()
    return state


def restore_training_state(model: nn.Module, optimizer: AdamW, state: Mapping[str, Tensor]) -> None:
    """Put back what :func:`training_state` gave."""
    for name, parameter in model.named_parameters():
        for key in ("step", "exp_avg", "exp_avg_sq"):
            if (value := state.get(f"optimizer.{key}.{name}")) is not None:
                # AdamW counts steps on the CPU, whatever the device.
                device = "cpu" if key == "step" else parameter.device
                optimizer.state[parameter][key] = value.to(device)
    torch.set_rng_state(state["rng.cpu"])
    if torch.cuda.is_available() and "rng.cuda" in state:
        torch.cuda.set_rng_state(state["rng.cuda"])
