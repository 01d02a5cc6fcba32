"""Casts the weights of linear layers to half precision once per step, in one pass.

Autocast casts each weight where it is used and each gradient in the backward pass: two kernels per
tensor, a third of all kernels that a step of ViLBERT launches. The numbers are the same, forward
and backward.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from vlmill.models.layers.operators import LayerNorm
from vlmill.train.devices.foreach import copy_

NAMES = ("weight", "bias")


class WeightCasts:
    """Replaces the weights in the products of ``module`` by copies in ``dtype`` while a step runs.

    Gradients of the copies become gradients of the parameters, float32. Word embeddings are
    unchanged: the ones that are also decoders are cast by autocast, as are weights that other
    modules hold.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self._dtype = dtype
        # The modules and names of each weight: some weights have several.
        self._holders: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
        for part in filter(_computes_in_half, module.modules()):
            for name in NAMES:
                parameter = getattr(part, name)
                if parameter is not None and parameter.dtype == torch.float32:
                    self._holders.setdefault(parameter, []).append((part, name))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Computes with copies of the current weights, in the forward and backward pass."""
        copies: Sequence[Tensor] = _Cast.apply(self._dtype, *self._holders)
        # An instance's own attribute is found before a parameter of that name.
        for holders, weight in zip(self._holders.values(), copies, strict=True):
            for part, name in holders:
                vars(part)[name] = weight
        try:
            yield
        finally:
            for holders in self._holders.values():
                for part, name in holders:
                    del vars(part)[name]


def _computes_in_half(part: nn.Module) -> bool:
    """Returns whether autocast would cast a module's parameters, each once for all of its uses."""
    is_norm = isinstance(part, LayerNorm) and part.gives_half
    return is_norm or isinstance(part, nn.Linear | nn.Conv2d)


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        dtype, *weights = arguments
        ctx.set_materialize_grads(False)
        return tuple(_copied(weights, dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        wide = iter(_copied([grad for grad in grads if grad is not None], torch.float32))
        return None, *(None if grad is None else next(wide) for grad in grads)


def _copied(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    if copies:
        copy_(copies, tensors)
    return copies
