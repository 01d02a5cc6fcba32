"""Decodes and resizes images, here or in worker processes, in the order of the plan.

No more than a fixed number is under way, so memory does not grow.
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from vlmill.extract.config import InputLimits
from vlmill.extract.image_level.crop import Crop, Pixels, middle
from vlmill.extract.images.decode import decode_stored
from vlmill.extract.images.plan import InputImage
from vlmill.extract.images.reader import InputReader
from vlmill.extract.images.resize import NetworkInput, PixelInput, lighter_input, network_input
from vlmill.models.detector.config import DetectorConfig
from vlmill.runtime.bounded_calls import BoundedPool
from vlmill.schemas.images.orientation import UPRIGHT
from vlmill.schemas.rejects import Rejected

# Each is a decoded and resized image of up to 7 MB (600 x 1000 x 3 float32).
UNDER_WAY_PER_WORKER = 2


@dataclass(frozen=True, kw_only=True)
class PreparedImage:
    """Tells how far an image is: its network input, the pixels for it, or why it gets none."""

    image: InputImage
    image_id: str | None  # None: it could not be read
    result: NetworkInput | PixelInput | Rejected
    orientation: int = UPRIGHT  # in which it is stored: that of boxes which come from files
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
    """Reads, decodes and resizes; without ``resize`` a GPU does the last, of all but large ones."""
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
    """Prepares each image when it is asked for."""
    reader = InputReader(limits.max_bytes)

    def source(images: Iterable[InputImage]) -> Iterator[PreparedImage]:
        for image in images:
            yield prepare(image, reader, spec, limits, resize=resize, crops=crops)

    return source


def under_way(workers: int, batch_size: int) -> int:
    """Returns how many images worker processes may be ahead: for themselves, and for the next
    batch.
    """
    return UNDER_WAY_PER_WORKER * workers + (batch_size if batch_size > 1 else 0)


@contextmanager
def pool(
    spec: DetectorConfig,
    limits: InputLimits,
    workers: int,
    batch_size: int,
    *,
    resize: bool,
    crops: Sequence[Crop],
) -> Iterator[Source]:
    """Prepares images in worker processes, a few ahead; one that costs too much is rejected."""
    processes: BoundedPool[InputImage, PreparedImage] = BoundedPool(
        workers, start_worker, spec, limits, resize, crops
    )

    def source(images: Iterable[InputImage]) -> Iterator[PreparedImage]:
        tasks: deque[tuple[InputImage, Future[PreparedImage]]] = deque()
        for image in images:
            tasks.append((image, processes.submit(image)))
            if len(tasks) > under_way(workers, batch_size):
                yield receive(*tasks.popleft())
        while tasks:
            yield receive(*tasks.popleft())

    with processes:
        processes.begin()
        yield source


def receive(image: InputImage, future: "Future[PreparedImage]") -> PreparedImage:
    """Waits for an image that a worker process prepares; one that ends the process is rejected."""
    try:
        return unpack_tensor(future.result())
    except Rejected as why:
        return PreparedImage(image=image, image_id=image.image_id, result=why)


@contextmanager
def open_source(
    spec: DetectorConfig,
    limits: InputLimits,
    workers: int,
    batch_size: int = 1,
    *,
    resize: bool = True,
    crops: Sequence[Crop] = (),
) -> Iterator[Source]:
    """Prepares images here, or in worker processes; without ``resize`` a GPU does the last.

    What workers send is read by one thread of this process: the 6 MB of a resized photograph take
    it 20 ms on a slow core, more than a fast GPU needs for the image; its pixels are 1 MB.
    """
    if not workers:
        yield inline(spec, limits, resize=resize, crops=crops)
        return
    with pool(spec, limits, workers, batch_size, resize=resize, crops=crops) as source:
        yield source


def pack_tensor(ready: PreparedImage) -> PreparedImage:
    """Puts an array in place of the tensor: torch would send a file of shared memory for each."""
    if not isinstance(ready.result, NetworkInput):
        return ready
    array = dataclasses.replace(ready.result, tensor=ready.result.tensor.numpy())  # type: ignore[arg-type]
    return dataclasses.replace(ready, result=array)


def unpack_tensor(ready: PreparedImage) -> PreparedImage:
    """Puts the tensor back in the array's place."""
    if not isinstance(ready.result, NetworkInput):
        return ready
    tensor = torch.from_numpy(ready.result.tensor)
    return dataclasses.replace(ready, result=dataclasses.replace(ready.result, tensor=tensor))


# --- in a worker process --------------------------------------------------------------------------


def start_worker(
    spec: DetectorConfig, limits: InputLimits, resize: bool, crops: Sequence[Crop]
) -> Callable[[InputImage], PreparedImage]:
    """Readies a worker process; returns what prepares an image there."""
    torch.set_num_threads(1)
    reader = InputReader(limits.max_bytes)

    def prepare_packed(image: InputImage) -> PreparedImage:
        return pack_tensor(prepare(image, reader, spec, limits, resize=resize, crops=crops))

    return prepare_packed
