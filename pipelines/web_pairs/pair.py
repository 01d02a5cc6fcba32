"""A pair is an image with one text; which texts count as the same is said here, too."""

import unicodedata
from dataclasses import dataclass

from vlmill.pipelines.web.choice.joined_page import TextSource
from vlmill.pipelines.web.pages.images import ArchivedImage
from vlmill.pipelines.web.texts.words import split_words


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """An image with one of its texts."""

    image: ArchivedImage
    text: str
    text_source: TextSource
    score: float
    language: str
    page_url: str
    license: str | None = None


def text_key(text: str) -> str:
    """Texts with the same key count as one: lower case, no punctuation or accents, one space."""
    folded = unicodedata.normalize("NFKD", text.casefold())
    return " ".join(split_words("".join(c for c in folded if not unicodedata.combining(c))))
