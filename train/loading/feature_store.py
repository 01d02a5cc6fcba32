"""Locates the stored features of an image's regions, which are read once the batch is known."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from vlmill.runtime.readers.region_group import RegionGroup
from vlmill.schemas.errors import InputError
from vlmill.train.loading.arrays import Ids


@dataclass(frozen=True, kw_only=True)
class StoredFeatures:
    """Holds the features of ``num_regions`` regions of a row: their location, or the bytes.

    ``location`` is a shard, an offset and a size in its file. It is None for a compressed row,
    whose bytes are in ``copied``. The regions are the row's first ones, or the positions ``order``
    [num_regions] of the row, in this order. ``more`` follows, from this or another table. Nothing
    is read for a model that computes features from pixels.
    """

    num_regions: int
    location: tuple[int, int, int] | None
    copied: npt.NDArray[np.uint8] | None = None
    order: Ids | None = None
    more: tuple["StoredFeatures", ...] = ()
    is_read: bool = True

    @property
    def parts(self) -> tuple["StoredFeatures", ...]:
        """Yields all stored parts of the image, in order."""
        return (self, *self.more)

    def find_positions(self, regions: Ids) -> Ids:
        """Returns the positions in the row of some of the regions, counted from 0."""
        return regions if self.order is None else self.order[regions]

    def reorder(self, positions: Ids) -> "StoredFeatures":
        """Returns the regions in the order ``positions``, which stays within each part."""
        parts, end = list[StoredFeatures](), 0
        for part in self.parts:
            start, end = end, end + part.num_regions
            order = part.find_positions(positions[start:end] - start)
            parts.append(replace(part, order=order, more=()))
        return replace(parts[0], more=tuple(parts[1:]))


def stored_features(
    group: RegionGroup, row_number: int, num_regions: int, order: Ids | None = None
) -> StoredFeatures:
    """Locates the features of row ``row_number`` of a group. Raises InputError if the row has no
    features and ``num_regions`` is not 0.
    """
    if not num_regions:
        return StoredFeatures(num_regions=0, location=None, copied=np.empty(0, np.uint8))
    span = group.locate_features(row_number)
    if span is not None:
        where = (group.shard_number, *span)
        return StoredFeatures(num_regions=num_regions, location=where, order=order)
    copied = group.stored_bytes("features", row_number)
    if copied is None:
        raise no_features(group.image_id(row_number))
    return StoredFeatures(num_regions=num_regions, location=None, copied=copied, order=order)


def unread_features(num_regions: int, order: Ids | None = None) -> StoredFeatures:
    """Returns a placeholder for the features that a model computes from pixels."""
    return StoredFeatures(num_regions=num_regions, location=None, order=order, is_read=False)


def no_features(image_id: str) -> InputError:
    """Returns the error for an image whose row has no features."""
    return InputError(f"--regions: {image_id} has no features; extract the regions with features")
