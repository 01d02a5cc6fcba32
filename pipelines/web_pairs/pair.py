"""A candidate becomes a pair: one text for each picture, and no text for many pictures.

That rule is LAIT's (ImageBERT, section 3).
"""

import unicodedata
from dataclasses import dataclass

from vlmill.pipelines.texts.scoring import TextSource
from vlmill.pipelines.texts.words import words_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture that passed, and where its bytes lie: the record at ``offset`` of ``archive``."""

    image_id: str
    url: str
    width: int
    height: int
    format: str
    archive: str
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A picture with one of its texts."""

    picture: Picture
    text: str
    text_source: TextSource
    score: float
    language: str
    page_url: str


def preference(pair: Pair) -> tuple[float, str, str, str, str, str, int]:
    """Sort key: the best pair of a picture comes first. Total, so ties break alike everywhere."""
    picture = pair.picture
    return (
        -pair.score,
        pair.text,
        pair.text_source,
        pair.page_url,
        picture.url,
        picture.archive,
        picture.offset,
    )


def text_key(text: str) -> str:
    """Texts with the same key count as one: lower case, no punctuation or accents, one space."""
    folded = unicodedata.normalize("NFKD", text.casefold())
    return " ".join(words_of("".join(c for c in folded if not unicodedata.combining(c))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A dominant picture of a page, before anybody has looked for its bytes."""

    id: str
    page_url: str
    page_title: str
    urls: tuple[str, ...]
    texts: tuple[tuple[TextSource, str], ...]
    dominance: float
