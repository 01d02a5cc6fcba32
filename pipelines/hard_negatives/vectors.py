"""Computes TF-IDF like scikit-learn's ``TfidfVectorizer``, counted by chunks, with integer weights.

N captions, tf the raw count, idf(t) = ln((1 + N) / (1 + df(t))) + 1. Words are numbered by falling
df, ties by code point. Each chunk of captions is split into words once: its words are in
``words-*.arrow`` (word, captions), its counts in ``counts-*.npz``.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vlmill.pipelines.hard_negatives.arrays import Array, Bags, save
from vlmill.pipelines.hard_negatives.captions import Staged, chunk_starts, read_arrow, write_arrow
from vlmill.pipelines.hard_negatives.index import build_bags
from vlmill.pipelines.hard_negatives.plan import Plan
from vlmill.pipelines.hard_negatives.rules import NegativeRules
from vlmill.pipelines.hard_negatives.tokens import make_tokenizer
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.atomic import atomic_path
from vlmill.runtime.files.paths import readable
from vlmill.runtime.files.shards import ShardWriter
from vlmill.runtime.units.numbers import Numbers
from vlmill.runtime.units.unit import Result, Unit
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import VOCABULARY

WEIGHT_BITS = 16


def compute_idf(captions: Array, total: int) -> Array:
    """Returns the idf, float64 [V], from the number of captions, of ``total``, that have a word."""
    idf: Array = np.log((1 + total) / (1 + captions)) + 1
    return idf


def compute_weights(idf: Array) -> Array:
    """Returns int64 [V]: round(idf^2 * 2^16), so that sums are exact in any order."""
    weights: Array = np.rint(idf * idf * 2**WEIGHT_BITS).astype(np.int64)
    return weights


def chunk_units(plan: Plan) -> list[Unit]:
    """Returns a unit for each chunk of captions."""
    return [Unit(name=f"words-{k:05d}", number=k) for k in range(plan.staged.chunks)]


def cut_chunk(plan: Plan, unit: Unit) -> Result:
    """Runs :func:`count_chunk` as a unit."""
    captions = count_chunk(plan.captions, plan.words, unit.number, make_tokenizer(plan.rules))
    return Result(numbers=Numbers(captions=captions))


def count_chunk(
    staged: Path, folder: Path, chunk: int, tokenize: Callable[[str], list[str]]
) -> int:
    """Splits a chunk's captions into words, numbered by appearance, and writes its two files.

    Returns the number of captions.
    """
    texts = read_arrow(staged / f"texts-{chunk:05d}.arrow").column("text").to_pylist()
    known: dict[str, int] = {}
    words, counts, sizes = [], [], []
    for text in texts:
        bag = Counter(tokenize(text or ""))
        sizes.append(len(bag))
        for word, count in bag.items():
            words.append(known.setdefault(word, len(known)))
            counts.append(count)
    local = np.array(words, np.int32)
    size = np.array(sizes, np.int64)
    numbers = _numbers(staged, chunk, size.size)
    frequency = np.bincount(
        local, weights=np.repeat(numbers >= 0, size).astype(np.float64), minlength=len(known)
    ).astype(np.int64)
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_path(folder / f"counts-{chunk:05d}.npz") as path, path.open("wb") as file:
        np.savez(file, sizes=size, words=local, counts=np.array(counts, np.int32))
    valid = [word.encode("utf-8", "replace").decode("utf-8") for word in known]
    with atomic_path(folder / f"words-{chunk:05d}.arrow") as path:
        write_arrow(path, pa.table({"word": pa.array(valid, pa.string()), "captions": frequency}))
    return len(texts)


def _numbers(staged: Path, chunk: int, size: int) -> Array:
    """Returns the numbers of the captions of a chunk's texts."""
    numbers: Array = np.load(staged / "numbers.npy", mmap_mode="r")
    numbers_of_chunk: Array = numbers[chunk_starts(staged)[chunk] :][:size]
    return numbers_of_chunk


def write_vectors(plan: Plan, unit: Unit) -> Result:
    """Writes the table of all words, and the captions' vectors."""
    with ShardWriter(plan.output, VOCABULARY, 0, 1, producer=plan.producer) as writer:
        writer.write(build_vocabulary(plan.words, plan.staged.captions))
    vocabulary = pq.read_table(readable(plan.vocabulary))
    save(plan.bags, load_bags(plan.work, plan.staged, vocabulary, plan.rules))
    return Result(shards=[writer.shard])


