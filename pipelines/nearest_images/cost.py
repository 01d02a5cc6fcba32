"""Estimates the cost of a search: it multiplies each vector with all others."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vlmill.pipelines.nearest_images.means import Means, Vectors, means_from
from vlmill.pipelines.nearest_images.search import QUERIES, NearestIndex
from vlmill.runtime.console.cost import Estimate, Rate, measure_rate
from vlmill.runtime.readers.regions import RegionReader

SAMPLE_IMAGES = 4_096
ID_BYTES = 36  # of an image's id: 32 characters, and four bytes for its length
DISTANCE_BYTES = 4
FLOAT_BYTES = 4
WORK_COPIES = 2  # of each vector: unchanged, and minus the mean of all


def output_bytes(num_images: int, top: int) -> int:
    """Returns the largest size of the neighbours of a number of images."""
    nearest = min(top, max(num_images - 1, 0))
    return num_images * (ID_BYTES + nearest * (ID_BYTES + DISTANCE_BYTES))


def work_bytes(num_images: int, dim: int) -> int:
    """Returns the disk space of the vectors until the run has finished."""
    return num_images * dim * FLOAT_BYTES * WORK_COPIES


def measure(regions: RegionReader, first: int, top: int, threads: int) -> tuple[Rate, Rate]:
    """Returns the rates of averaging and of searching, measured on the first images."""
    count = min(len(regions), SAMPLE_IMAGES)
    vectors: list[Vectors] = []

    def averaged() -> Iterator[Vectors | None]:
        for mean in means_from(regions, 0, count, first):
            if mean is not None:
                vectors.append(mean)
            yield mean

    averaging = measure_rate(averaged(), "images")
    if not vectors:
        return averaging, Rate(items=0, seconds=0, unit="images")
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "means.npy", np.stack(vectors))
        means = Means([Path(folder) / "means.npy"], regions.feature_dim)
        path = Path(folder) / "vectors.npy"
        index = NearestIndex(means, np.arange(len(vectors)), path, threads=threads)
        neighbours = index.search(0, min(len(index), QUERIES), top)
        searching = measure_rate(neighbours, "images")
    return averaging, searching


def estimate_cost(
    num_images: int, dim: int, top: int, averaging: Rate, searching: Rate, sample: int
) -> Estimate:
    """Returns the cost of all images, which grows with the square of their number."""
    times = max(1.0, num_images / sample)
    seconds = averaging.seconds_for(num_images)
    search_s = searching.seconds_for(num_images * times)
    work = work_bytes(num_images, dim)
    return Estimate(
        inputs={"--regions": f"{num_images:,} images, vectors of {dim}"},
        min_bytes=work,
        max_bytes=work + output_bytes(num_images, top),
        seconds=None if seconds is None or search_s is None else seconds + search_s,
        rate=searching,
        note=f"the rate is measured by a search among {sample:,} images; --output also "
        "stores the vectors during the run",
    )
