"""How fast a step could be: operations counted, and the device's rate for products measured."""

import copy
import math
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

# The first product of a BERT-base feed-forward part over 2048 rows. A GPU has it done before the
# next one is asked for: there it is a large one.
SHAPES = {"cpu": (2048, 768, 3072)}
LARGE = (8192, 8192, 8192)
MEASURED_S = 0.2  # long enough to outlast a clock's ramp, short beside a run


def _linear_operations(rows: Sequence[int], weight: Sequence[int], *_: Any, **__: Any) -> int:
    """Of oneDNN's linear layer, which the counter does not know."""
    return 2 * math.prod(rows) * weight[0]


def operations_counter() -> FlopCounterMode:
    """Counts the products of everything inside it, those of `vlmill.models.layers.cpu.linear`
    too.
    """
    known = {}
    if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        known[torch.ops.mkldnn._linear_pointwise] = _linear_operations
    return FlopCounterMode(display=False, custom_mapping=known)


def count_operations(work: Callable[[], object]) -> int:
    """Floating-point operations of the products in ``work``; a multiply-add counts as two.

    Element-wise work is left out, as in models' published counts.
    """
    counter = operations_counter()
    with counter:
        work()
    return counter.get_total_flops()


def product_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of a matrix product on ``device``, the best of a fifth of a second."""
    rows, inner, columns = SHAPES.get(device.type, LARGE)
    # Random numbers, as products of equal ones run up to an eighth faster on GPUs; from a generator
    # of their own, as they would else be taken from dropout's.
    draws = torch.Generator(device).manual_seed(0)
    left = torch.randn(rows, inner, device=device, generator=draws).to(dtype)
    right = torch.randn(inner, columns, device=device, generator=draws).to(dtype)
    best, started = 0.0, time.perf_counter()
    while time.perf_counter() - started < MEASURED_S:
        wait_for(device)
        begun = time.perf_counter()
        left @ right
        wait_for(device)
        best = max(best, 2 * rows * inner * columns / (time.perf_counter() - begun))
    return best


@cache
def _device_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Returns :func:`product_rate`, measured once a process: its runs have one device."""
    return product_rate(device, dtype)


def wait_for(device: torch.device) -> None:
    """Wait until the device has done all that was queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def without_values(module: nn.Module) -> nn.Module:
    """A copy on the meta device, which takes no memory: what it computes has shapes, no numbers."""
    memo: dict[int, object] = {}
    for parameter in module.parameters():
        empty = torch.empty_like(parameter, device="meta")
        memo[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    for buffer in module.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(module, memo)


class MovableBatch(Protocol):
    """A batch in host memory."""

    @property
    def pair_ids(self) -> tuple[str, ...]:
        """Returns the ids of its pairs."""
        ...

    def to(self, device: torch.device | str) -> Any:
        """The batch as a model takes it."""
        ...


def run_without_values(step: Any, batch: MovableBatch) -> None:
    """Runs forward and backward of a `PretrainingStep` on the meta device.

    There is nothing to wait for: a layer that asks the device for a value raises.
    """
    shares = torch.ones(len(step.names), device="meta")
    numbers = torch.rand(2, len(batch.pair_ids), device="meta")
    loss, _ = step(batch.to("meta"), shares, numbers)
    loss.backward()


class Throughput:
    """Model FLOPs utilisation: what a step's products would take, beside what the device can do.

    The products of the first step's parts are counted on ``step``, a copy `without_values`: a
    counter around the step itself keeps torch.compile from its work; without one nothing is
    counted. The device is measured once, with the same dtype.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, step: nn.Module | None) -> None:
        self._device, self._dtype = device, dtype
        self._step = step
        self._operations = 0
        self._rate = 0.0

    def count(self, parts: Sequence[MovableBatch]) -> None:
        """Counts the products of a step, if none has been counted yet."""
        step = self._step
        if step is None:
            return
        self._operations = sum(
            count_operations(partial(run_without_values, step, part)) for part in parts
        )
        self._rate = _device_rate(self._device, self._dtype)
        self._step = None

    def utilisation(self, steps_per_second: float) -> dict[str, float]:
        """``mfu``: the share of the device's rate that ``steps_per_second`` need."""
        if not self._rate:
            return {}
        return {"mfu": round(self._operations * steps_per_second / self._rate, 4)}
