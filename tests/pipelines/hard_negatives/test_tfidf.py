"""Hard negatives against brute force, scikit-learn, and the definition's corners."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer

from vlmill.pipelines.hard_negatives import tfidf
from vlmill.pipelines.hard_negatives.rules import NegativeRules
from vlmill.pipelines.hard_negatives.tfidf import build_index, is_below, search

WORDS = ["red", "blue", "cat", "dog", "house", "tree", "runs", "sleeps", "under", "over"]
captions = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)
corpora = st.lists(st.tuples(st.integers(0, 6), captions), min_size=1, max_size=25)


def ids(count: int) -> list[str]:
    return [f"p{k:03d}" for k in range(count)]


def answer(
    corpus: list[tuple[int, str]], rules: NegativeRules
) -> list[tuple[list[str], list[float]]]:
    images = [f"i{image}" for image, _ in corpus]
    index = build_index(ids(len(corpus)), images, [text for _, text in corpus], rules)
    return list(search(index, 0, len(corpus), rules))


def brute_force(corpus: list[tuple[int, str]], rules: NegativeRules) -> list[list[str]]:
    """The definition, in Python integers."""
    bags = [{w: text.split().count(w) for w in text.split()} for _, text in corpus]
    frequency = {w: sum(w in bag for bag in bags) for w in WORDS}
    idf = {w: np.log((1 + len(corpus)) / (1 + n)) + 1 for w, n in frequency.items()}
    weight = {w: int(np.rint(value * value * 2**16)) for w, value in idf.items()}

    def dot(a: dict[str, int], b: dict[str, int]) -> int:
        return sum(n * b.get(w, 0) * weight[w] for w, n in a.items())

    result = []
    for q, bag in enumerate(bags):
        found = []
        for d, other in enumerate(bags):
            value, norms = dot(bag, other), (dot(bag, bag), dot(other, other))
            if corpus[q][0] != corpus[d][0] and value and is_below(value, *norms, rules.below):
                found.append((-value / np.sqrt(float(norms[0]) * float(norms[1])), d))
        result.append([ids(len(bags))[d] for _, d in sorted(found)[: rules.top]])
    return result


@settings(deadline=None)
@given(corpora, st.integers(1, 5), st.sampled_from([Fraction(1, 2), Fraction(7, 10), Fraction(1)]))
def test_equal_to_brute_force(corpus: list[tuple[int, str]], top: int, below: Fraction) -> None:
    rules = NegativeRules(top=top, below=below)
    assert [found for found, _ in answer(corpus, rules)] == brute_force(corpus, rules)


def test_cosines_are_scikit_learns() -> None:
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS, 6)) for _ in range(60)]
    vectors = TfidfVectorizer().fit_transform(texts)
    cosines = (vectors @ vectors.T).toarray()
    rules = NegativeRules(top=60, below=Fraction(1))
    for q, (found, similarities) in enumerate(answer(list(enumerate(texts)), rules)):
        expected = [cosines[q, int(pair_id[1:])] for pair_id in found]
        np.testing.assert_allclose(similarities, expected, atol=1e-5)
        assert len(found) == np.count_nonzero((cosines[q] > 0) & (cosines[q] < 1 - 1e-9))


def test_the_same_picture_and_near_duplicates_are_excluded() -> None:
    corpus = [(1, "red cat"), (1, "red dog"), (2, "red cat"), (3, "red house under blue tree")]
    found, similarities = answer(corpus, NegativeRules())[0]
    assert found == ["p003"]
    assert 0 < similarities[0] < 0.5


def test_a_cosine_of_exactly_one_half_is_no_negative() -> None:
    # Two captions of four equally rare words that share two of them: cosine 2/4.
    corpus = [(1, "ab cd ef gh"), (2, "ab cd ij kl"), (3, "ef gh mn op"), (4, "ij kl mn op")]
    assert [found for found, _ in answer(corpus, NegativeRules())] == [[], [], [], []]
    just_above = NegativeRules(below=Fraction(500_001, 1_000_000))
    assert answer(corpus, just_above)[0] == (["p001", "p002"], [0.5, 0.5])


def test_ties_are_in_pair_order_and_cut_at_top() -> None:
    corpus = [(k, f"common unique{k} other{k} third{k}") for k in range(9)]
    found, similarities = answer(corpus, NegativeRules(top=3))[4]
    assert found == ["p000", "p001", "p002"]
    assert len(set(similarities)) == 1


@pytest.mark.parametrize("texts", [["", ""], ["a", "!"], [""]])
def test_captions_without_a_word_have_no_negatives(texts: list[str]) -> None:
    assert answer(list(enumerate(texts)), NegativeRules()) == [([], [])] * len(texts)


def test_chunks_do_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    corpus = [(k // 2, " ".join(random.choice(WORDS, 5))) for k in range(40)]
    whole = answer(corpus, NegativeRules())
    monkeypatch.setattr(tfidf, "MAX_CHUNK_VALUES", 1)
    assert answer(corpus, NegativeRules()) == whole


def test_words_of_one_letter_count_only_when_split_at_spaces() -> None:
    corpus = [(1, "x blue cat"), (2, "x old dog"), (3, "one more thing")]
    assert answer(corpus, NegativeRules())[0][0] == []
    assert answer(corpus, NegativeRules(tokenizer="space"))[0][0] == ["p001"]


@given(st.integers(1, 2**40), st.integers(1, 2**40), st.integers(1, 2**40))
def test_the_integer_rule_agrees_with_floats_away_from_the_threshold(
    dot: int, norm_a: int, norm_b: int
) -> None:
    cosine = dot / np.sqrt(float(norm_a) * float(norm_b))
    if abs(cosine - 0.5) > 1e-9:
        assert is_below(dot, norm_a, norm_b, Fraction(1, 2)) == (cosine < 0.5)


@pytest.mark.parametrize(
    "values", [{"top": 0}, {"below": Fraction(0)}, {"below": Fraction(2)}, {"tokenizer": "bpe"}]
)
def test_rules_check_themselves(values: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=str(next(iter(values)))):
        NegativeRules(**values)  # type: ignore[arg-type]


def test_pair_ids_must_ascend() -> None:
    with pytest.raises(ValueError, match="ascend"):
        build_index(["b", "a"], ["i", "j"], ["x", "y"], NegativeRules())
