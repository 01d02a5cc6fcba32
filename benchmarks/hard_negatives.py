"""Measures the search for hard negatives by the number of captions, compared with two peers.

Prints lines of JSON. Captions are generated: words as frequent as in language, topics, and near
duplicates; or they are the first of a table of your own. Peers get the same vectors and must give
the same answer: scikit-learn's brute force (cosine) and sparse_dot_topn, each asked for more
neighbours until enough lie below the threshold. Seconds are CPU seconds of one thread. The limit is
what memory needs for what the search reads: postings in order, and bags' rows, a cache line each,
in any order.

    python benchmarks/hard_negatives.py --full
    python benchmarks/hard_negatives.py --full --pairs captions.parquet --text-column caption
"""

import gc
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from shell import add_counts, new_parser, parse_form, peak_gb, print_line, timed
from sklearn.neighbors import NearestNeighbors
from sparse_dot_topn import sp_matmul_topn

from vlmill.pipelines.hard_negatives.arrays import Bags, Part, map_arrays, save
from vlmill.pipelines.hard_negatives.index import build_bags, build_index
from vlmill.pipelines.hard_negatives.job import prepare
from vlmill.pipelines.hard_negatives.kernel import search
from vlmill.pipelines.hard_negatives.rules import NegativeRules
from vlmill.pipelines.hard_negatives.source import Source, build_source
from vlmill.pipelines.hard_negatives.state import Rules
from vlmill.pipelines.hard_negatives.vectors import compute_idf, compute_weights

TOP, RULES = 30, Rules(30, 1, 2)
WORDS, TOPICS, TOPIC_WORDS = 50_000, 2_600, 45
PEER_QUERIES = 200
POSTING_BYTES = 20
TRIES = 3  # of reading memory; the fastest counts
MOST_COMPARED = 200_000  # captions: above, peers take minutes
SHORT: dict[str, Any] = {"captions": [50_000, 200_000], "queries": 20_000}
FULL: dict[str, Any] = {"captions": [50_000, 200_000, 1_000_000, 3_300_000], "queries": 50_000}

Array = npt.NDArray[Any]
Counted = tuple[sparse.csr_array, Array]  # captions' counts; captions searched, and their lists


def counts_of(num: int, seed: int) -> sparse.csr_array:
    """int32 [N, V] counts of generated captions: 5 to 25 words, some of a topic, a third edited."""
    random = np.random.default_rng(seed)
    shares = (np.arange(WORDS) + 65.0) ** -1.1
    cumulative = np.cumsum(shares / shares.sum())
    topics = np.searchsorted(cumulative, random.random((TOPICS, TOPIC_WORDS))) + 50
    sizes = np.minimum(5 + random.gamma(1.3, 4.4, num).astype(int), 25)
    rows = np.repeat(np.arange(num), sizes)
    kinds = random.random(rows.size)
    general = np.searchsorted(cumulative, random.random(rows.size)) + 50
    popular = np.minimum(random.zipf(1.6, rows.size), 50) - 1
    topic = (TOPICS * random.random(num) ** 2).astype(int)[rows]
    of_topic = topics[topic, (TOPIC_WORDS * random.random(rows.size) ** 2).astype(int)]
    words = np.where(kinds < 0.4, popular, np.where(kinds < 0.85, of_topic, general))
    starts = np.concatenate([[0], np.cumsum(sizes)])
    originals = np.arange(num)
    edited = random.random(num) < 0.33
    originals[edited] = (originals[edited] * random.random(edited.sum()) ** 3).astype(int)
    keep = random.random(rows.size) < 0.65
    place = np.arange(rows.size) - starts[rows]
    source = starts[originals[rows]] + place
    valid = keep & edited[rows] & (place < sizes[originals[rows]])
    words = np.where(valid, words[np.where(valid, source, 0)], words)
    ones = np.ones(words.size, np.int32)
    matrix = sparse.coo_array((ones, (rows, words)), shape=(num, WORDS + 50)).tocsr()
    frequency = np.bincount(matrix.indices, minlength=matrix.shape[1])
    order = np.argsort(-frequency, kind="stable")[: np.count_nonzero(frequency)]
    matrix = sparse.csr_array(matrix[:, order])
    matrix.sort_indices()
    return matrix


