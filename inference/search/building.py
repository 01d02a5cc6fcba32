"""Builds FAISS indexes of vectors, and measures their recall.

N vectors, P their width. `flat` compares every vector and is exact; `hnsw` walks a graph (Malkov
and Yashunin, arXiv:1603.09320), `ivf` searches the nearest cells of a k-means partition (Jegou et
al., 2011), `pq` compares short codes of all vectors and then the best ones exactly (Andre et al.,
arXiv:1812.09162; FAISS calls it PQ64x4fs,RFlat).
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmill.inference.search.index import FORMAT, MEASURED_TOP, NEIGHBOUR, SearchIndex, flat_part
from vlmill.inference.search.table import Matrix, Vectors
from vlmill.schemas.errors import InputError

TYPES = ("flat", "hnsw", "ivf", "pq")
LINKS = 32  # of a vector in hnsw's graph
BUILD_EFFORT = 100  # candidates while the graph is built
CELLS = 4  # cells of ivf, as a multiple of the root of N
# FAISS's defaults, 256 vectors per cell and 25 rounds, take 1.5e14 operations for a million
# vectors of 768 numbers: ten times as many, with the same recall.
A_CELL, KMEANS_ROUNDS = 64, 10
EFFORT = {"hnsw": 128, "ivf": 32}  # candidates; searched cells
PARTS, PART_BITS = 64, 4  # of a vector's code in pq
CODEBOOK_ROWS = 16_384  # vectors that pq's 16 centroids per part are trained on
TARGET = 0.99  # recall that pq's number of candidates is chosen for
MOST_EFFORT = 256  # candidates of pq per result
MEASURED = 1_000  # queries whose recall is measured
ROWS_AT_ONCE = 1_024  # rows whose neighbours are searched together


def build_index(vectors: Vectors, kind: str, effort: int | None = None) -> SearchIndex:
    """Builds an index of a type of :data:`TYPES`; ``effort`` is the search effort of an approximate
    one. The default of `pq` is chosen by :func:`choose_effort`, of others :data:`EFFORT`.

    Raises InputError for an effort that the type does not have.
    """
    if effort is not None and (kind == "flat" or effort < 1):
        raise InputError(f"--effort {effort}: expected at least 1, with --type hnsw, ivf or pq")
    matrix = vectors.matrix
    index, parameters = MAKERS[kind](matrix, effort)
    index.add(matrix)
    settings = {
        "index": FORMAT,
        "type": kind,
        "vectors": len(matrix),
        "width": matrix.shape[1],
        "parameters": parameters,
        "of": vectors.about.column("kind")[0].as_py(),
        **vectors.origin,
    }
    return SearchIndex(faiss_index=index, about=vectors.about, settings=settings)


def make_flat(matrix: Matrix, effort: int | None) -> tuple[Any, dict[str, int]]:
    """Returns an empty index that compares every vector, and its parameters."""
    import faiss  # in the extra `search`, which vlmill.load does not need

    return faiss.IndexFlatIP(matrix.shape[1]), {}


def make_hnsw(matrix: Matrix, effort: int | None) -> tuple[Any, dict[str, int]]:
    """Returns an empty graph, and its parameters."""
    import faiss

    parameters = {"links": LINKS, "effort": effort or EFFORT["hnsw"]}
    index = faiss.IndexHNSWFlat(matrix.shape[1], LINKS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = BUILD_EFFORT
    index.hnsw.efSearch = parameters["effort"]
    return index, parameters


def make_ivf(matrix: Matrix, effort: int | None) -> tuple[Any, dict[str, int]]:
    """Returns empty cells that are trained on the vectors, and their parameters."""
    import faiss

    count, width = matrix.shape
    cells = max(1, min(round(CELLS * math.sqrt(count)), count // 39))  # FAISS: 39 per cell
    parameters = {"cells": cells, "effort": min(effort or EFFORT["ivf"], cells)}
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, cells, faiss.METRIC_INNER_PRODUCT)
    index.cp.max_points_per_centroid, index.cp.niter = A_CELL, KMEANS_ROUNDS
    index.train(matrix)
    index.nprobe = parameters["effort"]
    return index, parameters


def make_pq(matrix: Matrix, effort: int | None) -> tuple[Any, dict[str, int]]:
    """Returns empty codes and vectors, with codebooks that are trained on a sample, and the
    parameters.
    """
    import faiss

    count, width = matrix.shape
    parts = max(number for number in range(1, PARTS + 1) if width % number == 0)
    if count < (min_vectors := 1 << PART_BITS):
        raise InputError(
            f"--type pq needs at least {min_vectors} vectors, not {count}; use --type flat"
        )
    codes: Any = faiss.IndexPQFastScan(width, parts, PART_BITS, faiss.METRIC_INNER_PRODUCT)
    codes.pq.cp.min_points_per_centroid = 1  # no warning for few vectors
    codes.train(training_rows(matrix))
    index = faiss.IndexRefineFlat(codes)
    index.own_fields = True
    codes.this.disown()
    index.k_factor = effort or MOST_EFFORT
    return index, {"parts": parts, "effort": int(index.k_factor)}


MAKERS = {"flat": make_flat, "hnsw": make_hnsw, "ivf": make_ivf, "pq": make_pq}


def training_rows(matrix: Matrix) -> Matrix:
    """Returns at most :data:`CODEBOOK_ROWS` rows, evenly spread. If there are many,
    :func:`sample_rows` returns none of them.
    """
    held_out = np.zeros(len(matrix), dtype=np.bool_)
    if len(matrix) > 4 * MEASURED:
        held_out[sample_positions(len(matrix), 2 * MEASURED)] = True
    rows = np.flatnonzero(~held_out)
    return np.ascontiguousarray(matrix[rows[sample_positions(len(rows), CODEBOOK_ROWS)]])


def sample_positions(count: int, size: int) -> NDArray[np.int64]:
    """Returns at most ``size`` of ``count`` positions, evenly spread."""
    return np.unique(np.linspace(0, count - 1, size).astype(np.int64))


def sample_rows(matrix: Matrix, size: int = MEASURED) -> Matrix:
    """Returns at most ``size`` rows, evenly spread."""
    return np.ascontiguousarray(matrix[sample_positions(len(matrix), size)])


def measure_recall(index: SearchIndex, matrix: Matrix, queries: Matrix, *, same: bool) -> float:
    """Returns the fraction of the exact best :data:`MEASURED_TOP` that the index finds.

    ``same``: the queries are vectors of the index, which do not count as their own results.
    """
    exact = exact_positions(matrix, queries, same=same)
    positions = index.nearest(queries, MEASURED_TOP + int(same)).positions[:, int(same) :]
    return mean_recall(exact, positions)


def exact_positions(matrix: Matrix, queries: Matrix, *, same: bool) -> NDArray[np.int64]:
    """Returns the exact best rows of queries [Q, K]: without the first, itself, if ``same``."""
    import faiss

    top = min(MEASURED_TOP + int(same), len(matrix))
    positions: NDArray[np.int64]
    _, positions = faiss.knn(queries, matrix, top, metric=faiss.METRIC_INNER_PRODUCT)
    return positions[:, int(same) :]


def mean_recall(exact: NDArray[np.int64], positions: NDArray[np.int64]) -> float:
    """Returns the mean fraction of the exact results among the found ones."""
    shares = [
        len(set(row.tolist()) & set(other.tolist())) / max(1, len(row))
        for row, other in zip(exact, positions, strict=True)
    ]
    return float(np.mean(shares))


def choose_effort(index: SearchIndex, matrix: Matrix, queries: Matrix, *, same: bool) -> float:
    """Sets the fewest candidates per result with which `pq` has a recall of :data:`TARGET`.

    They are chosen on one half of the queries and raised if the other half, which is held out, has
    a lower recall. Returns the recall of the held-out half. ``same`` as in :func:`measure_recall`.
    """
    refined, top = index.faiss_index, MEASURED_TOP + int(same)
    exact = exact_positions(matrix, queries, same=same)
    _, coarse = refined.base_index.search(queries, min(len(matrix), top * MOST_EFFORT))
    # The rank of each exact result among the codes: it is found if that many are compared exactly.
    ranks = np.full(exact.shape, len(matrix))
    for row, (best, order) in enumerate(zip(exact, coarse, strict=True)):
        known = {position: rank for rank, position in enumerate(order.tolist())}
        ranks[row] = [known.get(position, len(matrix)) for position in best.tolist()]
    halves = np.arange(len(queries)) % 2
    for effort in range(1, MOST_EFFORT + 1):
        is_found = ranks < effort * MEASURED_TOP
        if min(is_found[halves == half].mean() for half in np.unique(halves)) >= TARGET:
            break
    refined.k_factor = effort
    held_out = halves == halves[-1]
    positions = index.nearest(queries[held_out], top).positions[:, int(same) :]
    return mean_recall(exact[held_out], positions)


def measured_index(
    index: SearchIndex, matrix: Matrix, queries: Matrix, *, kind: str, effort: int | None = None
) -> SearchIndex:
    """Returns the index with its recall in the settings; chooses the effort of `pq`, unless it is
    given. ``kind`` is that of the queries.
    """
    if index.settings["type"] == "flat":
        return index
    settings, same = dict(index.settings), kind == index.settings["of"]
    if settings["type"] == "pq" and effort is None:
        recall = choose_effort(index, matrix, sample_rows(queries, 2 * MEASURED), same=same)
        chosen = int(index.faiss_index.k_factor)
        settings["parameters"] = {**settings["parameters"], "effort": chosen}
    else:
        recall = measure_recall(index, matrix, sample_rows(queries), same=same)
    settings |= {"recall_at_10": recall, "recall_of_queries": kind}
    return replace(index, settings=settings)


def find_neighbours(
    index: SearchIndex, count: int, advance: Callable[[int], None] = lambda _: None
) -> SearchIndex:
    """Returns the index with the ``count`` nearest rows of each row, as its search finds them."""
    neighbours = np.zeros((len(index), count), dtype=NEIGHBOUR)
    neighbours["row"] = -1
    for start in range(0, len(index), ROWS_AT_ONCE):
        rows = np.arange(start, min(start + ROWS_AT_ONCE, len(index)))
        answers = index.nearest(index.vectors(rows), count + 1)
        # Without itself, or without the last one if it was not found.
        order = np.argsort(answers.positions == rows[:, None], axis=1, kind="stable")[:, :count]
        there = neighbours[rows, : order.shape[1]]
        there["row"] = np.take_along_axis(answers.positions, order, axis=1)
        there["score"] = np.take_along_axis(answers.scores, order, axis=1)
        itself = there["row"] == rows[:, None]
        there["row"][itself] = -1
        neighbours[rows, : order.shape[1]] = there
        advance(len(rows))
    return replace(index, neighbours=neighbours)


def flat_matrix(index: SearchIndex) -> Matrix:
    """Returns the vectors of an index other than `ivf` without a copy, [N, P]."""
    import faiss

    part = flat_part(index.faiss_index)
    numbers: Matrix = faiss.rev_swig_ptr(part.get_xb(), part.ntotal * part.d)
    return numbers.reshape(part.ntotal, part.d)
