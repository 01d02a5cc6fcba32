"""Computes an image's vector: the mean of its regions' features, without the full image's row.

P images of the regions table in its order, R boxes of one, D feature width. Means are stored on the
disk in parts, so that a continued run does not read the features again, which are a hundred times
as large.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.atomic import atomic_path
from vlmill.runtime.readers.regions import RegionReader
from vlmill.schemas.errors import InputError

Vectors = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]
IMAGES_PER_PART = 8_192
# Squared differences of longer vectors exceed FAISS's float32.
LONGEST = 1e15
# Tolerance for the corners of a full-image box: some files end boxes at the last pixel.
CORNER_PX = 1.0


def marks_full_images(regions: RegionReader) -> bool:
    """Returns whether row 0 of every image is the full image, like in files for ViLBERT's readers.

    No column records it, but no detector returns the full image as the first box of every image. If
    no image has another box, the table has only full images, and that row is used. Boxes are read
    until an image has another first box.
    """
    has_other_boxes = False
    for number in np.flatnonzero(regions.box_counts()).tolist():
        group, within = regions.locate_row(number)
        boxes = group.boxes(within)
        corners = (0, 0, *group.size(within))  # of the full image, in pixels
        if not (np.abs(boxes[0] - corners) <= CORNER_PX).all():
            return False
        has_other_boxes = has_other_boxes or len(boxes) > 1
    return has_other_boxes


def compute_mean(features: npt.NDArray[np.floating]) -> Vectors | None:
    """Returns the mean [D] of features [R, D], R >= 1, summed in float64; None if invalid.

    It is invalid if a feature is NaN or infinite, or if the mean is longer than LONGEST.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        mean = features.mean(axis=0, dtype=np.float64)
        length = np.sqrt(mean @ mean)
    if not length <= LONGEST:  # also refuses NaN
        return None
    # Removes -0.0, so that equal vectors have equal bytes.
    vector: Vectors = mean.astype(np.float32) + np.float32(0)
    return vector


def image_mean(regions: RegionReader, number: int, first: int) -> Vectors | None:
    """Returns the vector of row ``number`` from its box ``first`` on; None without such boxes.

    Raises InputError for a row with boxes and without features.
    """
    group, within = regions.locate_row(number)
    if len(group.boxes(within)) <= first:
        return None
    row = group.row(within, ("features",))
    if row.features is None:
        raise InputError(
            f"--regions: {row.image_id} has boxes and no features; extract or import them with "
            "their features"
        )
    return compute_mean(row.features[first:])


class Means:
    """Holds the vectors of a table's images, mapped float32 [P, D]; NaN for images without one."""

    def __init__(self, parts: list[Path], dim: int) -> None:
        self.dim = dim
        self._parts: list[Vectors] = [np.load(path, mmap_mode="r") for path in parts]

    def rows(self, numbers: Numbers) -> Vectors:
        """Returns a copy of the vectors of rows, [len(numbers), D]."""
        vectors = np.empty((len(numbers), self.dim), dtype=np.float32)
        parts = numbers // IMAGES_PER_PART
        for part in np.unique(parts).tolist():
            indices = np.flatnonzero(parts == part)
            vectors[indices] = self._parts[part][numbers[indices] % IMAGES_PER_PART]
        return vectors

    def present(self) -> npt.NDArray[np.bool_]:
        """Returns which images have a vector, [P]."""
        return np.concatenate([~np.isnan(part[:, 0]) for part in self._parts])


def part_paths(num_images: int, folder: Path) -> list[Path]:
    """Returns the files of the vectors of a number of images, one for each part."""
    return [folder / f"means-{k:05d}.npy" for k in range(-(-num_images // IMAGES_PER_PART))]


def write_part(regions: RegionReader, number: int, path: Path, first: int) -> int:
    """Writes the vectors of a part of the images; returns the number of images without one.

    ``first`` is 1 to exclude row 0 of each image. Memory: one part, 4 D bytes for each of its 8,192
    images.
    """
    start = number * IMAGES_PER_PART
    stop = min(start + IMAGES_PER_PART, len(regions))
    vectors = np.full((stop - start, regions.feature_dim), np.nan, dtype=np.float32)
    missing = 0
    label = f"means of regions, part {number}"
    with Progress(total=stop - start, unit="image", label=label) as progress:
        for row, mean in enumerate(means_from(regions, start, stop, first)):
            if mean is not None:
                vectors[row] = mean
            missing += mean is None
            progress.advance(rejects=int(mean is None))
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.save(file, vectors)
    return missing


def means_from(
    regions: RegionReader, start: int, stop: int, first: int
) -> Iterator[Vectors | None]:
    """Yields the vectors of consecutive rows."""
    for number in range(start, stop):
        yield image_mean(regions, number, first)
