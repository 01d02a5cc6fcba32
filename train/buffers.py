"""Memory of batches that are gone, for those that come.

The system gives fresh memory page by page, each when it is first written to: for 13 MB of features
that takes longer than to copy them (measured: 128 us a picture of 0.4 MB, of 53 us without).
"""

import math
import threading
import weakref

import torch
from torch import Tensor

KEPT = 3  # blocks that wait for a batch: one that is filled, one that waits, one in use
LARGER = 1.5  # times as large as needed: a block may be


class Buffers:
    """Gives tensors whose memory comes back as soon as nothing refers to it; for any thread."""

    def __init__(self) -> None:
        self._free: list[Tensor] = []
        self._lock = threading.Lock()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor of any content, as `torch.empty`."""
        size = math.prod(shape) * dtype.itemsize
        if not size:
            return torch.empty(shape, dtype=dtype)
        block = self._taken(size)
        array = block.numpy()  # a tensor made of it holds on to it, and so do all of its views
        weakref.finalize(array, self._give_back, block).atexit = False
        return torch.from_numpy(array)[:size].view(dtype).view(shape)

    def _taken(self, size: int) -> Tensor:
        with self._lock:
            for at in reversed(range(len(self._free))):  # the last one may be in the cache still
                if size <= len(self._free[at]) <= LARGER * size:
                    return self._free.pop(at)
        return torch.empty(size, dtype=torch.uint8)

    def _give_back(self, block: Tensor) -> None:
        with self._lock:
            self._free = [*self._free, block][-KEPT:]
