"""Exact TF-IDF hard negatives (InterBERT's ITM-hn, sec. 3.3 of its paper), without Beam.

N captions. tf is the raw count and idf(t) = ln((1 + N) / (1 + df(t))) + 1, as scikit-learn's
``TfidfVectorizer`` has it. Weights are integers, w(t) = round(idf(t)^2 * 2^16), so that
dot(q, d) = sum tf_q tf_d w and norm2(d) = sum tf_d^2 w are exact and the answer does not depend on
summation order, threads or machine; cosines agree with scikit-learn's floats to 1e-5.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer

from vlmill.pipelines.hard_negatives.rules import TOKEN_PATTERNS, NegativeRules

WEIGHT_BITS = 16
# A cosine this close to the threshold is decided with integers; float64 errs by about 1e-15.
CLOSE = 1e-9
# Values of a chunk's product at most; each takes about 20 bytes while it is searched.
MAX_CHUNK_VALUES = 4_000_000

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Index:
    """Captions ready for search, in the order of their pair ids.

    ``weighted`` int64 [N, V] holds tf * w, ``counts`` int64 [V, N] the tf of the same captions,
    transposed; ``norm2`` int64 [N]; ``images`` [N] numbers the pictures.
    """

    pair_ids: Sequence[str]
    images: Ints
    weighted: Any
    counts: Any
    norm2: Ints

    def __len__(self) -> int:
        return len(self.pair_ids)


def build_index(
    pair_ids: Sequence[str], image_ids: Sequence[str], texts: Sequence[str], rules: NegativeRules
) -> Index:
    """Index of captions; ``pair_ids`` must ascend, because ties are broken by pair order.

    Raises ValueError if they do not, or if a caption's weights do not fit 63 bits.
    """
    if any(a >= b for a, b in pairwise(pair_ids)):
        raise ValueError("pair_ids must ascend and be unique")
    counts = _count_words(texts, TOKEN_PATTERNS[rules.tokenizer])
    document_frequency = np.bincount(counts.indices, minlength=counts.shape[1])
    idf = np.log((1 + len(texts)) / (1 + document_frequency)) + 1
    weights = np.rint(idf * idf * 2**WEIGHT_BITS).astype(np.int64)
    norm2_float = counts.astype(np.float64).power(2) @ weights.astype(np.float64)
    if len(texts) and norm2_float.max() >= 2**62:
        raise ValueError("a caption repeats a word so often that its norm does not fit an integer")
    weighted = sparse.csr_array(
        (counts.data * weights[counts.indices], counts.indices, counts.indptr), shape=counts.shape
    )
    _, images = np.unique(np.asarray(image_ids, dtype=object), return_inverse=True)
    return Index(
        pair_ids=pair_ids,
        images=images.astype(np.int64),
        weighted=weighted,
        counts=sparse.csr_array(counts.T),
        norm2=weighted.multiply(counts).sum(axis=1).astype(np.int64),
    )


def _count_words(texts: Sequence[str], pattern: str) -> Any:
    """Word counts, int64 CSR [N, V]; V = 1 and no count where no text has a word."""
    try:
        vectorizer = CountVectorizer(token_pattern=pattern, dtype=np.int64)
        counts = sparse.csr_array(vectorizer.fit_transform(texts))
    except ValueError as error:
        if "empty vocabulary" not in str(error):
            raise
        counts = sparse.csr_array((len(texts), 1), dtype=np.int64)
    counts.sort_indices()
    return counts


def search(
    index: Index, start: int, stop: int, rules: NegativeRules
) -> Iterator[tuple[list[str], list[float]]]:
    """Yields (pair ids, cosines), best first, for each caption from ``start`` to ``stop``.

    A caption is a negative if its picture is another one, it shares a word, and its cosine is
    strictly below ``rules.below``; equal cosines are in pair order. Fewer than ``rules.top`` valid
    captions give a shorter list. Memory is bounded by a chunk of the score matrix.
    """
    rows = max(1, MAX_CHUNK_VALUES // max(1, len(index)))
    for begin in range(start, stop, rows):
        end = min(begin + rows, stop)
        dots = sparse.csr_array(index.weighted[begin:end] @ index.counts)
        for row in range(end - begin):
            span = slice(dots.indptr[row], dots.indptr[row + 1])
            yield _best(index, begin + row, dots.indices[span], dots.data[span], rules)


def _best(
    index: Index, query: int, candidates: npt.NDArray[Any], dots: Ints, rules: NegativeRules
) -> tuple[list[str], list[float]]:
    keep = (index.images[candidates] != index.images[query]) & (dots > 0)
    candidates, dots = candidates[keep], dots[keep]
    norm_q = int(index.norm2[query])
    cosines = dots / np.sqrt(float(norm_q) * index.norm2[candidates].astype(np.float64))
    keep = cosines < float(rules.below)
    for k in np.flatnonzero(np.abs(cosines - float(rules.below)) < CLOSE):
        keep[k] = is_below(int(dots[k]), norm_q, int(index.norm2[candidates[k]]), rules.below)
    if np.count_nonzero(keep) > rules.top:  # sort only what reaches the worst of the best, ties too
        keep &= cosines >= -np.partition(-cosines[keep], rules.top - 1)[rules.top - 1]
    candidates, cosines = candidates[keep], cosines[keep]
    order = np.lexsort((candidates, -cosines))[: rules.top]
    return [index.pair_ids[k] for k in candidates[order]], cosines[order].tolist()


def is_below(dot: int, norm2_q: int, norm2_d: int, below: Fraction) -> bool:
    """Decides with integers whether dot / sqrt(norm2_q norm2_d) < below."""
    a, b = below.numerator, below.denominator
    return b * b * dot * dot < a * a * norm2_q * norm2_d