def prepared(counts: sparse.csr_array, folder: Path) -> tuple[Bags, Part]:
    """Bags and index, mapped from files as the job's workers have them."""
    num = counts.shape[0]
    frequency = np.bincount(counts.indices, minlength=counts.shape[1])
    bags = build_bags(
        counts.indptr.astype(np.int64),
        counts.indices.astype(np.int32),
        counts.data.astype(np.int32),
        np.arange(num, dtype=np.int32),
        compute_weights(compute_idf(frequency, num)),
    )
    save(folder / "bags", bags)
    save(folder / "part", build_index(bags))
    del bags
    gc.collect()
    return map_arrays(folder / "bags", Bags), map_arrays(folder / "part", Part)


def measure(num: int, queries: int, source: Source | None) -> tuple[float, Counted]:
    """(seconds a query, captions and lists) of ``queries`` neighbouring ones among ``num``."""
    with tempfile.TemporaryDirectory() as folder:
        if source is None:
            counts = counts_of(num, seed=7)
            seconds, (bags, part) = timed(lambda: prepared(counts, Path(folder)))
        else:
            made = partial(prepare, source, Path(folder), NegativeRules(), num)
            seconds, (bags, part) = timed(made)
            counts = counts_from(bags)
        name, index_seconds = f"hard_negatives/{num}", seconds
        count = min(queries, num)
        first = (num - count) // 2
        lists = np.empty((count, TOP), np.int32), np.empty((count, TOP))
        arguments = (bags, part, RULES, first)
        seconds, (postings, looked_up) = timed(lambda: search(*arguments, np.zeros(count), lists))
        limit = postings * POSTING_BYTES / read_rate(part) + looked_up / row_rate(part)
        members, numbers = np.array(bags.members[first : first + count]), lists[0]
    print_line(f"{name}/index", num / index_seconds, "captions/CPU s")
    print_line(
        f"{name}/search",
        count / seconds,
        "queries/CPU s",
        limit=count / limit,
        fraction_of_limit=limit / seconds,
        us_a_query=seconds / count * 1e6,
        postings=postings / count,
        rows=looked_up / count,
    )
    print_line(f"{name}/peak_rss", peak_gb(), "GB")
    return seconds / count, (counts, np.column_stack([members, numbers]))


def counts_from(bags: Bags) -> sparse.csr_array:
    """int32 [N, V] counts of the captions of bags."""
    shape = bags.norm2.size, bags.weights.size
    of_bags = sparse.csr_array((bags.counts, bags.words, bags.start), shape=shape)
    bag_of = np.empty(bags.members.size, np.int64)
    bag_of[bags.members] = np.repeat(np.arange(shape[0]), np.diff(bags.member_start))
    return sparse.csr_array(of_bags[bag_of])


def compile_all() -> None:
    """Compiles or loads what is timed, on a few captions."""
    with tempfile.TemporaryDirectory() as folder:
        bags, part = prepared(counts_of(100, seed=7), Path(folder))
        search(
            bags, part, RULES, 0, np.zeros(1), (np.empty((1, TOP), np.int32), np.empty((1, TOP)))
        )


def read_rate(part: Part) -> float:
    """Bytes a CPU second at which the signatures of all postings are read in order."""
    arrays = [np.array(bits) for bits in (part.bits0, part.bits1, part.bits2)]
    seconds, _ = timed(lambda: [array.sum(dtype=np.uint32) for array in arrays], TRIES)
    return float(sum(array.nbytes for array in arrays) / seconds)


def row_rate(part: Part) -> float:
    """Rows a CPU second that are read in any order."""
    places = np.random.default_rng(0).integers(0, len(part.rows), 500_000)
    seconds, _ = timed(lambda: part.rows.take(places, axis=0), TRIES)
    return float(places.size / seconds)


def unit_vectors(counts: sparse.csr_array) -> sparse.csr_array:
    """float64 [N, V] of length 1, with the integer weights of the search."""
    frequency = np.bincount(counts.indices, minlength=counts.shape[1])
    roots = np.sqrt(compute_weights(compute_idf(frequency, counts.shape[0])).astype(np.float64))
    vectors = sparse.csr_array(counts.astype(np.float64) @ sparse.diags_array(roots))
    norms = np.sqrt(vectors.multiply(vectors).sum(axis=1))
    return sparse.csr_array(sparse.diags_array(1 / np.maximum(norms, 1e-300)) @ vectors)


