"""Runs operations on many tensors: one call where PyTorch's private functions work, else a loop.

On a GPU one call is one kernel, where a loop launches one kernel per tensor.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vlmill.models.probes import works


def compute_norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Returns the norm of each tensor, float32."""
    if has_foreach():
        return list(torch._foreach_norm(list(tensors), dtype=torch.float32))
    return [torch.linalg.vector_norm(tensor, dtype=torch.float32) for tensor in tensors]


def scale_(tensors: Sequence[Tensor], factors: Sequence[float | Tensor]) -> None:
    """Multiplies each tensor by its factor, in place. Tensors as factors need a kernel each."""
    if has_foreach():
        torch._foreach_mul_(list(tensors), list[Any](factors))
        return
    for tensor, factor in zip(tensors, factors, strict=True):
        tensor.mul_(factor)


def add_(tensors: Sequence[Tensor], number: float) -> None:
    """Adds a number to each tensor, in place."""
    if has_foreach():
        torch._foreach_add_(list(tensors), number)
        return
    for tensor in tensors:
        tensor.add_(number)


def lerp_(tensors: Sequence[Tensor], ends: Sequence[Tensor], share: float) -> None:
    """Interpolates between each tensor and its end, in place; share 1 is the end."""
    if has_foreach():
        torch._foreach_lerp_(list(tensors), list(ends), share)
        return
    for tensor, end in zip(tensors, ends, strict=True):
        tensor.lerp_(end, share)


def copy_(tensors: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copies each source into its tensor, which may have another type."""
    if has_foreach():
        torch._foreach_copy_(list(tensors), list(sources))
        return
    for tensor, source in zip(tensors, sources, strict=True):
        tensor.copy_(source)


@functools.cache
def has_foreach() -> bool:
    """Returns whether PyTorch's private functions for many tensors work as they are called here."""

    def matches() -> bool:
        ones = [torch.ones(4, dtype=torch.float32, device="cpu") for _ in range(2)]
        norms = torch._foreach_norm(ones, dtype=torch.float32)
        torch._foreach_mul_(ones, [2.0, 3.0])
        torch._foreach_mul_(ones, list(torch.ones(2, dtype=torch.float32, device="cpu").unbind()))
        torch._foreach_add_(ones, 1)
        torch._foreach_lerp_(ones, [torch.zeros_like(one) for one in ones], 0.5)
        wide = [torch.zeros_like(one, dtype=torch.float64) for one in ones]
        torch._foreach_copy_(wide, ones)
        found = [*(norm.item() for norm in norms), *(one[0].item() for one in wide)]
        return found == [2.0, 2.0, 1.5, 2.0]

    with torch.no_grad():
        return works(matches)
