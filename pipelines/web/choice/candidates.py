"""Finds every text of a page that may describe one of its images, with its position."""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple

from vlmill.pipelines.web.choice.joined_page import TextSource
from vlmill.pipelines.web.choice.likeness import APART, file_stem, name_subject, subject
from vlmill.pipelines.web.pages.blocks import Block
from vlmill.pipelines.web.pages.context import HEADINGS
from vlmill.pipelines.web.pages.page import Page, PageImage
from vlmill.pipelines.web.texts.phrases import Phrases
from vlmill.pipelines.web.texts.sentences import sentences

Kind = Literal[
    "alt", "title", "label", "caption", "heading", "page_title", "metadata", "before", "after"
]
SOURCES: dict[Kind, TextSource] = {
    "alt": "alt",
    "title": "title",
    "label": "alt",
    "caption": "figcaption",
    "heading": "surrounding",
    "page_title": "metadata",
    "metadata": "metadata",
    "before": "surrounding",
    "after": "surrounding",
}
_SIDE_SENTENCES, _SIDE_BLOCKS = 4, 4
_REACH = 12  # blocks before and after, listings included
_HEADINGS, _HEADING_REACH = 2, 200
_LINKED = 0.5  # of a heading's characters: it is a link, as its image is


_FILE_NAME = re.compile(
    r"^\S*\.(?:jpe?g|png|gif|webp|avif)$|^(?=\S*\d)[\w.()+-]*\d{3,}[\w.()+-]*$"
    r"|^(?:img|dsc\w?|image|photo|pict?|bild|foto)[\s_-]*\d*$|^/[/\w.%-]+$|^\w*_\w*\d\w*$",
    re.IGNORECASE | re.ASCII,
)


_URL = re.compile(r"(?:https?://|\bwww\.)\S+", re.IGNORECASE)
_HUMPED = re.compile(r"\w*[a-z][A-Z]\w*", re.ASCII)
_RESIZED = re.compile(
    r"(?:[-_](?:\d{2,5}x\d{2,5}|\d{2,4}w|scaled|e\d{9,}|[sml]|xl))+$", re.IGNORECASE
)
_EDGES = re.compile(r"^\W+|\W+$")
_LONG_NAME = 3  # words


def says_nothing(text: str, phrases: Phrases) -> bool:
    """Returns whether a text is a file name, a word for any image, a number, a date or an address.

    The words of an address are often parts of a file name, and describe nothing.
    """
    if ("://" in text or "www." in text) and 2 * len(_URL.sub("", text)) < len(text):
        return True
    letters = sum(map(str.isalpha, text[:400]))
    return (
        letters < 2
        or bool(phrases.credit.match(text))
        or 3 * letters < len(text[:400].replace(" ", ""))
        or bool(_FILE_NAME.match(text))
        or bool(phrases.generic.match(text))
    )


def is_made_from_name(text: str, url: str) -> bool:
    """Returns whether a program made a text from a URL's file name.

    It is the name of a file, with digits, marks or capitals inside (``Graph1``, ``sunSet``), or a
    site's words and after them a name of at least three words.
    """
    name = file_stem(url)
    names = [name, _RESIZED.sub("", name)]
    text = _EDGES.sub("", text)
    if text in names:
        return bool(_HUMPED.fullmatch(text)) or (
            " " not in text and not text.replace("-", "").isalpha()
        )
    words = APART.sub(" ", names[1]).casefold().split()
    own = APART.sub(" ", text).casefold().split()
    return _LONG_NAME <= len(words) < len(own) and own[-len(words) :] == words


class Boxes(NamedTuple):
    """Counts the available images and the blocks of text in each element of a page by serial."""

    images: Counter[int]
    blocks: Counter[int]


NO_BOXES = Boxes(Counter(), Counter())


