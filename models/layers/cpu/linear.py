"""Computes linear layers with oneDNN if it is faster. M rows, K inputs, N outputs.

On CPUs PyTorch multiplies float32 matrices with MKL, which is made for Intel's processors. On these
MKL is faster for many rows (976 x 3072 x 768 on two cores of a Xeon with AVX-512: 332 against 320
GFLOP/s forward, 342 against 171 for the gradient of the input). For few rows oneDNN, which PyTorch
contains for convolutions, is faster (forward, over six layers' sizes, 1 % faster at 296 rows, 11 %
at 200, 8 % at 112; the gradient of the input never). On other processors oneDNN is always faster:
at 288 x 768 x 3072 on two cores of an AMD EPYC 205 against 180 GFLOP/s forward and 210 against 190
for the gradient of the input, at 112 rows 174 against 113 and 184 against 115. For the gradient of
the weights it is never faster, because it copies transposed inputs.

oneDNN converts a weight to blocks before each product, which takes as long as 130 rows of it. If
weights do not change, as in evaluation, they are converted once (`cache_packed_weights`): one core
of an AMD EPYC multiplies 276 rows by 768 x 3072 at 105 against 90 GFLOP/s, 1,000 at 106 against
101.
"""

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vlmill.models.probes import works

CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
CACHED = "16"  # enough for a layer's products, which all layers share
PROCESSORS = Path("/proc/cpuinfo")
FEW_ROWS = 256  # up to this number oneDNN is faster forward even if MKL is fast
WORTH = 128  # number of sequences from which converting weights repays its cost

# A weight by its memory address, its shape and its strides, with its blocks.
_Blocks = dict[tuple[int, torch.Size, tuple[int, ...]], tuple[Tensor, Tensor]]
_KEPT: ContextVar[_Blocks | None] = ContextVar("kept", default=None)


@contextmanager
def cache_packed_weights(num_sequences: int) -> Iterator[None]:
    """Keeps weights in oneDNN's blocks while no gradient is computed and none of them changes.

    They are in memory twice until the outermost such block ends. Few sequences are not cached for.
    """
    cache = _KEPT.get()
    token = _KEPT.set({} if cache is None and num_sequences >= WORTH else cache)
    try:
        yield
    finally:
        _KEPT.reset(token)


def _get_packed_weight(weight: Float[Tensor, "N K"], num_rows: int) -> Tensor:
    """Returns a weight's cached blocks, or the weight if it is not cached."""
    cache = _KEPT.get()
    viewed = getattr(weight, "_base", None)  # private: without it no view is cached
    base = weight if viewed is None else viewed
    # A tensor that is not a parameter may be freed, and another one may reuse its memory.
    if cache is None or num_rows < 2 or not isinstance(base, nn.Parameter) or not packs_weights():
        return weight
    key = (weight.data_ptr(), weight.shape, weight.stride())
    if key not in cache:
        blocks = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
        cache[key] = (weight, blocks)  # keeps the weight, so that its memory is not reused
    return cache[key][1]


@functools.cache
def mkl_is_fast() -> bool:
    """Returns whether this machine's CPU is a processor that MKL is made for."""
    is_intel = PROCESSORS.exists() and "GenuineIntel" in PROCESSORS.read_text(encoding="utf-8")
    return is_intel and torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]


@functools.cache
def _bound_caches() -> None:
    """Limits oneDNN's caches, unless the environment sets their sizes.

    oneDNN caches data by number of rows, and packed rows have a new number in every batch: after
    300 batches four layers of width 192 held 0.8 GB, with this limit 0.1. Recreating all each time
    takes 1 to 2 % longer. oneDNN reads the limit once, when a process first uses it.
    """
    for name in CACHES:
        os.environ.setdefault(name, CACHED)


def _product(
    rows: Float[Tensor, "M K"],
    weight: Float[Tensor, "N K"],
    bias: Float[Tensor, " N"] | None,
    act: str = "none",
) -> Float[Tensor, "M N"]:
    how = "none" if act == "gelu" else ""  # the exact GELU, without tanh
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, act, [], how)
    return product


def _probed() -> tuple[Tensor, Tensor]:
    """Returns two rows and a weight on the CPU, regardless of the default device."""
    numbers = torch.linspace(-1.0, 1.0, 20, dtype=torch.float32, device="cpu")
    return numbers[:8].view(2, 4), numbers[8:].view(3, 4)


@functools.cache
def has_onednn_linear() -> bool:
    """Returns whether PyTorch's private linear layer of oneDNN works as it is called here."""
    _bound_caches()

    def matches() -> bool:
        rows, weight = _probed()
        bias = rows[0, :3]
        expected = F.linear(rows, weight, bias)
        return torch.allclose(_product(rows, weight, bias), expected, atol=1e-5) and torch.allclose(
            _product(rows, weight, bias, "gelu"), F.gelu(expected), atol=1e-5
        )

    return torch.backends.mkldnn.is_available() and works(matches)  # type: ignore[no-untyped-call]


@functools.cache
def packs_weights() -> bool:
    """Returns whether PyTorch's private function lays a weight out in oneDNN's blocks."""

    def matches() -> bool:
        rows, weight = _probed()
        blocks = torch.ops.mkldnn._reorder_linear_weight(weight)
        return torch.allclose(_product(rows, blocks, None), F.linear(rows, weight), atol=1e-5)

    return works(matches)


class _OneDnnLinear(torch.autograd.Function):
    """Computes x W^T + b by oneDNN, the gradient of x by whichever is faster."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.has_bias = bias is not None
        return _product(rows, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        rows, weight = ctx.saved_tensors
        (grad,) = grads
        grad = grad.contiguous()
        need_rows, need_weight, need_bias = ctx.needs_input_grad
        grad_rows = None
        if need_rows:
            grad_rows = grad.mm(weight) if mkl_is_fast() else _product(grad, weight.t(), None)
        return (
            grad_rows,
            grad.t().mm(rows) if need_weight else None,
            grad.sum(0) if need_bias and ctx.has_bias else None,
        )


def is_faster(hidden: Float[Tensor, "*rows K"], weight: Float[Tensor, "N K"]) -> bool:
    """Returns whether `onednn_linear` is faster: for float32, not autocast, not compiled."""
    return (
        hidden.device.type == "cpu"
        and hidden.dtype == torch.float32
        and weight.dtype == torch.float32
        and hidden.numel() > 0
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
        and has_onednn_linear()
        and not (hidden.numel() > FEW_ROWS * hidden.shape[-1] and mkl_is_fast())
    )


def onednn_linear(
    hidden: Float[Tensor, "*rows K"],
    weight: Float[Tensor, "N K"],
    bias: Float[Tensor, " N"] | None,
    act: str = "none",
) -> Float[Tensor, "*rows N"]:
    """Computes ``F.linear`` by oneDNN, for tensors that `is_faster` accepts.

    With ``act`` "gelu" the product includes the activation, if no gradient is computed.
    """
    _bound_caches()
    rows = hidden.reshape(-1, hidden.shape[-1])
    if torch.is_grad_enabled():
        product: Tensor = _OneDnnLinear.apply(rows, weight, bias)
    else:
        product = _product(rows, _get_packed_weight(weight, len(rows)), bias, act)
    return product.view(*hidden.shape[:-1], len(weight))
