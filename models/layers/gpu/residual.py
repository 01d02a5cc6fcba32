"""Computes the residual sum with layer scale and drop path, with gradients by a kernel.

The first backward pass imports the kernel (`residual_kernel`), because Triton is not installed
everywhere.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def sums_by_kernel(branch: Float[Tensor, "*rows H"]) -> bool:
    """Returns whether `add_scaled` supports a branch: on CUDA.

    It does not while torch.compile traces, which fuses these operators with adjacent ones.
    """
    return branch.device.type == "cuda" and not torch.compiler.is_compiling()


def add_scaled(
    hidden: Float[Tensor, "*rows H"],
    branch: Float[Tensor, "*rows H"],
    scale: Float[Tensor, " H"],
    drop: Float[Tensor, "*factors 1"] | None,
) -> Float[Tensor, "*rows H"]:
    """Computes hidden + branch * scale * drop.

    ``drop`` is [B, 1, 1] for rows [B, N, H] and [R, 1] for rows [R, H].
    """
    total: Tensor = _AddScaled.apply(hidden, branch, scale, drop)
    return total


class _AddScaled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, branch: Tensor, scale: Tensor, drop: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(branch, scale, drop)
        # Autocast would first write the branch in float32; the operator reads either type.
        with torch.autocast(hidden.device.type, enabled=False):
            return torch.addcmul(hidden, branch, scale if drop is None else scale * drop)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from vlmill.models.layers.gpu.residual_kernel import scaled_gradients

        branch, scale, drop = ctx.saved_tensors
        of_branch, of_scale = scaled_gradients(gradient, branch, scale, drop)
        return gradient, of_branch, of_scale, None
