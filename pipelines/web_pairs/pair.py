"""Defines a pair, an image with one text, and when two texts count as the same."""

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from vlmill.pipelines.web.choice.joined_page import TextSource
from vlmill.pipelines.web.pages.images import ArchivedImage
from vlmill.pipelines.web.texts.words import split_words


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherText:
    """Holds a text of an image: of a pair, or a further one on the same or on another page."""

    text: str
    text_source: TextSource
    score: float
    language: str
    page_url: str
    license: str | None = None
    features: dict[str, float] | None = None  # of its score, if candidates are kept

    def as_fields(self) -> dict[str, Any]:
        """Returns the text's own fields, without those of a pair."""
        return {field.name: getattr(self, field.name) for field in fields(OtherText)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair(OtherText):
    """Holds an image with one of its texts."""

    image: ArchivedImage
    others: tuple[OtherText, ...] = ()  # the best first

    def as_other(self) -> OtherText:
        """Returns the pair's text as a further text of its image."""
        return OtherText(**self.as_fields())


def with_others(pair: Pair, others: Iterable[OtherText], most: int) -> Pair:
    """Returns the pair with the best ``most`` of an image's further texts, each once."""
    seen, chosen = {text_key(pair.text)}, list[OtherText]()
    for other in sorted(others, key=lambda one: (-one.score, one.text, one.page_url)):
        key = text_key(other.text)
        if key not in seen and len(chosen) < most:
            seen.add(key)
            chosen.append(other)
    return replace(pair, others=tuple(chosen))


def text_key(text: str) -> str:
    """Returns a key for comparing texts: lower case, no punctuation or accents, one space."""
    folded = unicodedata.normalize("NFKD", text.casefold())
    return " ".join(split_words("".join(c for c in folded if not unicodedata.combining(c))))
