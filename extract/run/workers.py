"""Decodes and resizes images, in this process or in workers, in the order of the plan.

The number of images in progress is limited, so memory does not grow. Workers write images into the
slots of memory that they share with this process, instead of a pipe. This process assigns a slot to
each task and frees it: workers own no slots, so a killed worker loses none, and no worker writes
into another task's slot.
"""

import dataclasses
import math
import mmap
import os
import sys
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vlmill.extract.config import WINDOW_BATCHES, InputLimits
from vlmill.extract.image_level.crop import Crop, Pixels, middle
from vlmill.extract.images.decode import decode_stored
from vlmill.extract.images.plan import InputImage
from vlmill.extract.images.reader import InputReader
from vlmill.extract.images.resize import (
    NetworkInput,
    PixelInput,
    lighter_input,
    max_input_bytes,
    network_input,
)
from vlmill.models.detector.config import DetectorConfig
from vlmill.runtime.bounded_calls import BoundedPool
from vlmill.schemas.images.orientation import UPRIGHT
from vlmill.schemas.rejects import Rejected

CPU = torch.device("cpu")
# Each is a decoded and resized image of up to 7 MB (600 x 1000 x 3 float32).
UNDER_WAY_PER_WORKER = 2
# Memory of slots for images: about as many of 7 MB as are decoded ahead and wait for their batch,
# with 14 workers and batches of 16. Without a free slot, images are sent by pipe.
RING_BYTES = 1 << 30


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


@dataclass(frozen=True, kw_only=True)
class PreparedImage:
    """Holds the state of an image: its network input, the pixels for it, or why it has none."""

    image: InputImage
    image_id: str | None  # None: it could not be read
    result: NetworkInput | PixelInput | Rejected
    orientation: int = UPRIGHT  # the stored orientation, for boxes from files
    crops: Mapping[Crop, Pixels] = field(default_factory=dict)  # for networks of full images


Source = Callable[[Iterable[InputImage]], Iterator[PreparedImage]]


def prepare(
    image: InputImage,
    reader: InputReader,
    spec: DetectorConfig,
    limits: InputLimits,
    *,
    resize: bool = True,
    crops: Sequence[Crop] = (),
) -> PreparedImage:
    """Reads, decodes and resizes; without ``resize`` a GPU resizes all but large images."""
    image_id, orientation = image.image_id, UPRIGHT
    cut: dict[Crop, Pixels] = {}
    try:
        image_id, data = reader.read(image)
        pixels, orientation = decode_stored(data, limits)
        last = network_input if resize else lighter_input
        prepared: NetworkInput | PixelInput | Rejected = last(pixels, spec, limits)
        cut = {crop: middle(pixels, crop) for crop in crops}
    except Rejected as why:
        prepared = why
    return PreparedImage(
        image=image, image_id=image_id, result=prepared, orientation=orientation, crops=cut
    )


def inline(
    spec: DetectorConfig, limits: InputLimits, *, resize: bool = True, crops: Sequence[Crop] = ()
) -> Source:
    """Prepares each image on demand."""
    reader = InputReader(limits.max_bytes)

    def source(images: Iterable[InputImage]) -> Iterator[PreparedImage]:
        for image in images:
            yield prepare(image, reader, spec, limits, resize=resize, crops=crops)

    return source


def under_way(workers: int, batch_size: int) -> int:
    """Returns how many images worker processes may prepare ahead: their own, and the images of the
    next batch.
    """
    return UNDER_WAY_PER_WORKER * workers + (batch_size if batch_size > 1 else 0)


@dataclass(frozen=True, kw_only=True)
class DecodeTask:
    """Assigns an image to a worker process, and the slot of the ring that it may write into."""

    image: InputImage
    slot: int | None


