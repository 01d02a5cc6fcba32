"""Implements the published optimisers that PyTorch does not have.

Rates are set from outside, step by step, with ``group["lr"]`` (``schedule.py``). Both updates are
PyTorch's fused AdamW with other numbers: one pass over the weights, where the published loops take
a dozen.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from vlmill.train.devices.gather import gather_tensor, laid_out_like

# As a count of steps: the powers of both betas are 0 there, so that nothing is corrected.
ENDLESS = 1e30


def clip_each_(gradients: Sequence[Tensor], largest: float, joins: Sequence[int] = ()) -> None:
    """Scales each gradient for itself to a norm of at most ``largest``, in place (BertAdam).

    A gradient that ``joins`` several tensors along its first axis is as many gradients; without
    ``joins`` each is one.
    """
    pieces: list[Tensor] = []
    for gradient, count in zip(gradients, joins or [1] * len(gradients), strict=True):
        if isinstance(gradient, DTensor):
            _clip_divided_(gradient, largest, count)
        else:
            pieces += gradient.chunk(count) if count > 1 else [gradient]
    if pieces:
        # Once for all: 500 tensors' factors one by one were half of ViLBERT's step on a GPU.
        factors = _factor(torch.stack(torch._foreach_norm(pieces)), largest)
        torch._foreach_mul_(pieces, list(factors.unbind()))


def _factor(norm: Tensor, largest: float) -> Tensor:
    return (largest / (norm + 1e-6)).clamp(max=1.0)


def _clip_divided_(gradient: DTensor, largest: float, count: int) -> None:
    """The same of a gradient of which processes hold rows, wherever its ``count`` parts end."""
    squares = gradient.square()
    by_row = gather_tensor(squares.flatten(1).sum(1) if squares.ndim > 1 else squares)
    factors = _factor(by_row.view(count, -1).sum(1).sqrt(), largest)
    rows = factors.repeat_interleave(len(by_row) // count)
    gradient.mul_(laid_out_like(rows.view(-1, *[1] * (gradient.ndim - 1)), gradient))


class _Adam(Optimizer):
    """Adam's moments; which numbers the update takes is the subclass's."""

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
            joins = group.get("joins") or [1] * len(group["params"])
            with_gradient = [
                (p, count)
                for p, count in zip(group["params"], joins, strict=True)
                if p.grad is not None
            ]
            if with_gradient:
                parameters, counts = zip(*with_gradient, strict=True)
                self._update(group, parameters, counts)
        return loss

    def _update(
        self, group: dict[str, Any], parameters: Sequence[Tensor], joins: Sequence[int]
    ) -> None:
        raise NotImplementedError

    def _count(self, parameters: Sequence[Tensor]) -> list[int]:
        """Counts one more step of each parameter; returns the counts, with this step in them."""
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["step"] = torch.zeros(())
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
            state["step"] += 1
        return [int(self.state[p]["step"]) for p in parameters]

    def _move(
        self, group: dict[str, Any], parameters: Sequence[Tensor], *, lr: float, decay: float
    ) -> None:
        """Takes the gradients into the moments m and v, and moves the parameters.

        p <- (1 - lr decay) p - lr m / (sqrt(v) + eps).
        """
        endless = torch.full((), ENDLESS, device=parameters[0].device)
        beta1, beta2 = group["betas"]
        adamw(
            list(parameters),
            [p.grad for p in parameters if p.grad is not None],
            [self.state[p]["exp_avg"] for p in parameters],
            [self.state[p]["exp_avg_sq"] for p in parameters],
            [],
            [endless] * len(parameters),
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=lr,
            weight_decay=decay,
            eps=group["eps"],
            maximize=False,
        )


class BertAdam(_Adam):
    """Optimises as ViLBERT and InterBERT do: Adam without bias correction, each gradient clipped
    for itself.

    Decay is part of the step: p <- p - lr (m / (sqrt(v) + eps) + decay p). Gradients are clipped in
    place to ``clip`` before they enter the moments; no clip with ``clip=0``. A group's ``joins``
    say of each parameter how many tensors of the published code it joins (:func:`clip_each_`).
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

    def _update(
        self, group: dict[str, Any], parameters: Sequence[Tensor], joins: Sequence[int]
    ) -> None:
        if group["clip"]:
            clip_each_([p.grad for p in parameters if p.grad is not None], group["clip"], joins)
        self._count(parameters)
        self._move(group, parameters, lr=group["lr"], decay=group["weight_decay"])


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

    def _update(
        self, group: dict[str, Any], parameters: Sequence[Tensor], joins: Sequence[int]
    ) -> None:
        by_count: dict[int, list[Tensor]] = {}  # one, but for what lacked a gradient in some steps
        for parameter, count in zip(parameters, self._count(parameters), strict=True):
            by_count.setdefault(count, []).append(parameter)
        (beta1, beta2), lr = group["betas"], group["lr"]
        stays = 1 - lr * group["weight_decay"]
        for count, subset in by_count.items():
            size = lr
            if group["correct_bias"]:
                size *= (1 - beta2**count) ** 0.5 / (1 - beta1**count)
            # What is left after decay is of the step too: stays (p - size u) for update u.
            decay = (1 - stays) / (size * stays) if size else 0.0
            self._move(group, subset, lr=size * stays, decay=decay)
