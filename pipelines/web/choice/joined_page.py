"""What the choice takes and gives: pages with the images at hand, images with their texts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from vlmill.pipelines.web.pages.page import Page
from vlmill.runtime.units.funnel import Drop

TextSource = Literal["figcaption", "alt", "title", "metadata", "surrounding"]


class Measured(Protocol):
    """An image at hand: its id by content, and its true size in pixels."""

    @property
    def image_id(self) -> str:
        """Digest of the bytes."""

    @property
    def width(self) -> int:
        """Width in pixels, upright."""

    @property
    def height(self) -> int:
        """Height in pixels, upright."""


@dataclass(frozen=True, slots=True)
class JoinedPage:
    """A page and what lies under the addresses of its images, by ``PageImage.order``.

    An order that is absent is an image that is not at hand.
    """

    page: Page
    images: Mapping[int, Measured | Drop]


class ScoredText(NamedTuple):
    """A text for an image, cleaned: where it stood, what it says, how likely it describes it."""

    source: TextSource
    text: str
    score: float  # 0..1
    features: Mapping[str, float] | None = None  # what the score is made of, if that is kept


@dataclass(frozen=True, slots=True)
class Choice:
    """An image that is part of its page's content, with the texts that describe it, best first."""

    order: int
    dominance: float  # 0..1
    texts: tuple[ScoredText, ...]
