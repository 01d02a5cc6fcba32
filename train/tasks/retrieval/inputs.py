"""Feeds a model for retrieval: texts in batches, images one by one, both made as in training.

B texts, T tokens.
"""

import dataclasses
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

from vlmill.models.positions import Positions
from vlmill.runtime.files.copies import FULL
from vlmill.runtime.readers.images import Images as StoredImages
from vlmill.runtime.readers.joining import Join
from vlmill.runtime.readers.region_rows import is_in_range
from vlmill.runtime.readers.regions import ABSENT, Regions
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason
from vlmill.train.loading.arrays import Array, Ids
from vlmill.train.loading.batch import HostBatch
from vlmill.train.loading.collate import collate
from vlmill.train.loading.features import read_features, region_batch
from vlmill.train.loading.images.crop import DecodePixels, UndecodableImage, evaluation_image
from vlmill.train.loading.sample import Sample, chosen_regions, get_global_feature
from vlmill.train.settings.parts import Feeding


@dataclass(frozen=True, kw_only=True)
class TextBatch:
    """Holds texts of similar length: their ``columns`` in the score matrix and ``lengths``, int64
    [B]; their ids, mask, and the positions that it marks.
    """

    columns: NDArray[np.int64]
    lengths: NDArray[np.int64]
    tokens: Int[Tensor, "B T"]
    token_mask: Bool[Tensor, "B T"]
    real: Positions


def text_batches(
    texts: Sequence[Ids],
    batch_size: int,
    device: torch.device,
    columns: NDArray[np.int64] | None = None,
) -> list[TextBatch]:
    """Returns batches by length, so that little of a batch is padding; each text is in one.

    ``columns`` are the texts' own, counted from 0 if not given.
    """
    columns = np.arange(len(texts)) if columns is None else columns
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    order = np.argsort(lengths, kind="stable")
    batches = []
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        mask = np.arange(lengths[chosen[-1]]) < lengths[chosen][:, None]
        tokens = np.zeros(mask.shape, dtype=np.int64)
        tokens[mask] = np.concatenate([texts[index] for index in chosen])
        batches.append(
            TextBatch(
                columns=columns[chosen],
                lengths=lengths[chosen],
                tokens=torch.from_numpy(tokens).to(device),
                token_mask=torch.from_numpy(mask).to(device),
                real=torch.from_numpy(np.flatnonzero(mask)).to(device),
            )
        )
    return batches


@runtime_checkable
class Images(Protocol):
    """Reads the images of pairs."""

    def missing(self, image_ids: Sequence[str]) -> Mapping[str, Reason]:
        """Returns the images that the table lacks, with the reason; read from its index."""
        ...

    def fault(self, image_id: str) -> Reason | None:
        """Reads an image of the table and returns its reject reason, or None."""
        ...

    def batch(self, image_ids: Sequence[str]) -> HostBatch:
        """Returns images as training feeds them, with nothing masked and no text."""
        ...


class RegionImages:
    """Reads the regions of images, fed by ``feeding``, and on request full images' features."""

    def __init__(self, reader: Regions, feeding: Feeding, *, global_features: bool = False) -> None:
        self._reader, self._global_features = reader, global_features
        self.join = Join(reader.index, asking="--pairs", holding="--regions")
        # Nothing is predicted: distributions over classes are not read.
        self._feeding = dataclasses.replace(feeding, region_targets="class")

    def missing(self, image_ids: Sequence[str]) -> Mapping[str, Reason]:
        """Returns the images without a row, or with a row without boxes."""
        numbers = self.join.find(image_ids)
        counts = self._reader.box_counts()
        faults = {}
        for image_id, number in zip(image_ids, numbers.tolist(), strict=True):
            if number == ABSENT:
                faults[image_id] = Reason.NO_REGIONS
            elif not counts[number]:
                faults[image_id] = Reason.NO_BOXES
        return faults

    def fault(self, image_id: str) -> Reason | None:
        """Returns the reject reason for features or boxes that are not finite, or overflow, among
        the regions that the model is fed; None without such.
        """
        row = self._reader.row(self._rows([image_id])[0])
        count, order = chosen_regions(row, self._feeding)
        fed = slice(count) if order is None else order
        parts = [row.boxes[fed], *([] if row.features is None else [row.features[fed]])]
        if self._global_features:
            parts.append(get_global_feature(row))
        return None if all(map(is_in_range, parts)) else Reason.NOT_FINITE

    def fed_boxes(self, image_id: str) -> tuple[Array, int, int]:
        """Returns an image's boxes that the model is fed, [R, 4] in pixels, its width and
        height.
        """
        row = self._reader.row(self._rows([image_id])[0])
        count, order = chosen_regions(row, self._feeding)
        boxes = row.boxes[:count] if order is None else row.boxes[order]
        return boxes, row.width, row.height

    def batch(self, image_ids: Sequence[str]) -> HostBatch:
        """Makes a batch with all regions; regions that do not fit with a text are cut per text."""
        numbers = self._rows(image_ids)
        return region_batch(
            self._reader, numbers, self._feeding, global_features=self._global_features
        )

    def _rows(self, image_ids: Sequence[str]) -> list[int]:
        """Returns the rows of images that are not missing."""
        rows: list[int] = self.join.find(image_ids).tolist()
        return rows