def count_boxes(page: Page, paths: Iterable[tuple[int, ...]]) -> Boxes:
    """Returns the counts of a page whose available images have ``paths``."""
    return Boxes(
        Counter(chain.from_iterable(paths)),
        Counter(chain.from_iterable(block.path for block in page.blocks)),
    )


def own_box(image: PageImage, common: int, boxes: Boxes) -> float:
    """Returns 1 for the only text in an element with the image alone, less for one of several.

    ``common`` is the index of that element above the image. 0 if other images are in it.
    """
    serial = image.path[common] if common < len(image.path) else 0
    return 0.0 if boxes.images[serial] != 1 else 1 / max(1, boxes.blocks[serial])


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Holds an unprocessed text near an image, and its position."""

    kind: Kind
    text: str
    sentences_away: int = 0  # 1 for the nearest sentence of its side
    blocks_away: int = 0  # 1 for the nearest block of its side
    images_between: int = 0
    tag: str = ""
    block: int = -1  # index of its block on the page, for surrounding texts
    is_whole: bool = False  # a block of one sentence
    position: int = 0  # of the sentence in its block, from its start
    linked: float = 0.0
    own_box: float = 0.0


def find_candidates(
    page: Page,
    image: PageImage,
    images: Sequence[int],
    phrases: Phrases,
    *,
    is_card: bool = False,
    max_in_row: int = 2,
    boxes: Boxes = NO_BOXES,
) -> list[Candidate]:
    """Returns every text that may describe the image, each once, the most explicit kind first.

    ``phrases`` have the words by which a text names nothing.
    ``images`` are sorted positions (block numbers) of the page's available images. ``is_card``
    means that the image represents another page: this page's own title describes a list. In a row
    of more than ``max_in_row`` images without a text between them only texts that name the image
    count.
    """
    texts = [
        *_explicit(image, phrases),
        *_side(page.blocks, image, images, -1, max_in_row, boxes),
        *_side(page.blocks, image, images, 1, max_in_row, boxes),
        *_headings(page.blocks, image, images, max_in_row, boxes),
        *_title(page),
        *(Candidate(kind="metadata", text=text) for text in image.metadata[:4]),
    ]
    candidates_by_text: dict[str, Candidate] = {}
    for candidate in texts:
        if not says_nothing(candidate.text, phrases) and not (is_card and _is_of_page(candidate)):
            candidates_by_text.setdefault(candidate.text, candidate)
    return list(candidates_by_text.values())


def _is_of_page(candidate: Candidate) -> bool:
    """Returns whether a text is the page's title, or a heading without a link."""
    return candidate.kind == "page_title" or (
        (candidate.kind == "heading" or candidate.tag in HEADINGS) and candidate.linked < _LINKED
    )


def _explicit(image: PageImage, phrases: Phrases) -> Iterator[Candidate]:
    texts_by_kind: dict[Kind, str] = {
        "caption": image.caption,
        "alt": image.alt,
        "title": image.title,
        "label": image.label,
    }
    texts_by_kind = {
        kind: text for kind, text in texts_by_kind.items() if not says_nothing(text, phrases)
    }
    # An alt text that a program made from the file name is worse than any other.
    texts_by_kind = {
        kind: text
        for kind, text in texts_by_kind.items()
        if not is_made_from_name(text, image.urls[0])
    }
    name = name_subject(image.urls[0])
    more = {kind: text for kind, text in texts_by_kind.items() if not subject(text) <= name}
    for kind, text in (more or texts_by_kind).items():
        yield Candidate(kind=kind, text=text, is_whole=True)


