"""Casts the weights of linear layers to half precision once a step, all in one pass.

Autocast casts each weight where it is used and each gradient on its way back: two kernels a tensor,
a third of all that a step of ViLBERT launches. The numbers are the same, forward and backward.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

# What autocast casts once for all uses: the parameters of products, by the modules that hold them.
OF_PRODUCTS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Linear: ("weight", "bias"),
    nn.Conv2d: ("weight", "bias"),
}


class WeightCasts:
    """Gives the products of ``module`` copies of their weights in ``dtype`` while a step runs.

    Gradients of the copies become those of the parameters, float32. Tables of words stay: those
    that are also decoders are cast by autocast. Parameters that are divided among processes are
    refused, as these are gathered in half precision anyway.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._places: list[tuple[nn.Module, str]] = []
        self._numbers: list[int] = []  # of the weights, by place: a weight may have several
        weights: dict[int, int] = {}
        self._weights: list[nn.Parameter] = []
        for part in module.modules():
            for kind, names in OF_PRODUCTS.items():
                if isinstance(part, kind):
                    for name in names:
                        parameter = getattr(part, name)
                        if parameter is None or parameter.dtype != torch.float32:
                            continue
                        if id(parameter) not in weights:
                            weights[id(parameter)] = len(self._weights)
                            self._weights.append(parameter)
                        self._places.append((part, name))
                        self._numbers.append(weights[id(parameter)])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Computes with copies of the weights as they are now, in the forward and backward pass."""
        copies: Sequence[Tensor] = _Cast.apply(self._dtype, *self._weights)
        # An instance's own attribute is found before a parameter of that name.
        for (part, name), number in zip(self._places, self._numbers, strict=True):
            vars(part)[name] = copies[number]
        try:
            yield
        finally:
            for part, name in self._places:
                del vars(part)[name]


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
        torch._foreach_copy_(copies, list(tensors))
    return copies
