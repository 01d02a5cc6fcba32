"""Words of texts, and lists of words as the code holds them."""

import re

_WORD = re.compile(r"[^\W_]+(?:['’.-][^\W_]+)*")


def words_of(text: str) -> list[str]:
    """The words of a text: runs of letters and digits, with inner apostrophes, dots, hyphens."""
    return _WORD.findall(text)


def word_set(listed: str) -> frozenset[str]:
    """Words separated by spaces, as a set: long lists stay readable in the source."""
    return frozenset(listed.split())
