"""Texts and file names are cut into words here; lists of words are held as the code writes them."""

import re
from urllib.parse import urlsplit

ESCAPED = re.compile(r"%[0-9a-fA-F]{2}")


_WORD = re.compile(r"[^\W_]+(?:['’.-][^\W_]+)*")


def words_of(text: str) -> list[str]:
    """The words of a text: runs of letters and digits, with inner apostrophes, dots, hyphens."""
    return _WORD.findall(text)


def word_set(listed: str) -> frozenset[str]:
    """Words separated by spaces, as a set: long lists stay readable in the source."""
    return frozenset(listed.split())


def file_words(url: str) -> tuple[str, ...]:
    """The words of a URL's file name, lower-case: ``/a/Mona_Lisa-2.jpg`` gives mona, lisa."""
    name = urlsplit(url).path.rsplit("/", 1)[-1]
    stem = ESCAPED.sub(" ", name).rsplit(".", 1)[0]
    stem = re.sub(r"([a-z])([A-Z])", r"\1 \2", stem)
    return tuple(word.lower() for word in re.findall(r"[A-Za-z]{2,}", stem))
