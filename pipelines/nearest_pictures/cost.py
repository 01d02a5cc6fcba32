"""A search for nearest pictures costs a product of all vectors with all others."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vlmill.pipelines.nearest_pictures.means import Means, Vectors, means_from
from vlmill.pipelines.nearest_pictures.search import QUERIES, NearestIndex
from vlmill.schemas.console.cost import Estimate, Rate, measure_rate
from vlmill.schemas.readers.regions import RegionReader

SAMPLE_PICTURES = 4_096
ID_BYTES = 36  # of a picture's id: 32 characters, and four bytes for its length
DISTANCE_BYTES = 4
FLOAT_BYTES = 4
WORK_COPIES = 2  # of each vector: as it is, and less the mean of all


def output_bytes(num_pictures: int, top: int) -> int:
    """Returns the most that the neighbours of so many pictures take."""
    nearest = min(top, max(num_pictures - 1, 0))
    return num_pictures * (ID_BYTES + nearest * (ID_BYTES + DISTANCE_BYTES))


def work_bytes(num_pictures: int, dim: int) -> int:
    """The room that the vectors take until the run has finished."""
    return num_pictures * dim * FLOAT_BYTES * WORK_COPIES


def measure(regions: RegionReader, first: int, top: int, threads: int) -> tuple[Rate, Rate]:
    """Returns the rates of averaging and of searching, on the first pictures among themselves."""
    count = min(len(regions), SAMPLE_PICTURES)
    vectors: list[Vectors] = []

    def averaged() -> Iterator[Vectors | None]:
        for mean in means_from(regions, 0, count, first):
            if mean is not None:
                vectors.append(mean)
            yield mean

    averaging = measure_rate(averaged(), "pictures")
    if not vectors:
        return averaging, Rate(items=0, seconds=0, unit="pictures")
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "means.npy", np.stack(vectors))
        means = Means([Path(folder) / "means.npy"], regions.feature_dim)
        path = Path(folder) / "vectors.npy"
        index = NearestIndex(means, np.arange(len(vectors)), path, threads=threads)
        neighbours = index.search(0, min(len(index), QUERIES), top)
        searching = measure_rate(neighbours, "pictures")
    return averaging, searching


def estimate_cost(
    num_pictures: int, dim: int, top: int, averaging: Rate, searching: Rate, sample: int
) -> Estimate:
    """The cost of all pictures; each is compared with as many times more as there are more."""
    times = max(1.0, num_pictures / sample)
    seconds = averaging.seconds_for(num_pictures)
    search_s = searching.seconds_for(num_pictures * times)
    work = work_bytes(num_pictures, dim)
    return Estimate(
        inputs={"--regions": f"{num_pictures:,} pictures, vectors of {dim}"},
        min_bytes=work,
        max_bytes=work + output_bytes(num_pictures, top),
        seconds=None if seconds is None or search_s is None else seconds + search_s,
        rate=searching,
        note=f"the rate is of a search among {sample:,} pictures; --output also takes the vectors "
        "while the run lasts",
    )
