"""Defines the input and output of the choice: pages with available images, images with texts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from vlmill.pipelines.web.pages.page import Page
from vlmill.runtime.units.funnel import Drop

TextSource = Literal["figcaption", "alt", "title", "metadata", "surrounding"]


class Measured(Protocol):
    """Describes an available image: its id by content, and its true size in pixels."""

    @property
    def image_id(self) -> str:
        """Returns the digest of the bytes."""

    @property
    def width(self) -> int:
        """Returns the width in pixels, upright."""

    @property
    def height(self) -> int:
        """Returns the height in pixels, upright."""


@dataclass(frozen=True, slots=True)
class JoinedPage:
    """Holds a page and the images or Drops of its image addresses, by ``PageImage.order``.

    An image whose order is absent is not available.
    """

    page: Page
    images: Mapping[int, Measured | Drop]


class ScoredText(NamedTuple):
    """Holds a cleaned text for an image: its source, the text, and the probability that it fits."""

    source: TextSource
    text: str
    score: float  # 0..1
    features: Mapping[str, float] | None = None  # the score's inputs, if they are kept
