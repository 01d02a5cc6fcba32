"""Images of requests are decoded in processes that can be killed, beside the one of the model."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from vlmill.runtime.bounded_calls import BoundedPool
from vlmill.runtime.cores import all_cores
from vlmill.schemas.rejects import Rejected
from vlmill.train.loading.images.crop import UndecodableImage, evaluation_image
from vlmill.train.tasks.retrieval.vectors import MOST_THREADS

WORKERS = 1  # processes a device, where a detector sees what they decode
Pixels = NDArray[np.uint8]
Task = tuple[bytes, str, int]


class PixelDecoder:
    """Decodes images as :func:`evaluation_image` does, elsewhere. Thread-safe."""

    def __init__(self) -> None:
        workers = min(MOST_THREADS, all_cores())
        self._pool = BoundedPool[Task, Pixels | Rejected](workers, start_decoding)
        self._pool.begin()  # not with the first request

    def __call__(self, data: bytes, image_id: str, size: int) -> Pixels:
        """Returns the full image at S x S, uint8 [3, S, S]. Raises UndecodableImage."""
        try:
            result = self._pool.call((data, image_id, size))
        except Rejected as why:
            result = why
        if isinstance(result, Rejected):
            raise UndecodableImage(image_id, result)
        return result


def start_decoding() -> Callable[[Task], Pixels | Rejected]:
    """Returns what a process decodes images with."""
    return decode_pixels


def decode_pixels(task: Task) -> Pixels | Rejected:
    """Returns an image's pixels, or why it has none."""
    try:
        return evaluation_image(*task)
    except UndecodableImage as error:
        return error.cause
