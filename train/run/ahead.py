"""Queues a device's work before the host reads a step's numbers.

Otherwise the device idles after each backward pass: the host waits for the loss, then launches the
optimizer and prepares the next batch. With these a step's update and the copies of the next batch
are queued first, and the update leaves the weights unchanged if the step is not finite.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

PartT = TypeVar("PartT")


class Uploads(Generic[PartT]):
    """Copies the part that the next step begins with, while the device computes the current step.

    ``copy`` copies a part to the device without waiting. On CUDA it runs on a stream of its own.
    """

    def __init__(self, copy: Callable[[PartT], Any], device: torch.device) -> None:
        self._copy, self._device = copy, device
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._started: tuple[PartT, Any] | None = None
        self._in_use: Any = None

    def start(self, part: PartT) -> None:
        """Starts to copy a part. On a CPU it does nothing: there, copying checks a part's values,
        and an error belongs to the part's own step.
        """
        if self._device.type == "cpu":
            return
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            self._started = part, self._copy(part)

    def take(self, part: PartT) -> Any:
        """Returns the part's copy, which is made now if it was not started.

        A copy that was started stays in memory until the next one is taken. The host has read the
        numbers of its step by then, so the device no longer needs it.
        """
        started, self._started = self._started, None
        if started is None or started[0] is not part:
            return self._copy(part)
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
        self._in_use = started[1]
        return self._in_use


class StepInputs(Generic[PartT]):
    """Takes the ``count`` parts of each step from ``parts``; ``seconds`` is the time it waited.

    With ``uploads`` it can fetch a step's parts while the device computes the previous step.
    """

    def __init__(
        self, parts: Iterator[PartT], count: int, uploads: Uploads[PartT] | None = None
    ) -> None:
        self._parts, self._count, self._uploads = parts, count, uploads
        self._fetched: list[PartT] | Exception | None = None
        self.seconds = 0.0

    def fetch(self) -> None:
        """Takes the parts of the next step, if there is one, and starts to copy the first. An error
        is raised when that step takes its parts.
        """
        try:
            self._fetched = self._next()
        except Exception as error:
            self._fetched = error
            return
        if self._uploads is not None:
            self._uploads.start(self._fetched[0])

    def take(self) -> list[PartT]:
        """Returns the parts of the next step."""
        fetched, self._fetched = self._fetched, None
        if isinstance(fetched, Exception):
            raise fetched
        return self._next() if fetched is None else fetched

    def _next(self) -> list[PartT]:
        started = time.perf_counter()
        try:
            return [next(self._parts) for _ in range(self._count)]
        finally:
            self.seconds += time.perf_counter() - started


def start_reading(numbers: Tensor) -> Callable[[], list[float]]:
    """Queues the copy of ``numbers`` to the host; returns the function that waits for them."""
    if numbers.device.type != "cuda":
        return numbers.tolist
    copied = torch.empty_like(numbers, device="cpu", pin_memory=True)
    copied.copy_(numbers, non_blocking=True)
    event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()

    def read() -> list[float]:
        event.synchronize()
        return copied.tolist()

    return read
