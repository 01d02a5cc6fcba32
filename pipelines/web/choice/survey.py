"""What a site repeats on its pages, and on which side of its images captions stand."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web.choice.joined_page import JoinedPage
from vlmill.pipelines.web.choice.likeness import compute_overlap, name_subject, num_words, subject
from vlmill.pipelines.web.pages.context import HEADINGS
from vlmill.pipelines.web.pages.page import Page, PageImage
from vlmill.pipelines.web.pages.walk import Block
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason

_ABSENT = Drop(Reason.MISSING_IMAGE)
_MAX_COUNTED = 200_000  # different images or texts of a site; the rare ones are forgotten first
_REPEATED_PAGES, _REPEATED_SHARE = 5, 0.4
_GENERIC_IMAGES = 5
_SHORT = 25  # words: what is no longer may be a caption


@dataclass(slots=True)
class Site:
    """What the pages of one host have in common; it is made and asked in one process."""

    num_pages: int = 0
    images: Counter[str] = field(default_factory=Counter)  # image id -> pages that show it
    texts: Counter[int] = field(default_factory=Counter)  # hash -> pages that say it
    images_by_alt: dict[int, set[str]] = field(
        default_factory=dict
    )  # hash of an alt text -> images
    above: float = 0.0  # evidence that captions stand above their images
    below: float = 0.0

    def pages_with(self, image_id: str) -> int:
        """Tells how many pages show the image."""
        return self.images[image_id]

    def is_repeated(self, image_id: str) -> bool:
        """Says whether so many pages show the image that it belongs to the site."""
        pages = self.images[image_id]
        return pages >= max(_REPEATED_PAGES, _REPEATED_SHARE * self.num_pages)

    def is_generic(self, text: str) -> bool:
        """Says whether an image's own text (alt, title, caption) stands for many images."""
        return len(self.images_by_alt.get(hash(text), ())) >= _GENERIC_IMAGES

    def share_with(self, text: str) -> float:
        """Share of the site's other pages that say the text."""
        pages = self.texts[hash(text)]
        return (pages - 1) / (self.num_pages - 1) if pages > 1 and self.num_pages > 1 else 0.0


def survey_site(pages: Iterable[JoinedPage], rules: WebPairRules) -> Site:
    """Looks at the pages of one host once, one after another; memory is bounded."""
    site = Site()
    for joined in pages:
        site.num_pages += 1
        ids = [p.image_id for p in joined.images.values() if not isinstance(p, Drop)]
        texts = [hash(block.text) for block in joined.page.blocks]
        texts += [hash(t) for i in joined.page.images for t in (i.alt, i.title) if t]
        # Once a page, and in its order: a set's order is another in every process.
        site.images.update(list(dict.fromkeys(ids)))
        site.texts.update(list(dict.fromkeys(texts)))
        _note_names(joined, site)
        above, below = sides(joined)
        site.above += above
        site.below += below
        for counter in (site.images, site.texts):
            if len(counter) > _MAX_COUNTED:
                _forget(counter)
    return site


def _note_names(joined: JoinedPage, site: Site) -> None:
    """Notes which images have an alt text, title or caption, up to those that make it generic."""
    for image in joined.page.images:
        archived = joined.images.get(image.order, _ABSENT)
        if isinstance(archived, Drop):
            continue
        for text in (image.alt, image.title, image.label, image.caption):
            if text and (
                len(site.images_by_alt) < _MAX_COUNTED or hash(text) in site.images_by_alt
            ):
                images = site.images_by_alt.setdefault(hash(text), set())
                if len(images) < _GENERIC_IMAGES:
                    images.add(archived.image_id)


def _forget(counter: Counter[Any]) -> None:
    """Drops what was seen once, or whatever it takes to halve the table."""
    frequent_entries = counter.most_common(_MAX_COUNTED // 2)
    counter.clear()
    counter.update(dict(frequent_entries))


def find_image_blocks(joined: JoinedPage) -> list[int]:
    """Places (block numbers) of the page's images at hand, sorted."""
    return sorted(
        image.block
        for image in joined.page.images
        if not isinstance(joined.images.get(image.order, _ABSENT), Drop) and not image.is_furniture
    )


def sides(joined: JoinedPage) -> tuple[float, float]:
    """Evidence of a page that captions stand (above, below) its images.

    A row of images and short texts tells at its ends: what follows the last image in the same
    part of the page is a caption below, what precedes the first one above. Words that a text
    shares with the name or the alt text of its image tell everywhere.
    """
    above = below = 0.0
    for image in joined.page.images:
        archived = joined.images.get(image.order)
        if archived is None or isinstance(archived, Drop) or image.is_furniture or image.caption:
            continue
        before, after = neighbours(joined.page, image)
        image_subject = subject(image.alt) | subject(image.title)
        image_subject |= name_subject(image.urls[0]) if image.urls else frozenset()
        if before is not None:
            above += compute_overlap(subject(before.text), image_subject)
            above += 0.5 * (before.text[-1:] in ":：" or after is None)
        if after is not None:
            below += compute_overlap(subject(after.text), image_subject)
            below += 0.5 * (before is None)
    return above, below


def neighbours(page: Page, image: PageImage) -> tuple[Block | None, Block | None]:
    """The short texts right before and right after an image, in the same part of the page."""
    before = page.blocks[image.block - 1] if 0 < image.block <= len(page.blocks) else None
    after = page.blocks[image.block] if image.block < len(page.blocks) else None
    return _caption_like(before, image), _caption_like(after, image)


def _caption_like(block: Block | None, image: PageImage) -> Block | None:
    if block is None or block.furniture or block.code or block.tag in HEADINGS:
        return None
    near = not set(block.path[:4]).isdisjoint(image.path[:4])
    return block if near and num_words(block.text) <= _SHORT else None


def row_side(joined: JoinedPage, side: float) -> str:
    """Where captions stand on a page on which images and short texts alternate, "" on others.

    ``before`` or ``after`` the image: as the row's ends say, and ``side`` where they do not.
    """
    blocks = joined.page.blocks
    image_blocks = sorted(set(find_image_blocks(joined)))
    if len(image_blocks) < 3:
        return ""
    gaps = [blocks[start:stop] for start, stop in pairwise(image_blocks)]
    single = [gap for gap in gaps if len(gap) == 1 and num_words(gap[0].text) <= _SHORT]
    if len(single) < 0.6 * len(gaps):
        return ""
    path = single[0][0].path
    first = blocks[image_blocks[0] - 1] if image_blocks[0] else None
    last = blocks[image_blocks[-1]] if image_blocks[-1] < len(blocks) else None
    opens, ends = _like(first, path), _like(last, path)
    if opens != ends:
        return "before" if opens else "after"
    return "before" if side >= 0 else "after"


def _like(block: Block | None, path: tuple[int, ...]) -> bool:
    """A short text in the same part of the page as the row that ``path`` leads to."""
    return (
        block is not None
        and not block.furniture
        and block.tag not in HEADINGS
        and num_words(block.text) <= _SHORT
        and not set(block.path[1:4]).isdisjoint(path[1:4])
    )
