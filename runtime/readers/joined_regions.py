"""Reads two tables of regions as one: detected regions and annotated ones."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vlmill.runtime.readers.joining import Join
from vlmill.runtime.readers.mapped import RegionGroup
from vlmill.runtime.readers.regions import RegionReader
from vlmill.runtime.readers.row_index import ABSENT
from vlmill.schemas.errors import InputError

ANNOTATED = "--annotated-regions"


class JoinedRegions(RegionReader):
    """Reads the table of detected regions, and the annotated ones of each image.

    Rows and their numbers are those of the detected table; the shards of the other table are
    numbered after its own. Raises InputError for tables whose features differ in width, type or
    detector, because a model would interpret them differently.
    """

    def __init__(self, detected: str | Path, annotated: str | Path) -> None:
        super().__init__(detected)
        self.annotated = RegionReader(annotated, flag=ANNOTATED)
        self._join: Join | None = None
        detected_format, annotated_format = (
            reader.arrays.get("features") for reader in (self, self.annotated)
        )
        prints = [reader.detector_fingerprint for reader in (self, self.annotated)]
        if detected_format != annotated_format or (None not in prints and prints[0] != prints[1]):
            raise InputError(
                f"{ANNOTATED} {annotated} has features {annotated_format} of detector "
                f"{prints[1]}, --regions "
                f"{detected} {detected_format} of {prints[0]}; extract both with one detector and "
                "one --dtype"
            )

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_join": None}

    def locate_annotated(self, image_id: str) -> tuple[RegionGroup, int]:
        """Returns the group of an image's annotated regions, and its row's number there.

        Raises InputError for an image without such a row.
        """
        number = self._annotated_number(image_id)
        if number == ABSENT:
            raise InputError(
                f"{ANNOTATED}: {image_id} has no row; extract the annotated boxes of all images"
            )
        return self.annotated.locate_row(number)

    def is_finite(self, number: int) -> bool:
        """Returns whether all numbers of an image's rows in both tables are finite."""
        annotated = self._annotated_number(self.index.get_id(number))
        return super().is_finite(number) and (
            annotated == ABSENT or self.annotated.is_finite(annotated)
        )

    def _annotated_number(self, image_id: str) -> int:
        if self._join is None:
            self._join = Join(self.annotated.index, asking="--regions", holding=ANNOTATED)
        return int(self._join.find([image_id])[0])

    def bytes_at(self, shard: int, offset: int, size: int) -> npt.NDArray[np.uint8]:
        """Returns the mapped bytes of a position in either table."""
        beyond = shard - len(self.paths)
        if beyond >= 0:
            return self.annotated.bytes_at(beyond, offset, size)
        return super().bytes_at(shard, offset, size)

    def read_ahead(self, shard: int, offset: int, size: int) -> None:
        """Asks the system to read the bytes of a position in either table ahead."""
        beyond = shard - len(self.paths)
        if beyond >= 0:
            self.annotated.read_ahead(beyond, offset, size)
        else:
            super().read_ahead(shard, offset, size)
