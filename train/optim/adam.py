"""Implements the published optimisers that PyTorch does not have.

The caller sets the rates step by step in ``group["lr"]`` (``schedule.py``). Both updates are
PyTorch's fused AdamW with other numbers: one pass over the weights, where the published loops take
a dozen.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from vlmill.train.devices.foreach import add_, compute_norms, scale_
from vlmill.train.devices.gather import gather_tensor, laid_out_like

# As a step count: the powers of both betas are 0 there, so that nothing is corrected.
ENDLESS = 1e30


def gradient_norms(gradients: Sequence[Tensor], joins: Sequence[int]) -> Float[Tensor, " P"]:
    """Returns the norm of each gradient, float32, on the gradients' device.

    A gradient that joins several tensors of the published code along its first axis counts as that
    number of gradients, which ``joins`` has for each.
    """
    pairs = list(zip(gradients, joins, strict=True))
    local = [part for g, count in pairs if not isinstance(g, DTensor) for part in _parts(g, count)]
    norms = iter(compute_norms(local) if local else ())
    every: list[Tensor] = []
    for gradient, count in pairs:
        if isinstance(gradient, DTensor):
            every += _divided_norms(gradient, count).unbind()
        else:
            every += [next(norms) for _ in range(count)]
    return torch.stack(every)


def _parts(gradient: Tensor, count: int) -> Sequence[Tensor]:
    return gradient.chunk(count) if count > 1 else [gradient]


def _divided_norms(gradient: DTensor, count: int) -> Float[Tensor, " count"]:
    """Returns the norms of a gradient's parts, whose rows are sharded at any position."""
    squares = gradient.float().square()
    by_row = gather_tensor(squares.flatten(1).sum(1) if squares.ndim > 1 else squares)
    return by_row.view(count, -1).sum(1).sqrt()


def clip_each_(
    gradients: Sequence[Tensor],
    joins: Sequence[int],
    norms: Sequence[float] | Float[Tensor, " P"],
    largest: float,
) -> None:
    """Scales each gradient separately to a norm of at most ``largest``, in place (BertAdam).

    ``norms`` are the results of `gradient_norms`. If they are on the host, only the gradients above
    ``largest`` are changed, and by numbers. If they are a tensor, the host does not wait for them,
    but PyTorch launches a kernel for each gradient: 388 in ViLBERT's step.
    """
    if isinstance(norms, Tensor):
        # Not largest / (...), which multiplies by a reciprocal.
        on_device = (torch.full_like(norms, largest) / (norms + 1e-6)).clamp(max=1.0)
        factors: Sequence[Any] = on_device.unbind()
    else:
        # In float32, as the gradients' device would compute them.
        known = np.array(norms, dtype=np.float32) + np.float32(1e-6)
        factors = np.minimum(np.float32(largest) / known, np.float32(1.0)).tolist()
    scaled, numbers, end = list[Tensor](), list[Any](), 0
    for gradient, count in zip(gradients, joins, strict=True):
        start, end = end, end + count
        own = factors[start:end]
        if not isinstance(norms, Tensor) and min(own) >= 1.0:
            continue
        if isinstance(gradient, DTensor):
            rows = torch.tensor(own).repeat_interleave(
                len(gradient) // count if gradient.ndim else 1
            )
            gradient.mul_(laid_out_like(rows.view(-1, *[1] * (gradient.ndim - 1)), gradient))
        elif isinstance(norms, Tensor) and count > 1:
            scaled.append(gradient.view(count, -1))
            numbers.append(on_device[start:end, None])
        else:
            scaled += _parts(gradient, count)
            numbers += own
    if scaled:
        scale_(scaled, numbers)


