"""Finds the images and texts that a site repeats, and on which side of images its captions are."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web.choice.joined_page import JoinedPage
from vlmill.pipelines.web.choice.likeness import compute_overlap, name_subject, subject, text_size
from vlmill.pipelines.web.pages.blocks import Block
from vlmill.pipelines.web.pages.context import HEADINGS
from vlmill.pipelines.web.pages.page import Page, PageImage
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason

_ABSENT = Drop(Reason.MISSING_IMAGE)
_MAX_COUNTED = 200_000  # distinct images or texts of a site; the rare ones are dropped first
_REPEATED_PAGES, _REPEATED_SHARE = 5, 0.4
_GENERIC_IMAGES = 5
_SHORT = 25  # words: a text of at most this length may be a caption


@dataclass(slots=True)
class Site:
    """Holds the common content of one host's pages; it is built and used in one process."""

    num_pages: int = 0
    images: Counter[str] = field(default_factory=Counter)  # image id -> pages that show it
    texts: Counter[int] = field(default_factory=Counter)  # hash -> pages that contain it
    images_by_alt: dict[int, set[str]] = field(
        default_factory=dict
    )  # hash of an alt text -> images
    above: float = 0.0  # evidence that captions are above their images
    below: float = 0.0

    def pages_with(self, image_id: str) -> int:
        """Returns how many pages show the image."""
        return self.images[image_id]

    def is_repeated(self, image_id: str) -> bool:
        """Returns whether enough pages show the image that it belongs to the site."""
        pages = self.images[image_id]
        return pages >= max(_REPEATED_PAGES, _REPEATED_SHARE * self.num_pages)

    def is_generic(self, text: str) -> bool:
        """Returns whether an image's own text (alt, title, caption) is used for many images."""
        return len(self.images_by_alt.get(hash(text), ())) >= _GENERIC_IMAGES

    def share_with(self, text: str) -> float:
        """Returns the share of the site's other pages that contain the text."""
        pages = self.texts[hash(text)]
        return (pages - 1) / (self.num_pages - 1) if pages > 1 and self.num_pages > 1 else 0.0


def count_site_content(pages: Iterable[JoinedPage], rules: WebPairRules) -> Site:
    """Returns the images and texts that the pages of one host repeat.

    Reads each page once; memory is bounded.
    """
    site = Site()
    for joined in pages:
        site.num_pages += 1
        ids = [p.image_id for p in joined.images.values() if not isinstance(p, Drop)]
        texts = [hash(block.text) for block in joined.page.blocks]
        texts += [hash(t) for i in joined.page.images for t in (i.alt, i.title) if t]
        # Once per page, and in page order: a set's order differs between processes.
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
    """Records which images have an alt text, title or caption, until it counts as generic."""
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
    """Keeps the most frequent half of a full table."""
    frequent_entries = counter.most_common(_MAX_COUNTED // 2)
    counter.clear()
    counter.update(dict(frequent_entries))


def find_image_blocks(joined: JoinedPage) -> list[int]:
    """Returns the sorted positions (block numbers) of the page's available images."""
    return sorted(
        image.block
        for image in joined.page.images
        if not isinstance(joined.images.get(image.order, _ABSENT), Drop) and not image.is_furniture
    )


def sides(joined: JoinedPage) -> tuple[float, float]:
    """Returns a page's evidence that captions are (above, below) its images.

    The ends of a row of images and short texts are evidence: a text after the last image in the
    same part of the page is a caption below, a text before the first image one above. Words that a
    text shares with the name or the alt text of its image are evidence everywhere.
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
    """Returns the short texts right before and after an image, in the same part of the page."""
    before = page.blocks[image.block - 1] if 0 < image.block <= len(page.blocks) else None
    after = page.blocks[image.block] if image.block < len(page.blocks) else None
    return _caption_like(before, image), _caption_like(after, image)


def _caption_like(block: Block | None, image: PageImage) -> Block | None:
    if block is None or block.furniture or block.code or block.tag in HEADINGS:
        return None
    near = not set(block.path[:4]).isdisjoint(image.path[:4])
    return block if near and text_size(block.text) <= _SHORT else None


def row_side(joined: JoinedPage, side: float) -> str:
    """Returns the side of captions on a page where images and short texts alternate, else "".

    ``before`` or ``after`` the image: by the ends of the row, or by ``side`` if they do not decide.
    """
    blocks = joined.page.blocks
    image_blocks = sorted(set(find_image_blocks(joined)))
    if len(image_blocks) < 3:
        return ""
    gaps = [blocks[start:stop] for start, stop in pairwise(image_blocks)]
    single = [gap for gap in gaps if len(gap) == 1 and text_size(gap[0].text) <= _SHORT]
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
    """Returns whether a block is a short text in the part of the page that ``path`` identifies."""
    return (
        block is not None
        and not block.furniture
        and block.tag not in HEADINGS
        and text_size(block.text) <= _SHORT
        and not set(block.path[1:4]).isdisjoint(path[1:4])
    )
