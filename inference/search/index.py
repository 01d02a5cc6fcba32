"""Builds, measures, saves and opens FAISS indexes of vectors.

N vectors, Q queries, P their width, K results of a query. Scores are inner products of unit
vectors: cosines. `flat` compares every vector and is exact; `hnsw` walks a graph (Malkov and
Yashunin, arXiv:1603.09320), `ivf` searches the nearest cells of a k-means partition (Jegou et al.,
2011); for both the recall of the exact results is measured.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from vlmill.inference.search.table import ABOUT, Matrix, Vectors
from vlmill.runtime.files.atomic import atomic_folder
from vlmill.runtime.files.listed import FILE_RECORD, parse_record, record_files, require_unchanged
from vlmill.runtime.files.paths import readable, to_path
from vlmill.runtime.files.shards import SOFTWARE
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json

INDEX, ROWS, SETTINGS = "index.faiss", "rows.parquet", "index.json"
FORMAT = 1
LINKS = 32  # of a vector in hnsw's graph
BUILD_EFFORT = 100  # candidates while the graph is built
CELLS = 4  # cells of ivf, as a multiple of the root of N
# FAISS's defaults, 256 vectors per cell and 25 rounds, take 1.5e14 operations for a million
# vectors of 768 numbers: ten times as many, with the same recall.
A_CELL, KMEANS_ROUNDS = 64, 10
EFFORT = {"hnsw": 128, "ivf": 32}  # candidates; searched cells
MEASURED, MEASURED_TOP = 1_000, 10


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Holds ``scores`` float32 [Q, K] in descending order, and ``positions`` int64 [Q, K] in the
    index; -1 where an approximate index has no more.
    """

    scores: NDArray[np.float32]
    positions: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class SearchIndex:
    """Holds a FAISS index, its rows, and its settings."""

    faiss_index: Any
    about: pa.Table
    settings: Mapping[str, Any]

    @property
    def width(self) -> int:
        """Returns P."""
        return int(self.faiss_index.d)

    def nearest(self, queries: Matrix, top: int) -> Answers:
        """Returns the ``top`` best vectors of each query; equal scores keep the order of the
        vectors.
        """
        count = min(top, self.faiss_index.ntotal)
        scores, positions = self.faiss_index.search(
            np.ascontiguousarray(queries, np.float32), count
        )
        order = np.lexsort((positions, -scores), axis=1)
        return Answers(
            scores=np.take_along_axis(scores, order, axis=1),
            positions=np.take_along_axis(positions, order, axis=1),
        )


def build_index(vectors: Vectors, kind: str, effort: int | None = None) -> SearchIndex:
    """Builds an index; ``effort`` is the search effort of an approximate one (:data:`EFFORT`).

    Raises InputError for no vectors or fewer than it has cells.
    """
    import faiss  # in the extra `search`, which vlmill.load does not need

    matrix = vectors.matrix
    count, width = matrix.shape
    if effort is not None and (kind == "flat" or effort < 1):
        raise InputError(f"--effort {effort}: expected at least 1, with --type hnsw or ivf")
    parameters: dict[str, int] = {}
    index: Any
    if kind == "flat":
        index = faiss.IndexFlatIP(width)
    elif kind == "hnsw":
        parameters = {"links": LINKS, "effort": effort or EFFORT[kind]}
        index = faiss.IndexHNSWFlat(width, LINKS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = BUILD_EFFORT
        index.hnsw.efSearch = parameters["effort"]
    else:
        cells = max(1, min(round(CELLS * math.sqrt(count)), count // 39))  # FAISS: 39 per cell
        parameters = {"cells": cells, "effort": min(effort or EFFORT[kind], cells)}
        index = faiss.IndexIVFFlat(
            faiss.IndexFlatIP(width), width, cells, faiss.METRIC_INNER_PRODUCT
        )
        index.cp.max_points_per_centroid, index.cp.niter = A_CELL, KMEANS_ROUNDS
        index.train(matrix)
        index.nprobe = parameters["effort"]
    index.add(matrix)
    settings = {
        "index": FORMAT,
        "type": kind,
        "vectors": count,
        "width": width,
        "parameters": parameters,
        "of": vectors.about.column("kind")[0].as_py(),
        **vectors.origin,
    }
    return SearchIndex(faiss_index=index, about=vectors.about, settings=settings)


def measure_recall(index: SearchIndex, matrix: Matrix, queries: Matrix, *, same: bool) -> float:
    """Returns the fraction of the exact best :data:`MEASURED_TOP` that the index finds.

    ``same``: the queries are vectors of the index, which do not count as their own results.
    """
    import faiss

    top = min(MEASURED_TOP + int(same), len(matrix))
    _, exact = faiss.knn(queries, matrix, top, metric=faiss.METRIC_INNER_PRODUCT)
    positions = index.nearest(queries, top).positions
    first = int(same)  # the vector itself, or an equal one
    shares = [
        len(set(row[first:].tolist()) & set(other.tolist())) / max(1, top - first)
        for row, other in zip(exact, positions, strict=True)
    ]
    return float(np.mean(shares))


def sample_rows(matrix: Matrix) -> Matrix:
    """Returns at most :data:`MEASURED` rows, evenly spread."""
    chosen = np.unique(np.linspace(0, len(matrix) - 1, MEASURED).astype(np.int64))
    return np.ascontiguousarray(matrix[chosen])


def save_index(index: SearchIndex, folder: Path) -> None:
    """Writes the index; the folder appears completely or not at all."""
    import faiss

    with atomic_folder(folder, last=SETTINGS) as temporary:
        faiss.write_index(index.faiss_index, str(temporary / INDEX))
        pq.write_table(index.about, temporary / ROWS)
        files = record_files(temporary, (INDEX, ROWS))
        content = {**index.settings, "software": SOFTWARE, FILE_RECORD: files}
        (temporary / SETTINGS).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def open_index(folder: str | Path) -> SearchIndex:
    """Opens an index of :func:`save_index`.

    Raises InputError for a folder without an index, or with changed files, because FAISS trusts its
    input.
    """
    import faiss

    path = to_path(folder)
    try:
        settings = read_json(path / SETTINGS)
        if settings["index"] != FORMAT:
            raise InputError(
                f"--index {folder} has format {settings['index']}, this vlmill reads {FORMAT}"
            )
        require_unchanged(path, parse_record(settings[FILE_RECORD]), f"--index {folder}")
        index = faiss.read_index(os.fspath(path / INDEX))
        about = pq.read_table(readable(path / ROWS)).select(list(ABOUT)).combine_chunks()
        sizes = (index.d, index.ntotal, about.num_rows)
        if sizes != (settings["width"], settings["vectors"], settings["vectors"]):
            raise ValueError(f"its sizes {sizes} differ from the recorded ones")
    except FileNotFoundError as error:
        raise InputError(
            f"--index {folder} has no index ({error}); build one with --vectors TABLE "
            "--save-index DIR"
        ) from None
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, RuntimeError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"--index {folder} is damaged ({reason}); build it again") from None
    return SearchIndex(faiss_index=index, about=about, settings=settings)
