"""Counts with their nouns."""

import pytest

from vlmill.schemas.plurals import format_count


@pytest.mark.parametrize(
    ("count", "noun", "plural", "text"),
    [
        (0, "image", "", "0 images"),
        (1, "image", "", "1 image"),
        (1234, "image", "", "1,234 images"),
        (1, "query", "queries", "1 query"),
        (2, "query", "queries", "2 queries"),
    ],
)
def test_a_count_of_one_is_singular(count: int, noun: str, plural: str, text: str) -> None:
    assert format_count(count, noun, plural) == text