class PixelImages:
    """Reads images as full, unaugmented pixels, at the model's size.

    The pixels of images that were decoded to check for a fault are kept in an unnamed temporary
    file until a batch has read them, so that no image is decoded twice: 0.4 MB each at 384 pixels.
    If its disk is full, further images are decoded again.
    """

    def __init__(
        self, reader: StoredImages, feeding: Feeding, decode: DecodePixels = evaluation_image
    ) -> None:
        self._reader, self._feeding, self._decode = reader, feeding, decode
        self._file: BinaryIO | None = None
        self._slots: dict[str, int] = {}  # of an image's pixels in the file
        self._num_slots = 0
        self._read: dict[str, None] = {}  # images whose slots may be used again
        self._shape: tuple[int, ...] = ()
        self.join = Join(reader.index, asking="--pairs", holding="--images")

    def missing(self, image_ids: Sequence[str]) -> Mapping[str, Reason]:
        """Returns the images without a row."""
        numbers = self.join.find(image_ids).tolist()
        pairs = zip(image_ids, numbers, strict=True)
        return {image_id: Reason.NO_IMAGE for image_id, row in pairs if row == ABSENT}

    def load(self, image_id: str) -> NDArray[np.uint8] | Reason:
        """Returns an image's pixels [3, S, S], or its reject reason."""
        data = self._reader.read_bytes(int(self.join.find([image_id])[0]))
        if not data:
            return Reason.EMPTY
        try:
            return self._decode(data, image_id, self._feeding.image_size)
        except UndecodableImage as error:
            costly = error.cause.reason is Reason.TOO_EXPENSIVE
            return Reason.TOO_EXPENSIVE if costly else Reason.UNREADABLE_IMAGE

    def fault(self, image_id: str) -> Reason | None:
        """Returns the reject reason of an image without bytes, or that cannot be decoded."""
        if image_id in self._slots:
            return None
        pixels = self.load(image_id)
        if isinstance(pixels, Reason):
            return pixels
        self._keep(image_id, pixels)
        return None

    def _keep(self, image_id: str, pixels: NDArray[np.uint8]) -> None:
        """Writes an image's pixels to a slot of the temporary file: all have the same shape."""
        if self._file is None:
            self._file, self._shape = tempfile.TemporaryFile(), pixels.shape  # noqa: SIM115
        if pixels.shape != self._shape:
            return
        if self._read:
            earliest = next(iter(self._read))
            del self._read[earliest]
            slot = self._slots.pop(earliest)
        else:
            slot, self._num_slots = self._num_slots, self._num_slots + 1
        content = np.ascontiguousarray(pixels).reshape(-1).data
        try:
            written = os.pwrite(self._file.fileno(), content, slot * pixels.nbytes)
        except OSError as error:
            if error.errno not in FULL:
                raise
            return
        if written == pixels.nbytes:
            self._slots[image_id] = slot

    def _load_kept(self, image_id: str) -> NDArray[np.uint8] | Reason:
        """Returns the result of :meth:`load`; a kept image is not decoded again."""
        slot = self._slots.get(image_id)
        if self._file is None or slot is None:
            return self.load(image_id)
        self._read[image_id] = None
        size = math.prod(self._shape)
        content = bytearray(os.pread(self._file.fileno(), size, slot * size))
        return np.frombuffer(content, np.uint8).reshape(self._shape)

    def batch(self, image_ids: Sequence[str]) -> HostBatch:
        """Returns a batch of images. Raises InputError for an image with a fault."""
        loaded = {image_id: self._load_kept(image_id) for image_id in image_ids}
        good = {name: p for name, p in loaded.items() if not isinstance(p, Reason)}
        for image_id in loaded.keys() - good.keys():
            raise InputError(f"--images: {image_id} is {loaded[image_id]}; remove its pairs")
        return self.collate_pixels(good)

    def collate_pixels(self, loaded: Mapping[str, NDArray[np.uint8]]) -> HostBatch:
        """Returns a batch of pixels, by image_id."""
        samples = [Sample(pair_id=name, pixels={"pixels": loaded[name]}) for name in loaded]
        return read_features(collate(samples, self._feeding), None)
