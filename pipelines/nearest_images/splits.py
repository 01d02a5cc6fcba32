"""Groups images by split, so that images are compared only within their split."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vlmill.pipelines.nearest_images.means import Means, Numbers
from vlmill.runtime.files.reading import iter_batches
from vlmill.runtime.readers.joining import Join
from vlmill.runtime.readers.regions import RegionReader
from vlmill.runtime.readers.row_index import ABSENT
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason, reject
from vlmill.schemas.splits import split_name
from vlmill.schemas.tables import PAIRS

STAGE = "nearest_images"
NONE, SEVERAL = -1, -2  # split of an image that no pair names, or that pairs of two splits name


@dataclass(frozen=True, kw_only=True)
class Split:
    """Holds the images to compare: rows of the regions table, in the order of their ids."""

    name: str | None  # None: all images, if no pairs were given
    rows: Numbers
    image_ids: list[str]


@dataclass(frozen=True, kw_only=True)
class Splits:
    """Holds the split of each row of the regions table, as an index of ``names``."""

    names: list[str | None]
    numbers: npt.NDArray[np.int32]
    note: str = ""  # splits that matched under another name


def make_single_split(regions: RegionReader) -> Splits:
    """Returns one split of all images, for runs without pairs."""
    return Splits(names=[None], numbers=np.zeros(len(regions), dtype=np.int32))


def read_splits(pairs: str, regions: RegionReader) -> Splits:
    """Returns the splits in ``--pairs``, ignoring case; a null is ``train``.

    Raises InputError if no pair names an image of ``regions``.
    """
    join = Join(regions.index, asking="--pairs", holding="--regions")
    numbers = np.full(len(regions), NONE, dtype=np.int32)
    names: dict[str | None, int] = {}
    sample_ids: list[str] = []
    for image_ids, splits in _columns(pairs):
        sample_ids = sample_ids or image_ids
        pair_splits = [names.setdefault(split_name(split), len(names)) for split in splits]
        rows = join.find(image_ids)
        for row, number in zip(rows.tolist(), pair_splits, strict=True):
            if row != ABSENT:
                numbers[row] = number if numbers[row] in (NONE, number) else SEVERAL
    if np.all(numbers == NONE):
        raise InputError(
            f"--pairs {pairs}: no pair is of an image of --regions ({join.samples(sample_ids)}); "
            "give "
            "tables of the same images"
        )
    return Splits(names=list(names), numbers=numbers, note=join.summary())


def _columns(pairs: str) -> Iterator[tuple[list[str], list[str | None]]]:
    """Yields the image_id and split of pairs that have an image."""
    columns = ["image_id", "split"]
    for batch in iter_batches(pairs, PAIRS, columns=columns, batch_rows=65_536, flag="--pairs"):
        imaged = batch.filter(batch.column("image_id").is_valid())
        yield imaged.column("image_id").to_pylist(), imaged.column("split").to_pylist()


def group_by_split(
    regions: RegionReader, means: Means, splits: Splits, first: int
) -> tuple[list[Split], list[dict[str, object]]]:
    """Returns the splits in the order of their names, and a reject for each image without one."""
    present, counts = means.present(), regions.box_counts()
    members: dict[int, list[tuple[str, int]]] = {}
    rejects = []
    for row, image_id in enumerate(regions.image_ids):
        number = int(splits.numbers[row])
        if number in (NONE, SEVERAL):
            rejects.append(_without_split(image_id, number))
        elif not present[row]:
            rejects.append(_without_vector(image_id, int(counts[row]), first))
        else:
            members.setdefault(number, []).append((image_id, row))
    names = {number: splits.names[number] for number in members}
    groups = []
    for number in sorted(members, key=lambda number: names[number] or ""):
        images = sorted(members[number])
        rows = np.array([row for _, row in images], dtype=np.int64)
        image_ids = [image_id for image_id, _ in images]
        groups.append(Split(name=names[number], rows=rows, image_ids=image_ids))
    return groups, rejects


def _without_split(image_id: str, number: int) -> dict[str, object]:
    if number == NONE:
        return reject(STAGE, image_id, Reason.NO_TEXT, "no pair of --pairs is of this image")
    return reject(STAGE, image_id, Reason.ID_CONFLICT, "its pairs are of several splits")


def _without_vector(image_id: str, count: int, first: int) -> dict[str, object]:
    if count > first:
        detail = "a feature is NaN or infinite, or too large to compare"
        return reject(STAGE, image_id, Reason.NOT_FINITE, detail)
    detail = "no box but the full image" if count else "the detector gave no box"
    return reject(STAGE, image_id, Reason.NO_BOXES, detail)
