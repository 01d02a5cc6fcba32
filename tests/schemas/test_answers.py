"""Processing of VQA's answers; parity with the recordings stands in tests/parity."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmill.schemas.answers import (
    CONTRACTIONS,
    collect_labels,
    number_scores,
    process_answer,
    score_answers,
    soft_labels,
    soft_score,
)


@pytest.mark.parametrize(
    ("typed", "processed"),
    [
        ("U.S.A.", "usa"),
        ("3.5", "3.5"),
        ("1,000 a/b", "1000 ab"),
        ("1000 a/b", "1000 b"),
        ("a, b", "b"),
        ("t - shirt", "t shirt"),
        ("x-ray -y", "xray y"),
        ("two Dogs", "2 dogs"),
        ("the", ""),
        ("Dont", "don't"),
        ("couldntve", "couldntve"),
        ("couldnt've", "couldn't've"),
        ("somebody'd", "somebodyd"),
        ("." * 33 + "x", ".x"),
        ("3.٥", "3.٥".replace(".", "")),
    ],
)
def test_processing_by_hand(typed: str, processed: str) -> None:
    assert process_answer(typed) == processed


@given(st.text(alphabet="ab1,. -/'?Tthe", max_size=20))
def test_processing_again_changes_little(text: str) -> None:
    once = process_answer(text)
    assert once == " ".join(once.split()) and process_answer(f"  {once} ") == process_answer(once)


def test_contractions_are_words_without_an_apostrophe_too_few() -> None:
    assert len(CONTRACTIONS) == 114
    for spelling, word in CONTRACTIONS.items():
        if spelling != "somebody'd":
            assert spelling.replace("'", "") == word.replace("'", "") and len(spelling) < len(word)


@pytest.mark.parametrize("votes", range(11))
def test_scores_are_the_mean_over_annotators_left_out(votes: int) -> None:
    others = [votes - (i < votes) for i in range(10)]
    assert soft_score(votes) == pytest.approx(sum(min(1, n / 3) for n in others) / 10)


def test_labels_are_answers_of_enough_questions_in_the_order_they_came() -> None:
    answers = ["Two", "a cat", "2", "cat", "The", "1, 2", "dog"]
    assert collect_labels(answers, min_questions=2) == ["2", "cat"]
    assert collect_labels(answers, min_questions=1) == ["2", "cat", "", "1 2", "dog"]


def test_annotators_answers_are_compared_as_typed() -> None:
    numbers = {"yes": 4, "no": 1, "": 0}
    typed = ["yes"] * 3 + ["Yes"] * 4 + ["no"] + [""] * 2
    assert soft_labels(typed, numbers) == ([0, 1, 4], [0.6, 0.3, pytest.approx(0.9)])
    assert soft_labels(["Yes"], numbers) == ([], [])


@pytest.mark.parametrize(
    ("answers", "scores"),
    [
        ([], {}),
        (["A dog."], {"dog": 1.0}),
        (["dog", "puppy"], {"dog": 1.0, "puppy": 1.0}),
        (["dog", "The dog", "cat"], {"dog": 1.0, "cat": 0.5}),
        (["yes"] * 8 + ["Yes", "no"], {"yes": 1.0, "no": 0.3}),
    ],
)
def test_answers_of_any_source_have_scores(answers: list[str], scores: dict[str, float]) -> None:
    assert score_answers(answers) == pytest.approx(scores)


def test_scores_of_labels_outside_the_list_are_omitted() -> None:
    scores = {"dog": 1.0, "cat": 0.5, "cow": 0.2}
    assert number_scores(scores, {"cow": 0, "dog": 7}) == ([0, 7], [0.2, 1.0])
