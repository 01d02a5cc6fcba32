from typing import Any

from vlmill.pipelines.web.pages.images import ArchivedImage
from vlmill.pipelines.web_pairs import rows
from vlmill.pipelines.web_pairs.pair import Pair, text_key
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason, reject

IMAGE = ArchivedImage(
    image_id="0" * 64, url="u", width=9, height=9, format="png", phash=1, archive="a", offset=0
)


def pair(**changes: Any) -> Pair:
    values: dict[str, Any] = {
        "image": IMAGE,
        "text": "t",
        "text_source": "alt",
        "score": 0.5,
        "language": "en",
        "page_url": "p",
    }
    return Pair(**(values | changes))


def test_text_keys_ignore_case_accents_and_punctuation() -> None:
    assert text_key("  A Café, on ‘Main’ St. ") == text_key("a cafe on Main st")
    assert text_key("a cat") != text_key("a cut")


def test_the_best_score_comes_first_and_ties_break_by_text() -> None:
    pairs = [pair(text="b"), pair(text="a"), pair(text="z", score=0.9), pair(text="y", score=0.0)]
    assert [p.text for p in sorted(pairs, key=rows.candidate_key)] == ["z", "a", "b", "y"]


def test_pairs_come_back_as_they_were() -> None:
    for one in (pair(), pair(license="https://creativecommons.org/licenses/by/4.0/")):
        assert rows.pair(rows.encode(one)) == one


def test_of_one_url_the_largest_image_sorts_first_and_a_drop_last() -> None:
    large = ArchivedImage(
        image_id="1" * 64, url="u", width=99, height=9, format="png", phash=1, archive="a", offset=0
    )
    outcomes: list[ArchivedImage | Drop] = [Drop(Reason.TOO_SMALL), IMAGE, large]
    keys = sorted(outcomes, key=lambda outcome: rows.outcome_key(b"k" * rows.KEY, outcome))
    assert keys == [large, IMAGE, Drop(Reason.TOO_SMALL)]
    request = b"k" * rows.KEY + rows.REQUEST
    assert all(rows.outcome_key(b"k" * rows.KEY, outcome) < request for outcome in outcomes)


def test_rejects_come_back_in_the_order_of_their_columns() -> None:
    kinds = [("pages", "a"), ("join", "b"), ("join", "a")]
    listed = [reject(s, k, Reason.EMPTY, d) for s, k in kinds for d in (None, "", "x")]
    lines = sorted(rows.reject_row(row, 4)[1] for row in listed)
    back = [rows.decode_reject(line) for line in lines]
    assert sorted(map(str, back)) == sorted(map(str, listed))
    assert [(r["stage"], r["key"]) for r in back] == sorted((s, k) for s, k in kinds for _ in "abc")
