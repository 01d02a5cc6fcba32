"""Shares memory as a ring: worker processes write images into its slots instead of a pipe.

This process assigns a slot to each task and frees it. Workers own no slots, so a killed worker
loses none, and no worker writes into another task's slot.
"""

import math
import mmap
import os
import sys
import tempfile
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]
PORTABLE = 1  # cudaHostRegisterPortable: for all devices of the process


@dataclass(frozen=True, kw_only=True)
class SlotArray:
    """Represents an array at the beginning of a slot."""

    shape: tuple[int, ...]
    dtype: str


class SlotMemory:
    """Holds memory that processes share by a file descriptor, in slots of ``slot_bytes``.

    The system allocates a page when it is first written. /dev/shm, which is small in containers, is
    not used.
    """

    def __init__(self, descriptor: int, num_slots: int, slot_bytes: int) -> None:
        self._descriptor = descriptor
        self.num_slots, self.slot_bytes = num_slots, slot_bytes
        self.mapped = mmap.mmap(descriptor, num_slots * slot_bytes)
        weakref.finalize(self, os.close, descriptor)

    @classmethod
    def create(cls, num_slots: int, slot_bytes: int) -> "SlotMemory":
        """Creates memory that is freed with the last process that uses it."""
        descriptor = create_file()
        os.truncate(descriptor, num_slots * slot_bytes)
        return cls(descriptor, num_slots, slot_bytes)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return attach, (DupFd(self._descriptor), self.num_slots, self.slot_bytes)

    def holds(self, array: Array) -> bool:
        """Returns whether an array fits into a slot."""
        return array.nbytes <= self.slot_bytes

    def write(self, slot: int, array: Array) -> SlotArray:
        """Copies an array to the beginning of a slot."""
        self.view(slot, array.nbytes).view(array.dtype).reshape(array.shape)[...] = array
        return SlotArray(shape=array.shape, dtype=array.dtype.str)

    def view(self, slot: int, num_bytes: int) -> Array:
        """Returns the first bytes of a slot."""
        return np.frombuffer(self.mapped, np.uint8, num_bytes, slot * self.slot_bytes)


def create_file() -> int:
    """Returns the descriptor of a file without a name, in memory if the system supports it."""
    if sys.platform == "linux":
        return os.memfd_create("images", os.MFD_CLOEXEC)
    descriptor, path = tempfile.mkstemp()
    os.unlink(path)
    return descriptor


def attach(duplicate: Any, num_slots: int, slot_bytes: int) -> SlotMemory:
    """Opens another process's memory."""
    return SlotMemory(duplicate.detach(), num_slots, slot_bytes)


class PixelRing:
    """Provides slots for tasks, and arrays in them. Thread-safe.

    A CUDA ``device`` copies from the slots asynchronously.
    """

    def __init__(self, num_slots: int, slot_bytes: int, device: torch.device) -> None:
        self.memory = SlotMemory.create(num_slots, slot_bytes)
        # Without a lock, since arrays may be deleted anywhere. The last used slot is taken first:
        # it is in a cache.
        self._free = deque(range(num_slots))
        self._unpin = pin(self.memory.mapped, device) if device.type == "cuda" else None

    @property
    def num_free(self) -> int:
        """Returns the number of free slots."""
        return len(self._free)

    @property
    def is_pinned(self) -> bool:
        """Returns whether a CUDA device copies from the slots asynchronously."""
        return self._unpin is not None

    def take(self) -> int | None:
        """Returns a slot for a task; None if none is free."""
        try:
            return self._free.pop()
        except IndexError:
            return None

    def release(self, slot: int) -> None:
        """Frees a slot that no worker writes to any more."""
        self._free.append(slot)

    def open(self, slot: int, written: SlotArray) -> Array:
        """Returns the array that a worker has written into a slot; frees the slot when the array
        and all views of its memory are deleted.
        """
        dtype = np.dtype(written.dtype)
        view = self.memory.view(slot, math.prod(written.shape) * dtype.itemsize)
        # All arrays and tensors made from this one refer to it, so it is deleted last.
        weakref.finalize(view, self.release, slot).atexit = False
        return view.view(dtype).reshape(written.shape)

    def close(self) -> None:
        """Unpins the memory, which is freed with the last array in it."""
        if self._unpin is not None:
            self._unpin()
            self._unpin = None


def pin(mapped: mmap.mmap, device: torch.device) -> Callable[[], None] | None:
    """Pins memory for a CUDA device; returns a function that unpins it, None if the driver refuses.

    Without it the results are the same, with one more copy to other pinned memory.
    """
    array = np.frombuffer(mapped, np.uint8)
    address = array.ctypes.data
    with torch.cuda.device(device):
        cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        status = int(cudart.cudaHostRegister(address, array.nbytes, PORTABLE))
    if status:
        print(
            f"--device {device}: {array.nbytes >> 20} MiB of memory for images cannot be pinned "
            f"(cudaHostRegister: error {status}); copies to the GPU take longer",
            file=sys.stderr,
        )
        clear_error(device)
        return None

    def unpin() -> None:
        with torch.cuda.device(device):
            cudart.cudaHostUnregister(address)

    return unpin


def clear_error(device: torch.device) -> None:
    """Clears the error of the last CUDA call, which would be reported by the next kernel."""
    try:
        torch.zeros(1, device=device).add_(1)
    except RuntimeError as error:
        print(f"--device {device}: {str(error).splitlines()[0]}", file=sys.stderr)
