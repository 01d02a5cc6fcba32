"""Measures steps: their operations, the device's rate of products, and the memory in use."""

import copy
import math
import resource
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

# The first product of a BERT-base feed-forward part over 2048 rows. A GPU finishes it before the
# next one is requested, so its product is larger.
SHAPES = {"cpu": (2048, 768, 3072)}
LARGE = (8192, 8192, 8192)
RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # the unit of getrusage, in bytes
MEASURED_S = 0.2  # long enough to outlast a clock's ramp, short compared with a run


def _linear_operations(rows: Sequence[int], weight: Sequence[int], *_: Any, **__: Any) -> int:
    """Returns the operations of oneDNN's linear layer, which the counter does not know."""
    return 2 * math.prod(rows) * weight[0]


def operations_counter() -> FlopCounterMode:
    """Counts all products inside it, including the ones in `vlmill.models.layers.cpu.linear`."""
    known = {}
    if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        known[torch.ops.mkldnn._linear_pointwise] = _linear_operations
    return FlopCounterMode(display=False, custom_mapping=known)


def count_operations(work: Callable[[], object]) -> int:
    """Returns the floating-point operations of the products in ``work``; a multiply-add is two.

    Element-wise operations are excluded, as in models' published counts.
    """
    counter = operations_counter()
    with counter:
        work()
    return counter.get_total_flops()


def product_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Returns operations per second of a matrix product on ``device``, the best in 0.2 seconds."""
    rows, inner, columns = SHAPES.get(device.type, LARGE)
    # Random numbers, as products of equal ones run up to an eighth faster on GPUs; from a separate
    # generator, which leaves dropout's unchanged.
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
    """Returns :func:`product_rate`, measured once per process: its runs have one device."""
    return product_rate(device, dtype)


def wait_for(device: torch.device) -> None:
    """Waits until the device has completed all queued operations."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory(device: torch.device) -> dict[str, int]:
    """Returns the peak memory in bytes by its name in the log, without waiting for a device.

    On CUDA ``device_memory_bytes`` counts all tensors together, as PyTorch does, without its cache
    and the memory of libraries. Elsewhere, where tensors are in the process's memory,
    ``process_memory_bytes`` is its peak resident memory, including mapped files.
    """
    if device.type == "cuda":
        return {"device_memory_bytes": torch.cuda.max_memory_allocated(device)}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"process_memory_bytes": peak * RSS_UNIT}


def without_values(module: nn.Module) -> nn.Module:
    """Returns a copy on the meta device: it takes no memory, and results have only shapes."""
    memo: dict[int, object] = {}
    for parameter in module.parameters():
        empty = torch.empty_like(parameter, device="meta")
        memo[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    for buffer in module.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(module, memo)


class MovableBatch(Protocol):
    """Represents a batch in host memory."""

    @property
    def pair_ids(self) -> tuple[str, ...]:
        """Returns the ids of its pairs."""
        ...

    def to(self, device: torch.device | str) -> Any:
        """Returns the batch as a model takes it."""
        ...


def run_without_values(step: Any, batch: MovableBatch) -> None:
    """Runs forward and backward of a `PretrainingStep` on the meta device.

    The meta device never waits: a layer that reads a value from the device raises.
    """
    shares = torch.ones(len(step.names), device="meta")
    numbers = torch.rand(2, len(batch.pair_ids), device="meta")
    loss, _ = step(batch.to("meta"), shares, numbers)
    loss.backward()


class Throughput:
    """Measures model FLOPs utilisation: the rate of a step's products relative to the device's
    rate.

    The products of the first step's parts are counted on ``step``, a copy `without_values`: a
    counter around the step itself keeps torch.compile from its work; without ``step`` nothing is
    counted. The device is measured once, with the same dtype.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, step: nn.Module | None) -> None:
        self._device, self._dtype = device, dtype
        self._step = step
        self._operations = 0
        self._rate = 0.0

    def count(self, parts: Sequence[MovableBatch]) -> None:
        """Counts the products of the first step, and releases ``step``."""
        if self._step is not None:
            works = (partial(run_without_values, self._step, part) for part in parts)
            self._operations = sum(map(count_operations, works))
            self._rate = _device_rate(self._device, self._dtype)
            self._step = None

    def utilisation(self, steps_per_second: float) -> dict[str, float]:
        """Returns ``mfu``: the share of the device's rate that ``steps_per_second`` need."""
        if not self._rate:
            return {}
        return {"mfu": round(self._operations * steps_per_second / self._rate, 4)}
