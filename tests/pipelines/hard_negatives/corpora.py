"""Small corpora for the tests of hard negatives, and their answer by brute force in integers."""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TypeVar

import numpy as np

from vlmill.pipelines.hard_negatives.arrays import Array, Bags, Part
from vlmill.pipelines.hard_negatives.blocks import search_range
from vlmill.pipelines.hard_negatives.index import build_bags, build_index
from vlmill.pipelines.hard_negatives.state import Rules
from vlmill.pipelines.hard_negatives.vectors import compute_idf, compute_weights

Group = TypeVar("Group", Bags, Part)
Corpus = Sequence[tuple[int, str]]  # images and captions
Answer = list[list[tuple[int, float]]]  # captions and cosines, best first


def bags_from(corpus: Corpus) -> Bags:
    """Bags of captions whose words are separated by spaces."""
    counters = [Counter(text.split()) for _, text in corpus]
    frequency = Counter(word for counter in counters for word in counter)
    ordered = sorted(frequency, key=lambda word: (-frequency[word], word))
    number = {word: k for k, word in enumerate(ordered)}
    rows = [sorted((number[w], n) for w, n in counter.items()) for counter in counters]
    words = np.array([w for row in rows for w, _ in row], np.int32)
    counts = np.array([n for row in rows for _, n in row], np.int32)
    start = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    weights = compute_weights(
        compute_idf(np.array([frequency[w] for w in ordered], np.int64), len(corpus))
    )
    images = np.array([image for image, _ in corpus], np.int32)
    return read_only(build_bags(start, words, counts, images, weights))


def read_only(arrays: Group) -> Group:
    """As arrays are that have been mapped: the search is compiled for those alone."""
    for array in arrays:
        array.setflags(write=False)
    return arrays


def answer(
    corpus: Corpus, top: int = 30, below: Fraction = Fraction(1, 2), threads: int = 1
) -> Answer:
    """The lists of all captions in one part."""
    bags = bags_from(corpus)
    rules = Rules(top, below.numerator, below.denominator)
    part, num = read_only(build_index(bags)), len(corpus)
    numbers, scores = search_range(bags, part, rules, 0, num, np.zeros(num), threads)
    return lists_of(bags.members, numbers, scores)


def lists_of(members: Array, numbers: Array, scores: Array) -> Answer:
    """Lists by caption."""
    lists: Answer = [[] for _ in members]
    for row, caption in enumerate(members):
        real = numbers[row] >= 0
        lists[caption] = list(zip(numbers[row][real].tolist(), scores[row][real], strict=True))
    return lists


def brute_force(corpus: Corpus, top: int = 30, below: Fraction = Fraction(1, 2)) -> Answer:
    """The definition, in Python's integers."""
    bags = [Counter(text.split()) for _, text in corpus]
    frequency = Counter(word for bag in bags for word in bag)
    idf = {w: np.log((1 + len(corpus)) / (1 + n)) + 1 for w, n in frequency.items()}
    weight = {w: int(np.rint(value * value * 2**16)) for w, value in idf.items()}

    def dot(a: Counter[str], b: Counter[str]) -> int:
        return sum(n * b[w] * weight[w] for w, n in a.items() if w in b)

    norms = [dot(bag, bag) for bag in bags]
    result = []
    for q, bag in enumerate(bags):
        best = []
        for d, other in enumerate(bags):
            value = dot(bag, other)
            square = below.denominator**2 * value * value
            is_near = square < below.numerator**2 * norms[q] * norms[d]
            if corpus[q][0] != corpus[d][0] and value and is_near:
                best.append((-value / np.sqrt(float(norms[q]) * float(norms[d])), d))
        result.append([(d, -score) for score, d in sorted(best)[:top]])
    return result


def captions(num: int, seed: int, words: int = 400, longest: int = 12) -> list[str]:
    """Captions of words as frequent as in language, with repeated words and near duplicates."""
    random = np.random.default_rng(seed)
    shares = 1 / (np.arange(words) + 2.0)
    shares /= shares.sum()
    texts: list[list[str]] = []
    for k in range(num):
        if k and random.random() < 0.2:
            text = list(texts[random.integers(k)])
            text[random.integers(len(text))] = f"w{random.integers(words)}"
        else:
            size = random.integers(1, longest + 1)
            text = [f"w{w}" for w in random.choice(words, size, p=shares)]
        texts.append(text)
    return [" ".join(text) for text in texts]


def write_tsv(path: Path, corpus: Corpus) -> None:
    """Rows of id, image and caption without a header."""
    path.write_text("".join(f"{k}\t{image}\t{text}\n" for k, (image, text) in enumerate(corpus)))
