"""Holds images and regions in memory, for what also reads them from tables.

R boxes of an image, D feature width.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from vlmill.runtime.readers.joining import Indexed
from vlmill.runtime.readers.region_group import RegionGroup
from vlmill.runtime.readers.region_rows import RegionRow, encode_regions
from vlmill.runtime.readers.row_index import IdIndex
from vlmill.schemas.errors import InputError


@runtime_checkable
class Images(Indexed, Protocol):
    """Finds the encoded bytes of images: in a table, or in memory."""

    def read_bytes(self, number: int) -> bytes | None:
        """Returns the bytes of row ``number``, None if it has none."""
        ...


class HeldImages:
    """Holds the encoded bytes of images in memory, by image_id."""

    def __init__(self, contents: Mapping[str, bytes]) -> None:
        self._ids, self._contents = list(contents), list(contents.values())

    @cached_property
    def index(self) -> IdIndex:
        """Returns the index of the ids."""
        return IdIndex.from_ids(self._ids)

    def read_bytes(self, number: int) -> bytes:
        """Returns the bytes of row ``number``."""
        return self._contents[number]


class Regions(ABC):
    """Finds the regions of images: in a table, or in memory.

    ``arrays`` is the metadata of the binary columns, ``name`` the regions' name in messages.
    """

    arrays: dict[str, Any]
    name: str

    @property
    @abstractmethod
    def index(self) -> IdIndex:
        """Returns the index of the ids."""

    @abstractmethod
    def box_counts(self) -> npt.NDArray[np.int32]:
        """Returns R of each row, without reading rows."""

    @abstractmethod
    def locate_row(self, number: int) -> tuple[RegionGroup, int]:
        """Returns a row's group and its number in it: to read only some columns."""

    @property
    def feature_dim(self) -> int:
        """Returns D, the width of a region's feature."""
        try:
            return int(self.arrays["features"]["dim"])
        except (KeyError, TypeError, ValueError):
            raise InputError(f"{self.name}: the metadata lacks the features' width") from None

    def row(self, number: int) -> RegionRow:
        """Returns row ``number``; its arrays are read-only views if a file allows it.

        Raises InputError if the file is inconsistent.
        """
        group, within = self.locate_row(number)
        return group.row(within)


class HeldRegions(Regions):
    """Holds the regions of images in memory, with the values that a table would store."""

    name = "--regions"

    def __init__(self, rows: Sequence[RegionRow], arrays: dict[str, Any]) -> None:
        self.arrays, self._counts = arrays, np.array([len(row.boxes) for row in rows], np.int32)
        self._group = RegionGroup(encode_regions(rows, dtype=arrays["features"]["dtype"]), arrays)
        self._index = IdIndex.from_ids([row.image_id for row in rows])

    @property
    def index(self) -> IdIndex:
        """Returns the index of the ids."""
        return self._index

    def box_counts(self) -> npt.NDArray[np.int32]:
        """Returns R of each row."""
        return self._counts

    def locate_row(self, number: int) -> tuple[RegionGroup, int]:
        """Returns the only group, and the row's number in it."""
        return self._group, number
