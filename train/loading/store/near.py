"""Stores each image's nearest images, and the captions of each.

Images are rows of the table that pairs are joined with. Only images that are trained on count as
neighbours.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from vlmill.runtime.console.command import print_status
from vlmill.runtime.files.reading import iter_batches
from vlmill.runtime.readers.joining import Indexed, Join
from vlmill.runtime.readers.row_index import ABSENT, Numbers
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import NEIGHBOURS
from vlmill.train.loading.arrays import Flags, Ids
from vlmill.train.loading.store.files import ROWS, map_column

# Files of int64: images [N], ascending; the end of each one's neighbours [N]; all neighbours,
# concatenated.
IMAGES, ENDS, NEAR = "near_pictures", "near_ends", "near"
NAMED = 3  # images that a message names
FLAG = "--negatives"  # the option that names the table
FEWEST = 0.5  # minimum share, of the images that are trained on, that has neighbours


@dataclasses.dataclass(frozen=True, kw_only=True)
class JoinedNeighbours:
    """Counts the images that are trained on whose neighbours are trained on, too."""

    num_images: int
    num_met: int
    lacking: tuple[str, ...]  # some of the images without such neighbours
    samples: str  # how the tables name images


def keep_neighbours(folder: Path, neighbours: str, images: Indexed, holding: str) -> None:
    """Writes the files of :class:`NearImages` from a table of neighbours.

    ``holding`` is the option of ``images``. Raises InputError if the neighbours are of other
    images: fewer than half of the images that are trained on have neighbours.
    """
    joined = join_neighbours(folder, neighbours, images, holding)
    num_lacking = joined.num_images - joined.num_met
    if not num_lacking:
        return
    more = ", ..." if num_lacking > len(joined.lacking) else ""
    message = (
        f"{FLAG} {neighbours}: {num_lacking} of the {joined.num_images} images to train on "
        f"have no neighbour among the images to train on ({', '.join(joined.lacking)}{more})"
    )
    if joined.num_met < FEWEST * joined.num_images:
        raise InputError(
            f"{message}; {joined.samples}; find the neighbours of these images: python -m "
            "vlmill.pipelines.nearest_images"
        )
    print_status(f"warning: {message}; their negatives are sampled from the captions of all images")


def join_neighbours(
    folder: Path, neighbours: str, images: Indexed, holding: str
) -> JoinedNeighbours:
    """Writes the files, and returns the counts."""
    join, index = Join(images.index, asking=FLAG, holding=holding), images.index
    trained = np.zeros(len(index), dtype=np.bool_)
    trained[(rows := map_column(folder, "image_row"))[rows != ABSENT]] = True
    owners, counts, near, ids = _none(), _none(), _none(), list[str]()
    for batch in iter_batches(neighbours, NEIGHBOURS, batch_rows=ROWS, flag=FLAG):
        image_ids = batch.column("image_id").to_pylist()
        ids = ids or image_ids
        joined = _select_neighbours(join, image_ids, batch.column("neighbour_ids"), trained)
        owners, counts, near = (
            np.concatenate(both) for both in zip((owners, counts, near), joined, strict=True)
        )
    starts = np.cumsum(counts) - counts
    rows_met, first = np.unique(owners, return_index=True)
    ranges = [
        np.arange(starts[position], starts[position] + counts[position])
        for position in first.tolist()
    ]
    near = near[np.concatenate([_none(), *ranges])]
    for name, values in (
        (IMAGES, rows_met),
        (ENDS, np.cumsum(counts[first])),
        (NEAR, near),
    ):
        (folder / name).write_bytes(values.astype(np.int64).tobytes())
    trained[rows_met] = False
    lacking = np.flatnonzero(trained)
    return JoinedNeighbours(
        num_images=len(rows_met) + len(lacking),
        num_met=len(rows_met),
        lacking=tuple(index.get_id(row) for row in lacking[:NAMED].tolist()),
        samples=join.samples(ids),
    )


def _none() -> Numbers:
    return np.empty(0, dtype=np.int64)


def _select_neighbours(
    join: Join, image_ids: list[str], neighbour_ids: Any, trained: Flags
) -> tuple[Numbers, Numbers, Numbers]:
    """Returns the images of a batch that are trained on and have neighbours that are trained on,
    how many each has, and which.
    """
    owners = join.find(image_ids)
    lengths = pa.compute.list_value_length(neighbour_ids).to_numpy(zero_copy_only=False)
    encoded = neighbour_ids.flatten().dictionary_encode()
    rows = join.find(encoded.dictionary.to_pylist())[encoded.indices.to_numpy()]
    owner_index = np.repeat(np.arange(len(owners)), lengths.astype(np.int64))
    # ABSENT is -1, which indexes the last row: it is excluded separately.
    good = (rows != ABSENT) & trained[rows] & (rows != owners[owner_index])
    good &= ((owners != ABSENT) & trained[owners])[owner_index]
    counts = np.bincount(owner_index[good], minlength=len(owners))
    has = counts > 0
    return owners[has], counts[has], rows[good]


class NearImages:
    """Reads the neighbours of images, mapped, and the captions of each: 16 bytes per caption."""

    def __init__(self, folder: Path) -> None:
        self._images = _map_ids(folder / IMAGES)
        self._ends, self._near = _map_ids(folder / ENDS), _map_ids(folder / NEAR)
        image_rows = map_column(folder, "image_row")
        self._order = np.argsort(image_rows, kind="stable")
        self._owners = image_rows[self._order]

    def find_neighbours(self, image: int) -> Ids:
        """Returns an image's neighbours, the nearest first; possibly empty."""
        index = int(np.searchsorted(self._images, image))
        if index == len(self._images) or self._images[index] != image:
            return self._near[:0]
        return self._near[self._ends[index - 1] if index else 0 : self._ends[index]]

    def captions(self, image: int) -> Ids:
        """Returns the rows of an image's captions."""
        first, end = np.searchsorted(self._owners, [image, image + 1])
        rows: Ids = self._order[first:end]
        return rows


def _map_ids(path: Path) -> Ids:
    if not path.stat().st_size:
        return np.empty(0, dtype=np.int64)
    return np.memmap(path, dtype=np.int64, mode="r").view(np.ndarray)
