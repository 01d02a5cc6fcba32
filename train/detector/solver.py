"""Updates the weights: groups of parameters, clips, and the rate of each step (Detectron2's rules).

Source: facebookresearch/detectron2, ``solver/build.py`` and ``solver/lr_scheduler.py``.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vlmill.train.detector.settings import Solver

NORMS = (nn.BatchNorm2d, nn.GroupNorm)
NEARLY = 1e-6  # a share of the run that is short of a drop by at most this has reached it


def norm_parameters(model: nn.Module) -> set[str]:
    """Returns the names of the parameters that normalisations learn."""
    return {
        f"{name}.{parameter}"
        for name, module in model.named_modules()
        if isinstance(module, NORMS)
        for parameter, _ in module.named_parameters(recurse=False)
    }


def parameter_groups(
    named_parameters: Iterable[tuple[str, Tensor]], norms: set[str], solver: Solver
) -> list[dict[str, Any]]:
    """Returns the trained parameters by how they are treated; ``rate`` is a factor of the rate."""
    groups: dict[tuple[float, float], list[Tensor]] = {}
    for name, parameter in named_parameters:
        if parameter.requires_grad:
            groups.setdefault(treatment(name, norms, solver), []).append(parameter)
    return [
        {"params": members, "rate": rate, "lr": solver.lr * rate, "weight_decay": decay}
        for (rate, decay), members in groups.items()
    ]


def treatment(name: str, norms: set[str], solver: Solver) -> tuple[float, float]:
    """Returns a parameter's factor of the rate, and its decay; a bias's rule overrides a norm's."""
    rate, decay = 1.0, solver.weight_decay
    if name in norms and solver.norm_decay is not None:
        decay = solver.norm_decay
    if name.rpartition(".")[2] == "bias":
        rate = solver.bias_rate
        decay = decay if solver.bias_decay is None else solver.bias_decay
    return rate, decay


def make_optimizer(model: nn.Module, solver: Solver) -> torch.optim.SGD:
    """Makes the optimiser of everything that is trained."""
    groups = parameter_groups(model.named_parameters(), norm_parameters(model), solver)
    return torch.optim.SGD(groups, lr=solver.lr, momentum=solver.momentum, nesterov=solver.nesterov)


def clip_gradients(parameters: Sequence[Tensor], solver: Solver) -> None:
    """Clips the gradients in place, before the decay is added: each tensor separately (``value``,
    ``norm``), as Detectron2 does, or all of them together (``global``).
    """
    if solver.clip == "value":
        nn.utils.clip_grad_value_(parameters, solver.clip_at)
    elif solver.clip == "norm":
        for parameter in parameters:
            nn.utils.clip_grad_norm_(parameter, solver.clip_at, solver.clip_norm)
    elif solver.clip == "global":
        nn.utils.clip_grad_norm_(parameters, solver.clip_at, solver.clip_norm)


def rate_factor(iteration: int, steps: int, solver: Solver) -> float:
    """Returns the share of ``lr`` at an iteration, from 0, of a run of ``steps``.

    The warm-up rises to the schedule's value at its end, so a drop inside of it lowers the whole
    ramp.
    """
    warmup = min(solver.warmup, steps)
    if not warmup or iteration / steps + NEARLY > warmup / steps:
        if solver.rescale and steps > warmup:
            return schedule_share((iteration - warmup) / (steps - warmup) * steps, steps, solver)
        return schedule_share(iteration, steps, solver)
    start = solver.warmup_from * schedule_share(0, steps, solver)
    if solver.warmup_method == "constant":
        return start
    end = schedule_share(0 if solver.rescale else warmup, steps, solver)
    return start + (end - start) * iteration / warmup


def schedule_share(iteration: float, steps: int, solver: Solver) -> float:
    """Returns the share of ``lr`` at an iteration, without a warm-up."""
    if solver.schedule == "cosine":
        wave = 0.5 * (1 + math.cos(math.pi * iteration / max(steps, 1)))
        return solver.end + (1 - solver.end) * wave
    reached = sum(iteration + NEARLY * steps >= drop for drop in solver.drops)
    return float(solver.drop_factor**reached)
