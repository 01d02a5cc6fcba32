"""VCR's inputs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmill.train.tasks.vcr.texts import (
    Piece,
    choice_texts,
    cut_pair,
    cut_with_answer,
    draw_names,
    name_objects,
    names_in_turn,
    split_at_mark,
    tagged_words,
)


def test_names_stand_for_references() -> None:
    names = ["Pat", "dog"]
    named = [("is", -1), ("dog", 1), ("Pat", 0), ("?", -1)]
    assert name_objects(["is", [1, 0], "?"], names) == named
    assert name_objects([[1, 0]], names, between="and") == [("dog", 1), ("and", -1), ("Pat", 0)]


def test_persons_names_come_in_turn_or_are_drawn_once_a_question() -> None:
    objects = ["person", "dog", "person"]
    assert names_in_turn(objects, 12) == ["Quinn", "dog", "Casey"]
    drawn = {tuple(draw_names(objects, f"vcr/val-{number}")) for number in range(40)}
    assert len(drawn) > 20 and all(names[1] == "dog" for names in drawn)
    assert draw_names(objects, "vcr/val-1") == draw_names(objects, "vcr/val-1")


def test_words_and_tags_are_parallel() -> None:
    words = tagged_words("is [0,1] here", [[-1], [0, 1], [-1]])
    assert words == ["is", [0, 1], "here"]
    with pytest.raises(ValueError, match="3 words and 2 tags"):
        tagged_words("is [0] here", [[-1], [0]])
    assert split_at_mark(["a", "[MARK]", "b"]) == (["a"], ["b"])
    assert split_at_mark(["a"]) == (["a"], [])


@given(st.integers(1, 9), st.integers(0, 9), st.lists(st.integers(0, 12), min_size=1, max_size=4))
def test_a_cut_with_an_answer_leaves_room(question: int, answer: int, choices: list[int]) -> None:
    (first, second), cut = cut_with_answer((question, answer), choices, 10)
    assert all(first + second + choice <= 10 for choice in cut)
    assert min(first, second, *cut) >= 0
    if question + answer + max(choices) <= 10:
        assert (first, second, cut) == (question, answer, choices)


@given(st.integers(0, 9), st.integers(0, 9), st.integers(-2, 20))
def test_the_longer_text_is_cut(first: int, second: int, longest: int) -> None:
    kept, other = cut_pair(["a"] * first, ["b"] * second, longest)
    assert kept + other == min(first + second, max(longest, 0))
    cut = kept < first, other < second
    if cut == (True, True):
        assert abs(kept - other) <= 1
    elif cut == (True, False):
        assert kept >= other
    elif cut == (False, True):
        assert other >= kept - 1


@pytest.mark.parametrize(("shared", "kept"), [(False, "abcd"), (True, "abc")])
def test_a_shared_cut_lasts(shared: bool, kept: str) -> None:
    first, *choices = ([Piece(letter) for letter in word] for word in ("abcd", "uvwx", "u"))
    texts = choice_texts(first, choices, max_tokens=8, shared_cut=shared)
    tokens = [[piece.token for piece in text.pieces] for text in texts]
    assert tokens[0] == ["[CLS]", *"abc", "[SEP]", *"uv", "[SEP]"]
    assert texts[0].segments == [0] * 5 + [1] * 3
    assert tokens[1] == ["[CLS]", *kept, "[SEP]", "u", "[SEP]"]
