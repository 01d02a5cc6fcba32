"""VCR's inputs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmill.train.tasks.vcr.texts import choice_texts, cut_pair, name_objects


def test_names_stand_for_references() -> None:
    assert name_objects(["is", [1, 0], "?"], ["Pat", "dog"]) == ["is", "dog", "Pat", "?"]


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
    texts = choice_texts("abcd", ["uvwx", "u"], max_tokens=8, shared_cut=shared)
    assert texts[0].tokens == ["[CLS]", *"abc", "[SEP]", *"uv", "[SEP]"]
    assert texts[0].segments == [0] * 5 + [1] * 3
    assert texts[1].tokens == ["[CLS]", *kept, "[SEP]", "u", "[SEP]"]