def _side(
    blocks: Sequence[Block],
    image: PageImage,
    images: Sequence[int],
    step: int,
    max_in_row: int,
    boxes: Boxes,
) -> Iterator[Candidate]:
    """Yields sentences before (step -1) or after (step 1) the image, the nearest first."""
    kind: Kind = "before" if step < 0 else "after"
    # A paragraph next to a row of images describes all or none, unless it names one of them.
    in_row = _in_a_row(images, image.block) > max_in_row
    number = image.block - 1 if step < 0 else image.block
    sentences_away = blocks_away = 0
    stop = image.block + step * _REACH
    while 0 <= number < len(blocks) and blocks_away < _SIDE_BLOCKS and number != stop:
        block = blocks[number]
        if block.furniture:
            break
        if not block.code:
            blocks_away += 1
            if _between(images, image.block, number):
                return  # the text is nearer to that image
            cut = list(sentences(block.text))
            numbered_sentences = list(enumerate(cut))
            for position, text in reversed(numbered_sentences) if step < 0 else numbered_sentences:
                sentences_away += 1
                if sentences_away > _SIDE_SENTENCES:
                    return
                if in_row and not is_named_by(text, image):
                    continue
                if step < 0 and sentences_away > 1 and block.tag in HEADINGS:
                    continue  # a heading: _headings yields it
                yield _near(
                    kind,
                    text,
                    block,
                    image,
                    sentences_away,
                    blocks_away,
                    position,
                    len(cut),
                    _between(images, image.block, number),
                    boxes,
                    own_block=number,
                )
        number += step


def is_named_by(text: str, image: PageImage) -> bool:
    """Returns whether a text shares words with the image's file name, alt text or title."""
    own = name_subject(image.urls[0]) | subject(image.alt) | subject(image.title)
    return not own.isdisjoint(subject(text))


def _in_a_row(images: Sequence[int], block: int) -> int:
    """Returns the number of consecutive images before a block, with no text between them."""
    return bisect_right(images, block) - bisect_left(images, block)


def _between(images: Sequence[int], image_block: int, number: int) -> int:
    """Returns the number of other images between the image at ``image_block`` and a block."""
    if number < image_block:
        return bisect_left(images, image_block) - bisect_right(images, number)
    return bisect_right(images, number) - bisect_right(images, image_block)


def _near(
    kind: Kind,
    text: str,
    block: Block,
    image: PageImage,
    sentences_away: int,
    blocks_away: int,
    position: int,
    num_sentences: int,
    between: int,
    boxes: Boxes,
    own_block: int = -1,
) -> Candidate:
    common = next((i for i, serial in enumerate(image.path) if serial in block.path), 9)
    return Candidate(
        kind=kind,
        text=text,
        sentences_away=sentences_away,
        blocks_away=blocks_away,
        images_between=between,
        tag=block.tag,
        block=own_block,
        is_whole=num_sentences == 1,
        position=position,
        linked=block.linked,
        own_box=own_box(image, common, boxes),
    )


def _headings(
    blocks: Sequence[Block], image: PageImage, images: Sequence[int], max_in_row: int, boxes: Boxes
) -> Iterator[Candidate]:
    """Yields the nearest headings above the image, regardless of the blocks between."""
    in_row = _in_a_row(images, image.block) > max_in_row
    away = 0
    above = min(image.block, len(blocks))
    for number in range(above - 1, max(-1, above - 1 - _HEADING_REACH), -1):
        block = blocks[number]
        if away == _HEADINGS:
            return
        if block.tag in HEADINGS and not block.furniture:
            away += 1
            if in_row and not is_named_by(block.text, image):
                continue
            yield _near(
                "heading",
                block.text,
                block,
                image,
                away,
                image.block - number,
                0,
                1,
                _between(images, image.block, number),
                boxes,
            )


def _title(page: Page) -> Iterator[Candidate]:
    title = own_title(page.title, page.site)
    if title:
        yield Candidate(kind="page_title", text=title)


_SEPARATORS = (" | ", " – ", " — ", " - ", " :: ", " » ", " · ", " « ", "｜")


def own_title(title: str, site: str) -> str:
    """Returns the page's part of its title: "Madeleines | Orangette" gives Madeleines."""
    for separator in _SEPARATORS:
        head, separated, tail = title.rpartition(separator)
        if separated and head:
            return tail.strip() if subject(head) <= subject(site) else head
    return title
