"""Features are copied from the mapped files into a batch.  B pictures, R regions, D width.

The memory of freed batches is used again: the system gives fresh memory page by page, each when it
is first written to, and for 13 MB of features that takes longer than to copy them (measured: 128 us
a picture of 0.4 MB, of 53 us without).
"""

import math
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vlmill.schemas.errors import InputError
from vlmill.schemas.readers.region_group import RegionGroup
from vlmill.schemas.readers.regions import RegionReader, RegionRow
from vlmill.train.loading.arrays import Ids
from vlmill.train.loading.batch import PlannedBatch, Source, StoredBatch
from vlmill.train.loading.boxes import padded_locations
from vlmill.train.loading.sample import global_feature_of, surest_first

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


BUFFERS = Buffers()
STORED = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def features_of(row: RegionRow, count: int) -> npt.NDArray[np.float32]:
    """The features of a picture's first ``count`` regions, float32 [R, D].

    Raises InputError if the row has none.
    """
    if row.features is None:
        raise _lacking(row.image_id)
    stored = torch.empty(row.features[:count].shape, dtype=getattr(torch, row.features.dtype.name))
    stored.numpy()[...] = row.features[:count]
    return stored.float().numpy()  # PyTorch's conversion is 40 times as fast as NumPy's


def _lacking(image_id: str) -> InputError:
    return InputError(f"--regions: {image_id} has no features; extract them with them")


def assemble(
    planned: PlannedBatch, reader: RegionReader | None, *, pin_memory: bool = False
) -> StoredBatch:
    """Copy the features from the mapped files, each picture's bytes in one piece.

    Nothing looks at the features here: `StoredBatch.not_finite` does, where a loss is not finite.
    """
    # Allocated by torch, whose memory is aligned: sums over numpy's may differ in the last bit from
    # one run to the next, as the order of a vectorised sum depends on where its input begins.
    tensors = {name: torch.from_numpy(value).clone() for name, value in planned.arrays.items()}
    if pin_memory:
        tensors = {name: tensor.pin_memory() for name, tensor in tensors.items()}
    if "hidden" in tensors:
        assert reader is not None
        shape = (*tensors["hidden"].shape, reader.feature_dim)
        dtype = STORED[reader.arrays["features"]["dtype"]]
        features = _empty(shape, dtype, pin_memory=pin_memory)
        fill(features, planned.sources, reader, whole=int(planned.whole_image != "none"))
        tensors["features"] = features
    return StoredBatch(
        tensors=tensors,
        whole_image=planned.whole_image,
        pair_ids=planned.pair_ids,
        image_ids=tuple(source.image_id for source in planned.sources),
        num_texts=planned.num_texts,
        num_classes=planned.num_classes,
    )


def _empty(shape: tuple[int, ...], dtype: torch.dtype, *, pin_memory: bool) -> Tensor:
    if pin_memory:  # PyTorch uses such memory again by itself
        return torch.empty(shape, dtype=dtype, pin_memory=True)
    return BUFFERS.empty(shape, dtype)


def region_batch(
    reader: RegionReader, numbers: Sequence[int], max_regions: int, *, pin_memory: bool = False
) -> dict[str, Tensor]:
    """The regions of some rows, with no text and no masks: for evaluation and fine-tuning.

    ``features`` [B, R, D] as stored, ``locations`` float32 [B, R, 5], ``mask`` bool [B, R].
    Features are not looked at: `batch.not_finite` names pictures where they are to blame.
    """
    places = [reader.located(number) for number in numbers]
    boxes = [group.boxes(at)[:max_regions] for group, at in places]
    counts = [len(found) for found in boxes]
    sources = [
        source_of(group, at, count) for (group, at), count in zip(places, counts, strict=True)
    ]
    shape = (len(places), max(counts, default=0))
    mask = np.arange(shape[1]) < np.array(counts)[:, None]
    locations = padded_locations(boxes, [group.size(at) for group, at in places], shape[1])
    dtype = STORED[reader.arrays["features"]["dtype"]]
    features = _empty((*shape, reader.feature_dim), dtype, pin_memory=pin_memory)
    fill(features, sources, reader)
    found = {"locations": torch.from_numpy(locations), "mask": torch.from_numpy(mask)}
    found = {name: tensor.clone() for name, tensor in found.items()}  # aligned, as in `assemble`
    if pin_memory:
        found = {name: tensor.pin_memory() for name, tensor in found.items()}
    return {"features": features, **found}


def source_of(group: RegionGroup, at: int, count: int, order: Ids | None = None) -> Source:
    """Where the features of a row's first ``count`` regions lie, or of those at ``order`` [count].

    Raises InputError if the row has none.
    """
    image_id = group.image_id(at)
    place = group.feature_place(at)
    if place is not None:
        where = (group.shard_number, *place)
        return Source(image_id=image_id, count=count, place=where, order=order)
    data = group.stored_bytes("features", at)
    if data is None:
        raise _lacking(image_id)
    return Source(image_id=image_id, count=count, place=None, data=data, order=order)


def fill(
    features: Tensor, sources: Sequence[Source], reader: RegionReader, *, whole: int = 0
) -> None:
    """Copy each source's features into ``features`` [B, R, D], after ``whole`` rows; the rest is
    set to zero.
    """
    kind = torch.int16 if features.element_size() == 2 else torch.int32
    flat = features.view(kind).numpy().view(np.uint8).reshape(len(features), -1)
    width = features.shape[2] * features.element_size()
    first = whole * width
    for i, source in enumerate(sources):
        end = first + source.count * width
        data = source.data if source.place is None else reader.bytes_at(*source.place)
        assert data is not None
        if source.order is None:
            flat[i, first:end] = data[: end - first]
        else:
            rows = flat[i, first:end].reshape(-1, width)
            np.take(data.reshape(-1, width), source.order, axis=0, out=rows, mode="clip")
        flat[i, :first] = flat[i, end:] = 0
    flat[len(sources) :] = 0


def are_ranked(regions: RegionReader) -> bool:
    """Whether the table says how sure the detector was of its regions, by its first row."""
    return not len(regions) or surest_first(regions.row(0)) is not None


def global_widths_of(config: Any) -> tuple[int, ...]:
    """The widths of whole pictures' features that a model takes; most take none."""
    widths: tuple[int, ...] = getattr(config, "global_widths", ())
    return widths


def check_global_features(regions: RegionReader, config: Any) -> None:
    """Raises InputError if the model takes whole pictures' features and the table has other ones.

    By its first row; a later one without them is named when it is read.
    """
    widths = global_widths_of(config)
    if not widths or not len(regions):
        return
    width = len(global_feature_of(regions.row(0)))
    if width != sum(widths):
        raise InputError(
            f"--regions has global features {width} wide, the model takes {sum(widths)} "
            f"(model.global_widths={list(widths)}); set model.global_widths=[{width}]"
        )
