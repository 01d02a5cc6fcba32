"""Measures speed and recall of `train-vl search` with each type of index.

Prints lines of JSON. Vectors have length 1 and lie around 1,000 directions; queries are further
ones. ``peer`` is a NumPy product of the queries with all vectors and a partial sort, whose best
ones the exact index must give; ``limit`` is the rate at which that float32 product alone would
answer, measured in the same process. Seconds are CPU seconds of all threads, the least of the
rounds; the recall is that of ten answers against the exact ones. ``p99_ms`` is of searches for one
query. The candidates of `pq` are chosen with other queries, ``measured_s`` includes that.

    python benchmarks/search.py --full
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from functools import partial

# Waiting threads must sleep: spinning ones count as CPU time and take the cores of others.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from shell import add_counts, new_parser, parse_form, peak_gb, print_line, timed

from vlmill.inference.search.building import TYPES, build_index, measure_recall, measured_index
from vlmill.inference.search.index import SearchIndex
from vlmill.inference.search.table import ABOUT, Vectors
from vlmill.runtime.console.threads import faiss_threads
from vlmill.schemas.tables import VECTORS

Matrix = npt.NDArray[np.float32]
SHORT = {"vectors": 10_000, "queries": 256, "rounds": 1}
FULL = {"vectors": 1_000_000, "queries": 1_024, "rounds": 2}
DIRECTIONS, NOISE = 1_000, 1.0  # the noise is as long as the direction
AT_ONCE = 8_192
TOP = 10
GEMM_ROUNDS = 3
TUNING = 2_000  # queries that the candidates of pq are chosen with
ALONE = 200  # queries that are searched one by one


def generated(count: int, width: int, seed: int) -> Matrix:
    """Unit vectors [N, P] around directions that do not depend on ``seed``."""
    directions = np.random.default_rng(0).standard_normal((DIRECTIONS, width), dtype=np.float32)
    random = np.random.default_rng(seed)
    matrix = np.empty((count, width), dtype=np.float32)
    for start in range(0, count, AT_ONCE):
        block = matrix[start : start + AT_ONCE]
        block[:] = directions[random.integers(0, DIRECTIONS, len(block))]
        block += NOISE * random.standard_normal(block.shape, dtype=np.float32)
        block /= np.linalg.norm(block, axis=1, keepdims=True)
    return matrix


def by_numpy(matrix: Matrix, queries: Matrix) -> npt.NDArray[np.int64]:
    """The peer: the places of the best ones, by products with blocks of all vectors."""
    scores, places = [], []
    for start in range(0, len(matrix), AT_ONCE):
        products = queries @ matrix[start : start + AT_ONCE].T
        best = np.argpartition(-products, min(TOP, products.shape[1]) - 1, axis=1)[:, :TOP]
        scores.append(np.take_along_axis(products, best, axis=1))
        places.append(best + start)
    all_scores, all_places = np.hstack(scores), np.hstack(places)
    order = np.argsort(-all_scores, axis=1, kind="stable")[:, :TOP]
    return np.take_along_axis(all_places, order, axis=1)


def product_only(matrix: Matrix, queries: Matrix) -> None:
    """The limit: the products, and nothing else."""
    size = min(AT_ONCE, len(matrix))
    out = np.zeros((len(queries), size), dtype=np.float32)  # zeros: its pages are there
    for start in range(0, len(matrix) - size + 1, size):
        np.matmul(queries, matrix[start : start + size].T, out=out)


def each_alone(index: SearchIndex, queries: Matrix) -> dict[str, float]:
    """Returns how long searches for one query take, in milliseconds of the clock and of the CPU."""
    seconds, begin = [], time.process_time()
    for query in queries[:ALONE]:
        start = time.perf_counter()
        index.nearest(query[None], TOP)
        seconds.append(time.perf_counter() - start)
    cpu = (time.process_time() - begin) / len(seconds)
    quantiles = {f"p{q}_ms": 1_000 * float(np.percentile(seconds, q)) for q in (50, 99)}
    return {**quantiles, "cpu_ms": 1_000 * cpu}


def measure(options: argparse.Namespace) -> None:
    """Builds each kind of index, searches and compares."""
    matrix = generated(options.vectors, options.width, options.seed + 1)
    queries = generated(options.queries, options.width, options.seed + 2)
    tuning = generated(TUNING, options.width, options.seed + 3)
    kinds = ["image"] * len(matrix)
    columns = {name: pa.nulls(len(matrix), VECTORS.schema.field(name).type) for name in ABOUT}
    vectors = Vectors(matrix=matrix, about=pa.table(columns | {"kind": kinds}), origin={})
    peer_s, exact = timed(lambda: by_numpy(matrix, queries), options.rounds)
    limit_s, _ = timed(lambda: product_only(matrix, queries), GEMM_ROUNDS)
    about = {"vectors": len(matrix), "width": options.width, "queries": len(queries), "top": TOP}
    for kind in options.types:
        build_s, index = timed(partial(build_index, vectors, kind))
        measure_s, index = timed(partial(measured_index, index, matrix, tuning, kind="text"))
        own_s, answers = timed(partial(index.nearest, queries, TOP), options.rounds)
        if kind == "flat" and not np.array_equal(np.sort(answers.positions), np.sort(exact)):
            different = (np.sort(answers.positions) != np.sort(exact)).mean()
            if different > 1e-3:  # float32 sums in another order: near equals may change places
                sys.exit("the exact index gives other vectors than NumPy")
        recall = measure_recall(index, matrix, queries, same=False)
        more = {**about, "recall_at_10": recall, **index.settings["parameters"]}
        more |= each_alone(index, queries)
        print_line(
            f"search/{kind}/queries",
            len(queries) / own_s,
            "queries/CPU s",
            peer=len(queries) / peer_s,
            ratio=peer_s / own_s,
            limit=len(queries) / limit_s,
            fraction_of_limit=limit_s / own_s,
            **more,
        )
        print_line(
            f"search/{kind}/build",
            len(matrix) / build_s,
            "vectors/CPU s",
            seconds=build_s,
            measured_s=measure_s,
            **about,
        )
        del index
    print_line("search/peak_rss", peak_gb(), "GB", **about)


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = new_parser(__doc__)
    add_counts(
        parser,
        vectors="vectors in the index",
        queries="queries to answer",
        rounds="rounds to measure; the fastest counts",
        width=(768, "width of a vector"),
    )
    parser.add_argument("--types", nargs="+", default=list(TYPES), metavar="TYPE")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    options = parse_form(parser, argv, short=SHORT, full=FULL)
    with faiss_threads(options.threads):
        measure(options)


if __name__ == "__main__":
    main()
