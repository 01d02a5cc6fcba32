"""Turns a step's gradients into new weights: the rate, the clip and the optimiser."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from jaxtyping import Float
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm
from torch.optim import AdamW, Optimizer

from vlmill.train.optim.adam import BertAdam, TransformersAdamW


@dataclass(frozen=True, kw_only=True)
class Update:
    """Holds an optimiser with its learning rates and its clip.

    ``rate`` gives the learning rate of the stage's step, from 1; a group's own is ``rate`` times
    it. ``clip_gradients`` clips in place, after float16's scale is removed, and returns the whole
    gradient's norm from before, float32 [1 + P]: BertAdam's is followed by each tensor's.
    """

    optimizer: Optimizer
    rate: Callable[[int], float]
    clip_gradients: Callable[[Optimizer, Accelerator], Float[Tensor, " 1_P"]]

    def set_rate(self, step: int) -> float:
        """Gives every group its share of the rate of the stage's ``step``; returns the rate."""
        rate = self.rate(step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get("rate", 1.0)
        return rate

    def clip(self, accelerator: Accelerator) -> Float[Tensor, " 1_P"]:
        """Clips the gradients; returns the norms of ``clip_gradients``."""
        return self.clip_gradients(self.optimizer, accelerator)

    @property
    def skips_on_device(self) -> bool:
        """Returns whether `apply` supports ``found_inf``: the optimizer uses a fused Adam."""
        is_fused = isinstance(self.optimizer, AdamW) and bool(self.optimizer.defaults["fused"])
        return is_fused or isinstance(self.optimizer, BertAdam | TransformersAdamW)

    def apply(
        self, tensor_norms: Sequence[float] | Tensor, found_inf: Float[Tensor, ""] | None = None
    ) -> None:
        """Updates the weights and removes the gradients.

        ``tensor_norms`` follow the whole norm in the result of :meth:`clip`, on the host or the
        device. Weights and moments stay unchanged if ``found_inf`` is 1; no one waits for it.
        """
        optimizer = unwrapped_optimizer(self.optimizer)
        if isinstance(optimizer, BertAdam):
            optimizer.known_norms = tensor_norms
        if found_inf is not None:
            optimizer.found_inf = found_inf  # type: ignore[attr-defined]
        self.optimizer.step()
        if found_inf is not None:
            del optimizer.found_inf  # type: ignore[attr-defined]
        self.optimizer.zero_grad(set_to_none=True)


def clip_whole(
    optimizer: Optimizer, accelerator: Accelerator, *, largest: float
) -> Float[Tensor, " 1_P"]:
    """Clips the whole gradient to the norm ``largest`` (0: no limit); returns its norm from before.

    BertAdam clips each tensor separately in its own step: the norms that it needs for that follow.
    """
    optimizer = unwrapped_optimizer(optimizer)
    parameters = [
        p for group in optimizer.param_groups for p in group["params"] if p.grad is not None
    ]
    if not parameters:
        return torch.zeros(1, device=accelerator.device)
    if largest and not isinstance(optimizer, BertAdam):
        norm = accelerator.clip_grad_norm_(parameters, largest)
        return full_norm(norm).reshape(1)
    accelerator.unscale_gradients()
    if isinstance(optimizer, BertAdam):
        norms = optimizer.gradient_norms()
        return torch.cat([torch.linalg.vector_norm(norms).reshape(1), norms])
    return full_norm(get_total_norm([p.grad for p in parameters])).reshape(1)


def full_norm(norm: Tensor) -> Tensor:
    """Returns a norm in float32, also of gradients that are divided among processes."""
    total = norm.full_tensor() if isinstance(norm, DTensor) else norm
    return total.detach().float()


def unwrapped_optimizer(optimizer: Optimizer) -> Optimizer:
    """Returns the optimizer inside the one that accelerate makes for float16."""
    inside: Optimizer = getattr(optimizer, "optimizer", optimizer)
    return inside