def vocabulary_table(counts: Iterable[tuple[str, int]], total: int) -> pa.Table:
    """Returns the ``vocabulary`` table from words and their numbers of captions, of ``total``."""
    ordered = sorted((-captions, word) for word, captions in counts if captions)
    frequency = np.array([-captions for captions, _ in ordered], np.int64)
    columns = {
        "word": [word for _, word in ordered],
        "captions": frequency,
        "idf": compute_idf(frequency, total),
    }
    return pa.table(columns, schema=VOCABULARY.schema)


def build_vocabulary(folder: Path, total: int) -> pa.Table:
    """Returns the ``vocabulary`` table of all chunks in ``folder``."""
    counter: Counter[str] = Counter()
    for path in sorted(folder.glob("words-*.arrow")):
        counter.update(word_counts(path))
    return vocabulary_table(counter.items(), total)


def word_counts(path: Path) -> dict[str, int]:
    """Returns the words of a chunk, with the number of its captions that have each."""
    table = read_arrow(path)
    words, captions = table.column("word").to_pylist(), table.column("captions").to_pylist()
    return dict(zip(words, captions, strict=True))


def load_bags(work: Path, staged: Staged, vocabulary: pa.Table, rules: NegativeRules) -> Bags:
    """Merges the chunks' counts by the numbers of captions and words.

    Raises InputError for a caption whose squared length does not fit the integers.
    """
    total, captions = staged.captions, work / "captions"
    known = vocabulary.column("word").combine_chunks()
    weights = compute_weights(np.asarray(vocabulary.column("idf")))
    sizes = np.zeros(total + 1, np.int64)
    parts: list[tuple[Array, Array, Array]] = []
    with Progress(total=total, unit="caption", label="vectors") as progress:
        for chunk in range(staged.chunks):
            numbers, size, words, counts = _chunk(captions, work / "words", chunk, known)
            sizes[numbers + 1] = size
            parts.append((numbers, words, counts))
            progress.advance(numbers.size)
    start = np.cumsum(sizes)
    all_words, all_counts = np.empty(start[-1], np.int32), np.empty(start[-1], np.int32)
    for numbers, words, counts in parts:
        size = sizes[numbers + 1]
        begin = np.cumsum(size) - size
        to = np.repeat(start[numbers] - begin, size) + np.arange(words.size)
        all_words[to], all_counts[to] = words, counts
    parts.clear()
    _check_norms(captions, start, all_counts.astype(np.float64) ** 2 * weights[all_words], rules)
    return build_bags(start, all_words, all_counts, np.load(captions / "images.npy"), weights)


def _chunk(
    staged: Path, folder: Path, chunk: int, known: pa.Array
) -> tuple[Array, Array, Array, Array]:
    """Returns (caption numbers, words in each, words, counts); words ascend in each caption."""
    with np.load(folder / f"counts-{chunk:05d}.npz") as arrays:
        size, local, counts = arrays["sizes"], arrays["words"], arrays["counts"]
    table = read_arrow(folder / f"words-{chunk:05d}.arrow")
    known_numbers = pc.index_in(table.column("word").combine_chunks(), value_set=known)
    words = np.asarray(known_numbers.fill_null(-1)).astype(np.int32)[local]
    numbers = _numbers(staged, chunk, size.size)
    row = np.repeat(np.arange(size.size), size)
    order = np.lexsort((words, row))
    has_number = (numbers >= 0)[row]
    order = order[has_number[order]]
    return numbers[numbers >= 0], size[numbers >= 0], words[order], counts[order]


def _check_norms(captions: Path, start: Array, squares: Array, rules: NegativeRules) -> None:
    """Raises InputError if the sum of a caption's ``squares``, split by ``start``, is too large."""
    totals = np.concatenate([[0.0], np.cumsum(squares)])
    norms = totals[start[1:]] - totals[start[:-1]]
    longest = int(np.argmax(norms))
    if norms[longest] >= rules.most_norm2:
        name = read_arrow(captions / "ids.arrow").column("id")[longest].as_py()
        raise InputError(
            f"--pairs: the caption {name} repeats a word too often: its vector length "
            "exceeds the integer range; shorten it to a few thousand words, or give "
            "--below fewer digits"
        )


def read_texts(staged: Path, numbers: Sequence[int]) -> dict[int, str]:
    """Returns the texts of some captions by their numbers."""
    ordered = np.array(sorted(set(numbers)), np.int64)
    all_numbers: Array = np.load(staged / "numbers.npy", mmap_mode="r")
    rows = np.flatnonzero(np.isin(all_numbers, ordered))
    starts = np.asarray(chunk_starts(staged))
    texts = {}
    for row in rows:
        chunk = int(np.searchsorted(starts, row, side="right") - 1)
        table = read_arrow(staged / f"texts-{chunk:05d}.arrow")
        texts[int(all_numbers[row])] = table.column("text")[int(row - starts[chunk])].as_py()
    return texts
