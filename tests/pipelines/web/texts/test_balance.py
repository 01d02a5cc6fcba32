import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmill.pipelines.web.texts.balance import remove_stray_mark, stray_marks, unwrap_quotes

MARKED = st.text(alphabet='ab1 .()[]{}（）「」『』“”„«»‹›"', max_size=24)


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ('A "cat" (black) on «a mat»', []),
        ("Ein »Haus« und ein „Baum“ und ein „Tisch”", []),
        ("「猫」と『犬（黒）』", []),
        ("The “Old ‘Bridge’ of it” in don't", []),
        ('A 12" record', []),
        ('"A cat', [0]),
        ("a) cat", [1]),
        ("A (black [cat)", [9]),
        ("A “cat on „a mat“", [2]),
        ("A cat” (black", [5, 7]),
    ],
)
def test_stray_marks(text: str, places: list[int]) -> None:
    assert stray_marks(text) == places


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("A cat (black)", "A cat (black)"),
        ("A cat (black", "A cat black"),
        ('"A cat sleeps', "A cat sleeps"),
        ('A cat sleeps".', "A cat sleeps."),
        ("Cat” asleep", "Cat asleep"),
        ('Mona "Lisa by Leonardo', None),
        ("(A [cat", None),
    ],
)
def test_mending(text: str, whole: str | None) -> None:
    assert remove_stray_mark(text) == whole


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ('"A cat"', "A cat"),
        ("„Ein Haus“", "Ein Haus"),
        ("(“A cat”)", "A cat"),
        ('"Mona" by "Leonardo"', '"Mona" by "Leonardo"'),
        ("「猫」", "猫"),
        ("()", "()"),
        ('"', '"'),
    ],
)
def test_what_stands_around_the_whole(text: str, inside: str) -> None:
    assert unwrap_quotes(text) == inside


@given(MARKED)
def test_what_is_mended_is_balanced(text: str) -> None:
    whole = remove_stray_mark(text)
    assert whole is None or not stray_marks(whole)
    if not stray_marks(text):
        assert not stray_marks(unwrap_quotes(text)) and whole == " ".join(text.split())
