"""Replays a training step's forward and backward pass as a CUDA graph.

A graph launches all kernels of a step in one call: the host, which needs two thirds of an eager
step of ViLBERT to launch them one by one, does nothing. A graph has fixed shapes and memory
addresses, so batches are padded (`vlmill.train.loading.budgets`) and copied into tensors that stay.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vlmill.train.loading.batch import Batch, HostBatch
from vlmill.train.loading.budgets import (
    Budget,
    copy_padded,
    find_budget,
    pad_small,
    zeros_like_budget,
)

# Graphs, each with its gradients. Of 1,000 batches of 256 pairs 19 to 34 have another shape.
KEPT = 6

Compute = Callable[[Batch, Tensor], dict[str, Tensor]]


class StepGraph:
    """Computes the gradients of batches by ``compute``, as graphs where the device has them.

    ``compute`` takes a batch and the shares of its labels, leaves gradients in the ``parameters``,
    and returns losses without gradients. The first batch of a shape is computed as usual, which
    also does the warm-up that a graph may not do: the second one is captured. On other devices each
    batch is computed, padded identically.
    """

    def __init__(
        self, compute: Compute, parameters: Sequence[nn.Parameter], device: torch.device
    ) -> None:
        self._compute, self._device = compute, device
        self._parameters = parameters
        self._budget: Budget | None = None
        self._shapes: dict[Budget, _Shape] = {}  # the last one used comes last
        self._pool: Any = None
        self.captured = 0  # graphs, for reports

    def prepare(self, batch: HostBatch) -> "PaddedBatch":
        """Pads a batch and copies it to the device without waiting."""
        budget = self._budget = find_budget(batch, self._budget)
        padded = pad_small(batch, budget)
        if self._device.type == "cuda":
            padded = replace(padded, tensors={k: v.pin_memory() for k, v in padded.tensors.items()})
        on_device = {
            name: tensor.to(self._device, non_blocking=True)
            for name, tensor in {**batch.tensors, **padded.tensors}.items()
        }
        return PaddedBatch(budget, replace(padded, tensors=on_device))

    def __call__(self, padded: "PaddedBatch", shares: Tensor) -> dict[str, Tensor]:
        """Returns the losses of a batch; the parameters have its gradients."""
        shape = self._shapes.pop(padded.budget, None)
        if shape is None:
            shape = _Shape(padded, shares)
            while len(self._shapes) >= KEPT:
                del self._shapes[next(iter(self._shapes))]
        self._shapes[padded.budget] = shape
        shape.fill(padded, shares)
        if self._device.type != "cuda" or not shape.warm:
            shape.warm = True
            with _side_stream(self._device):
                return shape.run(self._compute)
        if shape.captured is None:
            shape.captured = self._capture(shape)
        shape.captured.graph.replay()
        for parameter, gradient in shape.captured.gradients:
            parameter.grad = gradient
        return shape.captured.losses

    def _capture(self, shape: "_Shape") -> "_Captured":
        for parameter in self._parameters:
            parameter.grad = None  # so that the graph's own gradients replace them
        graph = torch.cuda.CUDAGraph()
        # Other threads, which load batches, continue to allocate pinned memory.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            losses = shape.run(self._compute)
        self._pool = graph.pool()
        self.captured += 1
        gradients = [(p, p.grad) for p in self._parameters if p.grad is not None]
        return _Captured(graph, losses, gradients)


@dataclass(frozen=True)
class PaddedBatch:
    """Holds a batch on the device, in the shapes of ``budget``; its `budgets.LARGE` tensors are
    padded when they are copied into a graph's.
    """

    budget: Budget
    batch: HostBatch


@dataclass(frozen=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    losses: dict[str, Tensor]
    gradients: Sequence[tuple[nn.Parameter, Tensor]]


class _Shape:
    """Holds a batch's tensors of one shape on the device; each batch of that shape is copied
    there.
    """

    def __init__(self, padded: PaddedBatch, shares: Tensor) -> None:
        self._batch = zeros_like_budget(padded.batch, padded.budget)
        self._shares = shares.clone()
        self.warm = False
        self.captured: _Captured | None = None

    def fill(self, padded: PaddedBatch, shares: Tensor) -> None:
        """Copies a batch to these tensors."""
        copy_padded(padded.batch, self._batch)
        self._shares.copy_(shares)

    def run(self, compute: Compute) -> dict[str, Tensor]:
        return compute(self._batch.to(self._shares.device), self._shares)


@contextmanager
def _side_stream(device: torch.device) -> Iterator[None]:
    """Computes on another stream, as a graph is captured on one; the current one waits for it."""
    if device.type != "cuda":
        yield
        return
    stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    current = torch.cuda.current_stream(device)
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        yield
    current.wait_stream(stream)
