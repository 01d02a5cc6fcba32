"""Exact neighbours: float64 brute force says the same, with ties, duplicates and far clouds."""

from pathlib import Path

import faiss
import numpy as np
import numpy.typing as npt
import pytest

from vlmill.pipelines.nearest_images import search
from vlmill.pipelines.nearest_images.means import IMAGES_PER_PART, Means, Numbers
from vlmill.pipelines.nearest_images.search import NearestIndex

Array = npt.NDArray[np.float32]


def brute(vectors: Array, top: int) -> list[list[tuple[float, int]]]:
    """Every image's neighbours as (distance, place), by all distances in float64."""
    lists = []
    for place, vector in enumerate(vectors):
        distances = np.sqrt(((vectors.astype(np.float64) - vector) ** 2).sum(1)).astype(np.float32)
        others = sorted((float(d), k) for k, d in enumerate(distances) if k != place)
        lists.append(others[:top])
    return lists


def index_of(vectors: Array, folder: Path, *, threads: int = 1) -> NearestIndex:
    paths = []
    for number, start in enumerate(range(0, len(vectors), IMAGES_PER_PART)):
        paths.append(folder / f"means-{number}.npy")
        np.save(paths[-1], vectors[start : start + IMAGES_PER_PART])
    means = Means(paths, vectors.shape[1])
    return NearestIndex(means, np.arange(len(vectors)), folder / "vectors.npy", threads=threads)


def searched(vectors: Array, folder: Path, top: int) -> list[list[tuple[float, int]]]:
    index = index_of(vectors, folder)
    return [
        list(zip(nearest.distances.tolist(), nearest.positions.tolist(), strict=True))
        for nearest in index.search(0, len(index), top)
    ]


def clouds(name: str) -> Array:
    random = np.random.default_rng(0)
    normal = random.standard_normal((300, 24))
    made = {
        "normal": normal,
        # FAISS alone errs in the first digit here: differences of 1e-3 beside lengths of 1e4.
        "far from the origin": 10_000 + normal / 1_000,
        "several far clouds": normal + 1e6 * random.integers(0, 3, (300, 1)),
        # Many images at one distance: squares of whole numbers up to 3.
        "a lattice": random.integers(0, 2, (300, 3)).astype(float),
        "a lattice without repeats": np.stack(np.meshgrid(*[np.arange(7)] * 3), -1).reshape(-1, 3),
        "all the same": np.ones((300, 4)),
        "each several times": np.repeat(normal[:40], 7, axis=0)[random.permutation(280)],
        "lengths of many sizes": normal * 10.0 ** random.integers(-12, 12, (300, 1)),
        "too small for squares": normal * 1e-30,
    }
    return made[name].astype(np.float32) + np.float32(0)


NAMES = (
    "normal",
    "far from the origin",
    "several far clouds",
    "a lattice",
    "a lattice without repeats",
    "all the same",
    "each several times",
    "lengths of many sizes",
    "too small for squares",
)


@pytest.mark.parametrize("top", [1, 20, 1000])
@pytest.mark.parametrize("name", NAMES)
def test_the_neighbours_are_those_of_brute_force(name: str, top: int, tmp_path: Path) -> None:
    vectors = clouds(name)
    assert searched(vectors, tmp_path, top) == brute(vectors, top)


def test_few_candidates_are_searched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without spare candidates the bound cannot settle a query: more are asked for."""
    widths = []

    def counted(queries: Array, vectors: Array, width: int) -> tuple[Array, Numbers]:
        widths.append(width)
        squares = ((queries[:, None].astype(np.float64) - vectors) ** 2).sum(2)
        order = np.argsort(squares, axis=1)[:, :width]
        return np.take_along_axis(squares, order, 1).astype(np.float32), order

    monkeypatch.setattr(search, "SPARE", 0)
    monkeypatch.setattr(faiss, "knn", counted)
    vectors = clouds("a lattice without repeats")
    assert searched(vectors, tmp_path, 5) == brute(vectors, 5)
    assert widths == [6, 48]


def test_candidates_in_another_order_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What FAISS makes of ties is not looked at."""
    vectors = clouds("a lattice without repeats")
    knn = faiss.knn

    def reversed_ties(queries: Array, vectors: Array, width: int) -> tuple[Array, Numbers]:
        squares, places = knn(queries, vectors, width)
        for row in range(len(places)):
            order = np.lexsort((-places[row], squares[row]))
            places[row] = places[row][order]
        return squares, places

    monkeypatch.setattr(faiss, "knn", reversed_ties)
    assert searched(vectors, tmp_path, 9) == brute(vectors, 9)


def test_blocks_parts_and_threads_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = clouds("each several times")
    whole = searched(vectors, tmp_path, 12)
    monkeypatch.setattr(search, "QUERIES", 7)
    monkeypatch.setattr(search, "MOST_CANDIDATES", 100)
    monkeypatch.setattr(search, "ROWS_AT_ONCE", 11)
    index = index_of(vectors, tmp_path, threads=3)
    parts = [*index.search(0, 100, 12), *index.search(100, len(index), 12)]
    assert [n.positions.tolist() for n in parts] == [[p for _, p in row] for row in whole]


def test_one_image_has_no_neighbour(tmp_path: Path) -> None:
    assert searched(np.ones((1, 3), np.float32), tmp_path, 5) == [[]]


def test_the_threads_of_other_libraries_stay_as_many_as_they_were(tmp_path: Path) -> None:
    before = faiss.omp_get_max_threads()
    index = index_of(clouds("normal"), tmp_path, threads=before + 1)
    next(index.search(0, len(index), 3))
    assert faiss.omp_get_max_threads() == before
    list(index.search(0, len(index), 3))
    assert faiss.omp_get_max_threads() == before