class _Adam(Optimizer):
    """Keeps Adam's moments; the subclass chooses the numbers of the update.

    ``found_inf``, float32 [] on the parameters' device, makes a step keep weights and moments if it
    is 1, without a wait for its value. The counts of steps include such a step.
    """

    found_inf: Float[Tensor, ""] | None = None

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        if defaults["lr"] < 0 or defaults["eps"] < 0 or defaults["weight_decay"] < 0:
            raise ValueError("lr, eps and weight_decay cannot be negative")
        if not all(0 <= beta < 1 for beta in defaults["betas"]):
            raise ValueError(f"betas={defaults['betas']}: expected numbers from 0 to below 1")
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group, parameters, joins in self._with_gradients():
            self._update(group, parameters, joins)
        return loss

    def _with_gradients(
        self,
    ) -> Iterator[tuple[dict[str, Any], Sequence[Tensor], Sequence[int]]]:
        """Yields each group with its parameters that have a gradient, and their ``joins``."""
        for group in self.param_groups:
            joins = group.get("joins") or [1] * len(group["params"])
            with_gradient = [
                (p, count)
                for p, count in zip(group["params"], joins, strict=True)
                if p.grad is not None
            ]
            if with_gradient:
                parameters, counts = zip(*with_gradient, strict=True)
                yield group, parameters, counts

    def _update(
        self, group: dict[str, Any], parameters: Sequence[Tensor], joins: Sequence[int]
    ) -> None:
        raise NotImplementedError

    def _count(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Counts one more step of each parameter; returns the counts, which include it."""
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["step"] = torch.zeros(())
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        counts = [self.state[parameter]["step"] for parameter in parameters]
        add_(counts, 1)
        return counts

    def _move(
        self, group: dict[str, Any], parameters: Sequence[Tensor], *, lr: float, decay: float
    ) -> None:
        """Adds the gradients to the moments m and v, and updates the parameters.

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
            found_inf=self.found_inf,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=lr,
            weight_decay=decay,
            eps=group["eps"],
            maximize=False,
        )


class BertAdam(_Adam):
    """Optimises as ViLBERT and InterBERT do: Adam without bias correction, clipped per gradient.

    Decay is part of the step: p <- p - lr (m / (sqrt(v) + eps) + decay p). Gradients are clipped in
    place to ``clip`` before they enter the moments; ``clip=0`` disables it. A group's ``joins``
    hold for each parameter the number of tensors of the published code that it joins
    (:func:`clip_each_`).

    ``step`` waits for the device to compute the gradients' norms, unless ``known_norms`` has the
    result of :meth:`gradient_norms`: on the host, as a loop can read it together with its losses,
    or on the device (:func:`clip_each_`).
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
        self.known_norms: Sequence[float] | Tensor = ()  # used by the next step

    def gradient_norms(self) -> Float[Tensor, " P"]:
        """Returns the norms of all gradients that the next step clips, by group."""
        return torch.cat(
            [
                gradient_norms([p.grad for p in parameters if p.grad is not None], joins)
                for group, parameters, joins in self._with_gradients()
            ]
        )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient."""
        try:
            return super().step(closure)
        finally:
            self.known_norms = ()

    def _update(
        self, group: dict[str, Any], parameters: Sequence[Tensor], joins: Sequence[int]
    ) -> None:
        if group["clip"]:
            gradients = [p.grad for p in parameters if p.grad is not None]
            norms = self.known_norms[: sum(joins)]
            self.known_norms = self.known_norms[sum(joins) :]
            if not len(norms):
                norms = gradient_norms(gradients, joins).tolist()
            clip_each_(gradients, joins, norms, group["clip"])
        self._count(parameters)
        self._move(group, parameters, lr=group["lr"], decay=group["weight_decay"])


class TransformersAdamW(_Adam):
    """Optimises with the AdamW of VL-BERT and VLMo (`transformers` 4); PyTorch's differs.

    ``eps`` is added to sqrt(v) before the bias correction. The decay follows the step, and is
    computed from the updated parameter. ``correct_bias=False`` omits the correction.
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
        by_count: dict[int, list[Tensor]] = {}  # one, unless some lacked a gradient in some steps
        counts = torch.stack(self._count(parameters)).tolist()
        for parameter, count in zip(parameters, counts, strict=True):
            by_count.setdefault(int(count), []).append(parameter)
        (beta1, beta2), lr = group["betas"], group["lr"]
        stays = 1 - lr * group["weight_decay"]
        for count, subset in by_count.items():
            size = lr
            if group["correct_bias"]:
                size *= (1 - beta2**count) ** 0.5 / (1 - beta1**count)
            # The share that remains after decay scales the step too: stays (p - size u) for update
            # u.
            decay = (1 - stays) / (size * stays) if size else 0.0
            self._move(group, subset, lr=size * stays, decay=decay)
