"""Measures the exact search for nearest images, compared with NumPy and a matrix product.

Prints lines of JSON. Vectors are generated: 40 directions with noise, positive as means of region
features are, some of them twice. ``peer`` is a blocked NumPy product of the queries with all
vectors, whose candidates are ranked in float64; its answer must be the same. ``limit`` is the rate
of that float32 product alone, measured in the same process. Seconds are CPU seconds of all
threads, the least of the rounds: they hold on a machine that does other work too.

    python benchmarks/nearest_images.py --full
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

# Waiting threads must sleep: spinning ones count as CPU time and take the cores of others.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import numpy.typing as npt
from shell import add_counts, new_parser, parse_form, peak_gb, print_line, timed

from vlmill.pipelines.nearest_images.means import IMAGES_PER_PART, Means
from vlmill.pipelines.nearest_images.search import SPARE, Nearest, NearestIndex

Vectors = npt.NDArray[np.float32]
SHORT = {"images": 30_000, "queries": 1_024, "rounds": 1}
FULL = {"images": 300_000, "queries": 2_048, "rounds": 2}
DIRECTIONS, NOISE, REPEATED = 40, 0.3, 0.02
BLOCK = 8_192  # vectors that the product takes at once
GEMM_ROUNDS = 3


def write_means(folder: Path, count: int, width: int, seed: int) -> Means:
    """Writes generated vectors in parts, as the job does."""
    random = np.random.default_rng(seed)
    directions = random.standard_normal((DIRECTIONS, width), dtype=np.float32)
    paths = []
    for start in range(0, count, IMAGES_PER_PART):
        size = min(IMAGES_PER_PART, count - start)
        vectors = random.standard_normal((size, DIRECTIONS), dtype=np.float32) @ directions
        vectors += NOISE * random.standard_normal((size, width), dtype=np.float32)
        np.maximum(vectors, 0, out=vectors)
        repeated = np.flatnonzero(random.random(size) < REPEATED)
        vectors[repeated] = vectors[random.permutation(repeated)]
        vectors[repeated[::2]] = vectors[repeated[: len(repeated[::2])]]
        paths.append(folder / f"means-{start:08d}.npy")
        np.save(paths[-1], vectors)
    return Means(paths, width)


def blocked(vectors: Vectors, queries: int, top: int) -> Iterator[Nearest]:
    """The peer: products of the first vectors with all, block by block, and the best so far."""
    lengths = np.einsum("nd,nd->n", vectors, vectors)
    squares = np.empty((queries, 0), dtype=np.float32)
    places = np.empty((queries, 0), dtype=np.int64)
    for start in range(0, len(vectors), BLOCK):
        block = vectors[start : start + BLOCK]
        near = lengths[start : start + BLOCK] - 2 * (vectors[:queries] @ block.T)
        squares = np.concatenate([squares, near], axis=1)
        numbers = np.broadcast_to(np.arange(start, start + len(block)), near.shape)
        places = np.concatenate([places, numbers], axis=1)
        width = min(top + 1 + SPARE, squares.shape[1])
        best = np.argpartition(squares, width - 1, axis=1)[:, :width]
        squares = np.take_along_axis(squares, best, 1)
        places = np.take_along_axis(places, best, 1)
    for query in range(queries):
        candidates = places[query][places[query] != query]
        difference = np.subtract(vectors[candidates], vectors[query], dtype=np.float64)
        distances = np.sqrt(np.einsum("cd,cd->c", difference, difference)).astype(np.float32)
        order = np.lexsort((candidates, distances))[:top]
        yield Nearest(positions=candidates[order], distances=distances[order])


def product_rate(vectors: Vectors, queries: int) -> float:
    """GFLOP per CPU second of the queries' product with a block of vectors."""
    block, few = np.array(vectors[:BLOCK]), np.array(vectors[:queries])
    seconds, _ = timed(lambda: few @ block.T, GEMM_ROUNDS)
    rate: float = 2 * len(few) * len(block) * vectors.shape[1] / seconds / 1e9
    return rate


def same(ours: Sequence[Nearest], theirs: Sequence[Nearest]) -> bool:
    """Whether two searches gave the same lists."""
    return all(
        np.array_equal(a.positions, b.positions) and np.array_equal(a.distances, b.distances)
        for a, b in zip(ours, theirs, strict=True)
    )


def measure(options: argparse.Namespace, folder: Path) -> None:
    """Prepares, searches and compares."""
    count, width, top = options.images, options.width, options.top
    queries = min(options.queries, count)
    means = write_means(folder, count, width, options.seed)
    made = partial(NearestIndex, means, np.arange(count), folder / "vectors.npy")
    prepared_s, index = timed(partial(made, threads=options.threads))
    own_s, answers = timed(lambda: list(index.search(0, queries, top)), options.rounds)
    peak = peak_gb()
    vectors = means.rows(np.arange(count))
    peer_s, theirs = timed(lambda: list(blocked(vectors, queries, top)), options.rounds)
    if not same(answers, theirs):
        sys.exit("NumPy's product gives other neighbours")
    limit = product_rate(vectors, queries)
    rate = 2 * queries * count * width / own_s / 1e9
    about = {"pictures": count, "width": width, "top": top, "queries": queries}
    print_line(
        "nearest_images/queries",
        queries / own_s,
        "queries/CPU s",
        peer=queries / peer_s,
        ratio=peer_s / own_s,
        limit=limit * 1e9 / (2 * count * width),
        fraction_of_limit=rate / limit,
        **about,
    )
    print_line(
        "nearest_images/product",
        rate,
        "GFLOP/CPU s",
        limit=limit,
        fraction_of_limit=rate / limit,
        **about,
    )
    print_line("nearest_images/prepare", count / prepared_s, "images/CPU s", **about)
    print_line("nearest_images/peak_rss", peak, "GB", **about)


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = new_parser(__doc__)
    add_counts(
        parser,
        images="number of images, each with a vector",
        queries="number of queries: the first images",
        rounds="rounds to measure; the fastest counts",
        width=(2048, "width of a vector"),
        top=(100, "nearest images per query"),
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    options = parse_form(parser, argv, short=SHORT, full=FULL)
    with tempfile.TemporaryDirectory() as folder:
        measure(options, Path(folder))


if __name__ == "__main__":
    main()
