"""Reads pages that are only described: the links and metadata of a page, or a row of a table.

Their markup is not available. So their images have no position, no size and no text around them:
their texts are the alternative texts, titles, the page's title and its metadata.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web.pages.addresses import MAX_INLINE_BYTES, addresses, inline_image
from vlmill.pipelines.web.pages.blocks import fold
from vlmill.pipelines.web.pages.page import Page, PageImage
from vlmill.pipelines.web.texts.language import LanguageDetector, caption_language, page_language
from vlmill.runtime.units.funnel import Drop

_SURE = 0.9  # share of a text in a language, from which the text is in it


class Description(Protocol):
    """Describes a page without its markup; its language is detected before it is read."""

    @property
    def address(self) -> str:
        """Returns the page's URL, or the image's URL for an unknown page."""

    @property
    def has_images(self) -> bool:
        """Returns whether the page refers to an image."""

    def find_language(
        self, detector: LanguageDetector, rules: WebPairRules, languages: frozenset[str] | None
    ) -> str | Drop:
        """Returns the page's language if it is one of ``languages``, else why it is dropped.

        None accepts any language; the result is then "" if none can be detected.
        """

    def read_page(self, rules: WebPairRules) -> Page | Drop:
        """Returns the page, or the opt-out in its metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPage:
    """Describes an image with its text: a row of a table.

    URLs are absolute and normalised; ``page_url`` is "" for an unknown page.
    """

    page_url: str
    image_url: str
    text: str
    language: str = ""  # as the table states it

    @property
    def address(self) -> str:
        """Returns the page's URL, or the image's URL for an unknown page."""
        return self.page_url or self.image_url

    @property
    def has_images(self) -> bool:
        """Returns True: each row names an image."""
        return True

    def find_language(
        self, detector: LanguageDetector, rules: WebPairRules, languages: frozenset[str] | None
    ) -> str | Drop:
        """Returns the language that the table states or the text has, or why the row is dropped."""
        if self.language:
            language = page_language(
                detector,
                self.text,
                self.language,
                languages=languages,
                min_probability=rules.min_language_probability,
                min_chars=4 * len(self.text) + 4,  # so that the statement decides
                max_chars=rules.max_language_chars,
            )
        else:
            language = text_language(detector, self.text, rules, languages)
        return "" if languages is None and isinstance(language, Drop) else language

    def read_page(self, rules: WebPairRules) -> Page:
        """Returns a page with this image alone; the text is its alternative text."""
        image = PageImage(
            order=0,
            src=self.image_url[:200],
            urls=addresses(self.page_url, iter((self.image_url,))),
            alt=fold(self.text, rules.max_text_chars),
        )
        return Page(url=self.page_url, title="", images=(image,))


def text_language(
    detector: LanguageDetector, text: str, rules: WebPairRules, languages: frozenset[str] | None
) -> str | Drop:
    """Returns the language of a short text without a page, or why it is dropped.

    A text of at least ``rules.min_language_chars`` characters is detected like a page. Names and
    titles are in no language, so a shorter text is accepted as the only one of ``languages`` unless
    its script rules that out; with several languages the detector must be sure.
    """
    probability = rules.min_language_probability
    if languages is not None and len(languages) == 1:
        (language,) = languages
        primary = language.partition("-")[0]
        if language == primary:
            drop = caption_language(
                detector, text, language=primary, min_chars=rules.min_language_chars
            )
            return drop or primary
    if len(text) < rules.min_language_chars:
        probability = max(probability, _SURE)
    return page_language(
        detector,
        text,
        None,
        languages=languages,
        min_probability=probability,
        min_chars=1,
        max_chars=rules.max_language_chars,
    )


def read_images(
    references: Iterable[tuple[str, str, str]], base: str, rules: WebPairRules
) -> tuple[list[PageImage], dict[str, bytes], int]:
    """Returns the images of (address, alt, title) in page order, their ``data:`` bytes by name, and
    the number of images beyond ``rules.max_images_per_page``.
    """
    images, inline = list[PageImage](), dict[str, bytes]()
    bytes_left, num_beyond = MAX_INLINE_BYTES, 0
    for order, (reference, alt, title) in enumerate(references):
        if order >= rules.max_images_per_page:
            num_beyond += 1
            continue
        urls = addresses(base, iter((reference,)))
        if not urls and (data_image := inline_image(reference, bytes_left)) is not None:
            inline[data_image[0]] = data_image[1]
            bytes_left -= len(data_image[1])
            urls = (data_image[0],)
        images.append(
            PageImage(
                order=order,
                src=reference[:200],
                urls=urls,
                alt=fold(alt, rules.max_text_chars),
                title=fold(title, rules.max_text_chars),
            )
        )
    return images, inline, num_beyond