def open_ring(
    spec: DetectorConfig, limits: InputLimits, num_images: int, device: torch.device
) -> PixelRing | None:
    """Opens a ring for ``num_images``, or the maximum that fits; None if that is below one."""
    slot_bytes = -(-max_input_bytes(spec, limits) // mmap.PAGESIZE) * mmap.PAGESIZE
    num_slots = min(num_images, RING_BYTES // slot_bytes)
    return PixelRing(num_slots, slot_bytes, device) if num_slots else None


@contextmanager
def pool(
    spec: DetectorConfig,
    limits: InputLimits,
    workers: int,
    batch_size: int,
    *,
    resize: bool,
    crops: Sequence[Crop],
    device: torch.device,
) -> Iterator[Source]:
    """Prepares images in worker processes, a few ahead; images that exceed a limit are rejected."""
    ahead = under_way(workers, batch_size)
    # In addition, images that wait for others of their shape, and the images of two batches.
    waiting = (WINDOW_BATCHES + 2) * batch_size if batch_size > 1 else 2
    ring = open_ring(spec, limits, ahead + 1 + waiting, device)
    processes: BoundedPool[DecodeTask, PreparedImage] = BoundedPool(
        workers, start_worker, spec, limits, resize, crops, None if ring is None else ring.memory
    )

    def source(images: Iterable[InputImage]) -> Iterator[PreparedImage]:
        tasks: deque[tuple[DecodeTask, Future[PreparedImage]]] = deque()
        try:
            for image in images:
                task = DecodeTask(image=image, slot=None if ring is None else ring.take())
                tasks.append((task, processes.submit(task)))
                if len(tasks) > ahead:
                    yield receive(*tasks.popleft(), ring)
            while tasks:
                yield receive(*tasks.popleft(), ring)
        finally:
            for task, future in tasks:
                future.cancel()
                release_later(task, future, ring)

    with processes, closing(ring) if ring else nullcontext():
        processes.begin()
        yield source


def receive(
    task: DecodeTask, future: "Future[PreparedImage]", ring: PixelRing | None
) -> PreparedImage:
    """Waits for an image that a worker process prepares; one that ends the process is rejected."""
    try:
        ready = future.result()
    except Rejected as why:
        ready = PreparedImage(image=task.image, image_id=task.image.image_id, result=why)
    except BaseException:
        release_later(task, future, ring)
        raise
    array = get_array(ready)
    if ring is not None and task.slot is not None:
        if isinstance(array, SlotArray):
            array = ring.open(task.slot, array)
        else:  # rejected, or too large
            ring.release(task.slot)
    if isinstance(ready.result, NetworkInput):
        array = torch.from_numpy(array)
    return replace_array(ready, array)


def release_later(
    task: DecodeTask, future: "Future[PreparedImage]", ring: PixelRing | None
) -> None:
    """Frees the slot of an abandoned task as soon as no worker writes to it."""
    if ring is not None and task.slot is not None:
        slot, release = task.slot, ring.release
        future.add_done_callback(lambda _: release(slot))


@contextmanager
def open_source(
    spec: DetectorConfig,
    limits: InputLimits,
    workers: int,
    batch_size: int = 1,
    *,
    resize: bool = True,
    crops: Sequence[Crop] = (),
    device: torch.device = CPU,
) -> Iterator[Source]:
    """Prepares images in this process or in workers; without ``resize`` a GPU resizes them.

    Workers write images to memory that this process shares, from which they are copied to
    ``device``. By pipe the 6 MB of a resized photograph took 20 ms on a slow core, more than a fast
    GPU needs for the image, and its pixels, 1 MB, 0.4 ms.
    """
    if not workers:
        yield inline(spec, limits, resize=resize, crops=crops)
        return
    with pool(
        spec, limits, workers, batch_size, resize=resize, crops=crops, device=device
    ) as source:
        yield source


def get_array(ready: PreparedImage) -> Any:
    """Returns the array of an image's pixels or of its network input, or its placeholder."""
    if isinstance(ready.result, PixelInput):
        return ready.result.pixels
    return ready.result.tensor if isinstance(ready.result, NetworkInput) else None


def replace_array(ready: PreparedImage, array: Any) -> PreparedImage:
    """Replaces the array that :func:`get_array` returns by ``array``."""
    result = ready.result
    if isinstance(result, PixelInput):
        result = dataclasses.replace(result, pixels=array)
    elif isinstance(result, NetworkInput):
        result = dataclasses.replace(result, tensor=array)
    return dataclasses.replace(ready, result=result)


# --- in a worker process --------------------------------------------------------------------------


def start_worker(
    spec: DetectorConfig,
    limits: InputLimits,
    resize: bool,
    crops: Sequence[Crop],
    memory: SlotMemory | None,
) -> Callable[[DecodeTask], PreparedImage]:
    """Initialises a worker process; returns the function that prepares an image there."""
    torch.set_num_threads(1)
    reader = InputReader(limits.max_bytes)

    def prepare_packed(task: DecodeTask) -> PreparedImage:
        ready = prepare(task.image, reader, spec, limits, resize=resize, crops=crops)
        return pack_array(ready, memory, task.slot)

    return prepare_packed


def pack_array(ready: PreparedImage, memory: SlotMemory | None, slot: int | None) -> PreparedImage:
    """Moves an image into its slot, if it has one and fits; else its array is sent.

    A tensor becomes an array: torch would send a file of shared memory for each.
    """
    array = get_array(ready)
    if array is None:
        return ready
    array = array.numpy() if isinstance(array, Tensor) else array
    if memory is not None and slot is not None and memory.holds(array):
        array = memory.write(slot, array)
    return replace_array(ready, array)
