"""Copies features from the mapped files into a batch.

B images, R regions, D width.

The memory of freed batches is reused: the system maps fresh memory page by page, each on its first
write. For 13 MB of features that takes longer than the copy (measured per image of 0.4 MB: 128 us
with fresh memory, 53 us without).
"""

import dataclasses
import math
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from vlmill.runtime.readers.regions import RegionReader, RegionRow, Regions
from vlmill.schemas.errors import InputError
from vlmill.train.loading.batch import HostBatch
from vlmill.train.loading.collate import collate
from vlmill.train.loading.sample import (
    Sample,
    StoredFeatures,
    get_global_feature,
    list_columns,
    no_features,
    surest_first,
    take_regions,
)
from vlmill.train.settings.parts import Feeding

KEPT = 3  # blocks that wait for a batch: one that is filled, one that waits, one in use
LARGER = 1.5  # maximum size of a block, as a factor of the size needed


class Buffers:
    """Allocates tensors whose memory returns as soon as nothing refers to it. Thread-safe."""

    def __init__(self) -> None:
        self._free: list[Tensor] = []
        # Separate from the others, and without the lock: the collector may return a block at any
        # moment, also while this thread holds the lock.
        self._returned: deque[Tensor] = deque(maxlen=KEPT)
        self._lock = threading.Lock()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Returns an uninitialised tensor, as `torch.empty` does."""
        size = math.prod(shape) * dtype.itemsize
        if not size:
            return torch.empty(shape, dtype=dtype)
        with self._lock:
            while self._returned:
                self._free = [*self._free, self._returned.popleft()][-KEPT:]
            fits = [i for i, free in enumerate(self._free) if size <= len(free) <= LARGER * size]
            # The last one may still be in the cache.
            block = self._free.pop(fits[-1]) if fits else torch.empty(size, dtype=torch.uint8)
        array = block.numpy()  # a tensor made of it keeps it alive, and so do all of its views
        weakref.finalize(array, self._returned.append, block).atexit = False
        return torch.from_numpy(array)[:size].view(dtype).view(shape)


BUFFERS = Buffers()
STORED = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def load_features(row: RegionRow, count: int) -> npt.NDArray[np.float32]:
    """Returns the features of an image's first ``count`` regions, float32 [R, D].

    Raises InputError if the row has none.
    """
    if row.features is None:
        raise no_features(row.image_id)
    stored = torch.empty(row.features[:count].shape, dtype=getattr(torch, row.features.dtype.name))
    stored.numpy()[...] = row.features[:count]
    return stored.float().numpy()  # PyTorch's conversion is 40 times as fast as NumPy's


def read_features(
    batch: HostBatch, reader: Regions | None, *, pin_memory: bool = False
) -> HostBatch:
    """Copies the features of a batch from the mapped files, each image with one copy.

    The features are not checked here: `HostBatch.not_finite` checks them when a loss is not finite.
    """
    # Allocated by torch, whose memory is aligned: sums over NumPy's may differ in the last bit from
    # one run to the next, as the order of a vectorised sum depends on where its input begins.
    tensors = {name: tensor.clone() for name, tensor in batch.tensors.items()}
    if pin_memory:
        tensors = {name: tensor.pin_memory() for name, tensor in tensors.items()}
    if batch.stored and not batch.stored[0].is_read:
        tensors["features"] = torch.zeros((*tensors["hidden"].shape, 0))
    elif "hidden" in tensors:
        assert reader is not None
        shape = (*tensors["hidden"].shape, reader.feature_dim)
        dtype = STORED[reader.arrays["features"]["dtype"]]
        if pin_memory:  # PyTorch reuses such memory itself
            features = torch.empty(shape, dtype=dtype, pin_memory=True)
        else:
            features = BUFFERS.empty(shape, dtype)
        fill(features, batch.stored, reader, region_offset=int(batch.whole_image != "none"))
        tensors["features"] = features
    return dataclasses.replace(batch, tensors=tensors, stored=())


def region_batch(
    reader: Regions,
    numbers: Sequence[int],
    feeding: Feeding,
    *,
    global_features: bool = False,
    pin_memory: bool = False,
) -> HostBatch:
    """Reads the images of some rows of the table, with no text and nothing masked.

    They are named by their image_id. All regions that ``feeding`` allows are shown: texts could
    reduce their number, but each by a different one.
    """
    columns = list_columns(feeding, global_features=global_features)
    images = (take_regions(*reader.locate_row(number), feeding, columns) for number in numbers)
    samples = [Sample(pair_id=regions.row.image_id, regions=regions) for regions in images]
    batch = collate(samples, feeding, global_features=global_features)
    return read_features(batch, reader, pin_memory=pin_memory)


def fill(
    features: Float[Tensor, "B R D"],
    stored: Sequence[StoredFeatures],
    reader: Regions,
    *,
    region_offset: int = 0,
) -> None:
    """Copies each image's features into ``features`` [B, R, D], after ``region_offset`` rows; the
    remaining rows are set to zero.
    """
    kind = torch.int16 if features.element_size() == 2 else torch.int32
    flat = features.view(kind).numpy().view(np.uint8).reshape(len(features), -1)
    width = features.shape[2] * features.element_size()
    first = region_offset * width
    for i, image in enumerate(stored):
        end = first
        for source in (image, *image.more):
            start, end = end, end + source.num_regions * width
            if source.location is None:
                content = source.copied
            else:
                assert isinstance(reader, RegionReader)  # only files have locations
                content = reader.bytes_at(*source.location)
            assert content is not None
            if source.order is None:
                flat[i, start:end] = content[: end - start]
            else:
                rows = flat[i, start:end].reshape(-1, width)
                np.take(content.reshape(-1, width), source.order, axis=0, out=rows, mode="clip")
        flat[i, :first] = flat[i, end:] = 0
    flat[len(stored) :] = 0


def are_ranked(regions: RegionReader) -> bool:
    """Returns whether the table stores the detector's confidence, judged by its first row."""
    return not len(regions) or surest_first(regions.row(0)) is not None


def get_global_widths(config: Any) -> tuple[int, ...]:
    """Returns the widths of full-image features that a model takes; most models take none."""
    widths: tuple[int, ...] = getattr(config, "global_widths", ())
    return widths


def check_global_features(regions: RegionReader, config: Any) -> None:
    """Raises InputError if the model takes full-image features and the table has different ones.

    It checks the first row. A later row without them is named when it is read.
    """
    widths = get_global_widths(config)
    if not widths or not len(regions):
        return
    width = len(get_global_feature(regions.row(0)))
    if width != sum(widths):
        raise InputError(
            f"--regions has global features {width} wide, the model takes {sum(widths)} "
            f"(model.global_widths={list(widths)}); set model.global_widths=[{width}]"
        )