def with_sklearn(vectors: sparse.csr_array, rows: Array, k: int) -> list[tuple[Array, Array]]:
    """(captions, cosines) of each query's k nearest by scikit-learn's brute force."""
    model = NearestNeighbors(n_neighbors=k, metric="cosine", algorithm="brute", n_jobs=1)
    distances, near = model.fit(vectors).kneighbors(vectors[rows])
    return list(zip(near, 1 - distances, strict=True))


def with_topn(vectors: sparse.csr_array, rows: Array, k: int) -> list[tuple[Array, Array]]:
    """The same by sparse_dot_topn."""
    product = sparse.csr_array(
        sp_matmul_topn(
            sparse.csr_matrix(vectors[rows]),
            sparse.csr_matrix(vectors.T),
            top_n=k,
            sort=True,
            n_threads=1,
        )
    )
    cuts = product.indptr[1:-1]
    return list(zip(np.split(product.indices, cuts), np.split(product.data, cuts), strict=True))


def until_enough(
    peer: Callable[..., list[tuple[Array, Array]]], vectors: sparse.csr_array, rows: Array
) -> dict[int, Array]:
    """Cosines of the 30 best below one half, asking for four times as many until all have them."""
    answer: dict[int, Array] = {}
    left, k = rows, 4 * TOP
    while left.size:
        k = min(k, vectors.shape[0])
        for row, (near, cosines) in zip(left, peer(vectors, left, k), strict=True):
            below = np.sort(cosines[(cosines < 0.5 - 1e-9) & (cosines > 1e-12) & (near != row)])
            if below.size >= TOP or k == vectors.shape[0] or near.size < k:
                answer[int(row)] = below[::-1][:TOP]
        left, k = np.array([row for row in left if int(row) not in answer], np.int64), 4 * k
    return answer


def compare(num: int, seconds: float, counts: sparse.csr_array, lists: Array) -> None:
    """Prints the peers' rates on some of the queries; raises where their answer is another."""
    vectors = unit_vectors(counts)
    chosen = lists[:: max(1, len(lists) // PEER_QUERIES)][:PEER_QUERIES]
    for name, peer in (("sklearn", with_sklearn), ("sparse_dot_topn", with_topn)):
        peer_seconds, answer = timed(partial(until_enough, peer, vectors, chosen[:, 0]))
        for caption, *numbers in chosen.tolist():
            own = np.array([k for k in numbers if k >= 0], np.int64)
            cosines = np.sort((vectors[own] @ vectors[[caption]].T).toarray().ravel())[::-1]
            size = min(own.size, answer[caption].size)
            np.testing.assert_allclose(cosines[:size], answer[caption][:size], atol=1e-9)
            assert abs(own.size - answer[caption].size) <= np.count_nonzero(cosines > 0.5 - 1e-8)
        rate = 1 / seconds
        peer_rate = len(chosen) / peer_seconds
        print_line(
            f"hard_negatives/{num}/against_{name}",
            rate,
            "queries/CPU s",
            peer=peer_rate,
            ratio=rate / peer_rate,
        )


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = new_parser(__doc__)
    parser.add_argument(
        "--captions", type=int, nargs="+", metavar="N", help="numbers of captions to measure"
    )
    add_counts(parser, queries="queries to search at each size")
    parser.add_argument(
        "--pairs", metavar="TABLE", help="table of captions to use instead of generated ones"
    )
    parser.add_argument(
        "--text-column", metavar="C", help="column of the captions in a Parquet or TSV file"
    )
    arguments = parse_form(parser, argv, short=SHORT, full=FULL)
    source = None
    if arguments.pairs is not None:
        source = build_source(arguments.pairs, None, None, arguments.text_column)
    compile_all()
    seconds = {}
    for num in arguments.captions:
        seconds[num], counted = measure(num, arguments.queries, source)
        if num <= MOST_COMPARED:
            compare(num, seconds[num], *counted)
    sizes = np.log(list(seconds))
    if sizes.size > 1:
        growth = np.polyfit(sizes, np.log(list(seconds.values())), 1)[0]
        print_line("hard_negatives/growth", 1 + float(growth), "exponent of all queries", limit=1.6)


if __name__ == "__main__":
    main()
