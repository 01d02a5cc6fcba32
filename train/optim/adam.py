"""Implements the published optimisers that PyTorch does not have.

Rates are set from outside, step by step, with ``group["lr"]`` (``schedule.py``).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


def clip_each_(gradients: Sequence[Tensor], largest: float) -> None:
    """Scales each gradient for itself to a norm of at most ``largest``, in place (BertAdam)."""
    norms = torch._foreach_norm(list(gradients))
    factors = [(largest / (norm + 1e-6)).clamp(max=1.0) for norm in norms]
    torch._foreach_mul_(list(gradients), factors)


class _Adam(Optimizer):
    """Adam's moments; the update is the subclass's."""

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        if defaults["lr"] < 0 or defaults["eps"] < 0 or defaults["weight_decay"] < 0:
            raise ValueError("lr, eps and weight_decay cannot be negative")
        if not all(0 <= beta < 1 for beta in defaults["betas"]):
            raise ValueError(f"betas={defaults['betas']}: want numbers from 0 to below 1")
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self._update(group, parameters, [p.grad for p in parameters])
        return loss

    def _update(self, group: dict[str, Any], parameters: list[Tensor], grads: list[Tensor]) -> None:
        raise NotImplementedError

    def _moments(
        self, group: dict[str, Any], parameters: list[Tensor], grads: list[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Returns the running means of gradients and their squares, with these ``grads`` in
        them.
        """
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["step"] = torch.zeros(())
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
            state["step"] += 1
        first = [self.state[p]["exp_avg"] for p in parameters]
        second = [self.state[p]["exp_avg_sq"] for p in parameters]
        beta1, beta2 = group["betas"]
        torch._foreach_mul_(first, beta1)
        torch._foreach_add_(first, grads, alpha=1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, grads, grads, value=1 - beta2)
        return first, second


class BertAdam(_Adam):
    """Optimises as ViLBERT and InterBERT do: Adam without bias correction, each gradient clipped
    for itself.

    Decay is part of the step: p <- p - lr (m / (sqrt(v) + eps) + decay p). Gradients are clipped in
    place to ``clip`` before they enter the moments; no clip with ``clip=0``.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        clip: float = 1.0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "clip": clip})

    def _update(self, group: dict[str, Any], parameters: list[Tensor], grads: list[Tensor]) -> None:
        if group["clip"]:
            clip_each_(grads, group["clip"])
        first, second = self._moments(group, parameters, grads)
        scale = torch._foreach_sqrt(second)
        torch._foreach_add_(scale, group["eps"])
        updates = torch._foreach_div(first, scale)
        if group["weight_decay"]:
            torch._foreach_add_(updates, parameters, alpha=group["weight_decay"])
        torch._foreach_add_(parameters, updates, alpha=-group["lr"])


class TransformersAdamW(_Adam):
    """Optimises with VL-BERT's and VLMo's AdamW, that of `transformers` 4; not quite PyTorch's.

    ``eps`` is added to sqrt(v) before the bias correction, and the decay comes after the step, of
    the parameter as it is then. ``correct_bias=False`` leaves the correction out.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        correct_bias: bool = True,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "correct_bias": correct_bias})

    def _update(self, group: dict[str, Any], parameters: list[Tensor], grads: list[Tensor]) -> None:
        first, second = self._moments(group, parameters, grads)
        scale = torch._foreach_sqrt(second)
        torch._foreach_add_(scale, group["eps"])
        beta1, beta2 = group["betas"]
        sizes = [-group["lr"]] * len(parameters)
        if group["correct_bias"]:
            steps = [int(self.state[p]["step"]) for p in parameters]
            sizes = [
                size * (1 - beta2**n) ** 0.5 / (1 - beta1**n)
                for size, n in zip(sizes, steps, strict=True)
            ]
        torch._foreach_addcdiv_(parameters, first, scale, sizes)
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
