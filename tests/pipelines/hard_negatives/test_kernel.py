"""The search against brute force in integers, scikit-learn, and the definition's corners."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer
from tests.pipelines.hard_negatives.corpora import (
    Corpus,
    answer,
    bags_from,
    brute_force,
    captions,
    lists_of,
    read_only,
)

from vlmill.pipelines.hard_negatives.blocks import search_range
from vlmill.pipelines.hard_negatives.index import build_index
from vlmill.pipelines.hard_negatives.kernel import is_below
from vlmill.pipelines.hard_negatives.state import Rules

WORDS = ["red", "blue", "cat", "dog", "house", "tree", "runs", "sleeps", "under", "over"]
texts = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)
corpora = st.lists(st.tuples(st.integers(0, 6), texts), min_size=1, max_size=25)
thresholds = st.sampled_from([Fraction(1, 2), Fraction(7, 10), Fraction(1)])


@settings(deadline=None, max_examples=60)
@given(corpora, st.integers(1, 5), thresholds)
def test_small_corpora_are_answered_as_by_brute_force(
    corpus: Corpus, top: int, below: Fraction
) -> None:
    assert answer(corpus, top, below) == brute_force(corpus, top, below)


def long_caption(k: int) -> str:
    return " ".join(f"w{(k * 7 + j) % 400}" for j in range(120))


CORPORA: dict[str, Corpus] = {
    "like language": list(enumerate(captions(500, 1))),
    "two captions an image": [(k // 2, text) for k, text in enumerate(captions(400, 2))],
    "an image with most captions": [(k % 3 and k, t) for k, t in enumerate(captions(300, 3))],
    "one word each": list(enumerate(captions(300, 4, words=30, longest=1))),
    "few words, many ties": list(enumerate(captions(300, 5, words=12, longest=5))),
    "many equal captions": list(enumerate(captions(40, 6) * 8)),
    "all equal": [(k, "one caption again") for k in range(200)],
    "equal but for one word": [(k, f"cat x{k}") for k in range(200)] + [(999, "cat")] * 3,
    "long captions": [
        *enumerate(captions(150, 7)),
        *((200 + k, long_caption(k)) for k in range(100)),
    ],
    "captions of a thousand words": [
        (k, " ".join(f"w{(k * 7 + j * 3) % 400} x{j}" for j in range(500))) for k in range(12)
    ],
    "words again and again": [
        (k, f"{text} " + f"w{k % 9} " * (1 + 40 * (k % 61)))
        for k, text in enumerate(captions(250, 8))
    ],
    "rare words in each": [(k, f"{t} u{k} v{k}") for k, t in enumerate(captions(200, 9))],
    "fewer than thirty": list(enumerate(captions(11, 10, words=20))),
    "without a word": [(0, ""), (1, ""), (2, "one"), (3, "one two three")],
}


@pytest.mark.parametrize("name", CORPORA)
def test_the_answer_is_that_of_brute_force(name: str) -> None:
    corpus = CORPORA[name]
    assert answer(corpus) == brute_force(corpus)


def test_parts_and_threads_do_not_change_the_answer() -> None:
    corpus = CORPORA["like language"]
    bags, num = bags_from(corpus), len(corpus)
    rules, lists = Rules(30, 1, 2), []
    for number in range(3):
        part = read_only(build_index(bags, number, 3))
        lists.append(search_range(bags, part, rules, 0, num, np.zeros(num), 2))
    numbers, scores = (np.concatenate(kind, axis=1) for kind in zip(*lists, strict=True))
    order = np.lexsort((numbers, -scores), axis=1)[:, :30]
    numbers, scores = (np.take_along_axis(a, order, axis=1) for a in (numbers, scores))
    assert lists_of(bags.members, numbers, scores) == brute_force(corpus)


def test_a_floor_hides_only_what_lies_below_it() -> None:
    corpus = CORPORA["like language"]
    bags, num = bags_from(corpus), len(corpus)
    floors = np.linspace(0.0, 0.4, num)
    part = read_only(build_index(bags))
    numbers, scores = search_range(bags, part, Rules(30, 1, 2), 0, num, floors, 1)
    whole = brute_force(corpus)
    for caption, floor, row in zip(bags.members, floors, range(num), strict=True):
        above = [number for number, score in whole[caption] if score >= floor]
        assert [n for n, s in zip(numbers[row], scores[row], strict=True) if s >= floor] == above


def test_cosines_are_scikit_learns() -> None:
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS, 6)) for _ in range(60)]
    vectors = TfidfVectorizer().fit_transform(texts)
    cosines = (vectors @ vectors.T).toarray()
    for q, best in enumerate(answer(list(enumerate(texts)), 60, Fraction(1))):
        expected = [cosines[q, number] for number, _ in best]
        np.testing.assert_allclose([score for _, score in best], expected, atol=1e-5)
        assert len(best) == np.count_nonzero((cosines[q] > 0) & (cosines[q] < 1 - 1e-9))


def test_a_cosine_of_exactly_one_half_is_no_negative() -> None:
    # Captions of four equally rare words; the first two share two of them: cosine 2/4.
    corpus = [(1, "ab cd ef gh"), (2, "ab cd ij kl"), (3, "ef gh mn op"), (4, "ij kl mn op")]
    assert answer(corpus) == [[], [], [], []]
    assert answer(corpus, below=Fraction(500_001, 1_000_000))[0] == [(1, 0.5), (2, 0.5)]


def test_the_same_image_and_near_duplicates_are_excluded() -> None:
    corpus = [(1, "red cat"), (1, "red dog"), (2, "red cat"), (3, "red house under blue tree")]
    ((number, score),) = answer(corpus)[0]
    assert number == 3
    assert 0 < score < 0.5


def test_ties_are_in_the_order_of_ids_and_cut_at_top() -> None:
    best = answer([(k, f"common unique{k} other{k} third{k}") for k in range(9)], top=3)[4]
    assert [number for number, _ in best] == [0, 1, 2]
    assert len({score for _, score in best}) == 1


@given(st.integers(1, 2**42), st.integers(1, 2**42), st.integers(1, 2**42), st.integers(1, 10**6))
def test_the_integer_rule_is_that_of_pythons_integers(
    dot: int, norm_a: int, norm_b: int, numerator: int
) -> None:
    below = Fraction(numerator, 10**6)
    square = below.denominator**2 * dot * dot
    expected = square < below.numerator**2 * norm_a * norm_b
    assert is_below(dot, norm_a, norm_b, below.numerator, below.denominator) == expected
