from typing import Any

import pytest

from vlmill.pipelines.texts.scoring import WEIGHTS, TextSource, features, score
from vlmill.pipelines.web_pairs.pair import Pair, Picture, preference, text_key

PLAIN: dict[str, Any] = {
    "image_url": "http://a.org/1.jpg",
    "page_title": "My site",
    "others": (),
    "dominance": 0.5,
}


def rate(text: str, source: TextSource = "alt", **changes: Any) -> float:
    return score(features(text, source, **(PLAIN | changes)))


@pytest.mark.parametrize("source", ["figcaption", "alt", "title", "metadata", "surrounding"])
def test_every_feature_has_a_weight_and_a_range(source: TextSource) -> None:
    found = features("IS THIS 1 cat?", source, **PLAIN)
    assert found.keys() <= WEIGHTS.keys()
    assert all(0 <= value <= 1 for value in found.values())
    assert 0 < score(found) < 1


def test_by_hand() -> None:
    assert score({"bias": 1.0, "source_alt": 1.0}) == 0.689974  # 1 / (1 + exp(-0.8))


def test_what_speaks_for_a_text() -> None:
    text = "A black cat on a mat"
    assert rate(text, "figcaption") > rate(text, "alt") > rate(text, "title")
    assert rate(text, "title") > rate(text, "metadata") > rate(text, "surrounding")
    assert rate(text, image_url="http://a.org/black-cat.jpg") > rate(text)
    assert rate(text, others=("Our black cat",)) > rate(text)
    assert rate(text, dominance=1.0) > rate(text)


def test_what_speaks_against_it() -> None:
    text = "A black cat on a mat"
    for worse in ("A cat", "Where is your cat?", "A CAT ON A MAT", "Cat 1234567 890 on mat"):
        assert rate(worse) < rate(text)
    assert rate(text, page_title="A black cat on a mat - My site") < rate(text)


def test_text_keys_ignore_case_accents_and_punctuation() -> None:
    assert text_key("  A Café, on ‘Main’ St. ") == text_key("a cafe on Main st")
    assert text_key("a cat") != text_key("a cut")


def pair(**changes: Any) -> Pair:
    picture = Picture(
        image_id="i", url="u", width=1, height=1, format="jpeg", archive="a", offset=0
    )
    values: dict[str, Any] = {
        "picture": picture,
        "text": "t",
        "text_source": "alt",
        "score": 0.5,
        "language": "en",
        "page_url": "p",
    }
    return Pair(**(values | changes))


def test_the_best_score_comes_first_and_ties_break_by_text() -> None:
    pairs = [pair(text="b"), pair(text="a"), pair(text="z", score=0.9)]
    assert [p.text for p in sorted(pairs, key=preference)] == ["z", "a", "b"]
