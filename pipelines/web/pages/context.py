"""Finds the texts of a page's images: captions, the surrounding blocks, the main text."""

import bisect
from collections.abc import Sequence

from vlmill.pipelines.web.pages.blocks import Block, Spot

HEADINGS = frozenset(("h1", "h2", "h3", "h4", "h5", "h6"))
_NEAR, _MAX_CAPTIONS = 20, 4_000
_TINY = 50  # pixels: a smaller image has no caption
_NO_CAPTION = frozenset(("td", "th", "table", "tr", "pre"))  # may be wrongly in a figcaption


def captions_by_image(
    blocks: Sequence[Block], spots: Sequence[Spot], *, max_chars: int
) -> dict[int, str]:
    """Returns captions by their images' numbers in ``spots``, without images that have none.

    A caption belongs to the nearest of the images that share its closest ancestor: in a figure
    its own image, in a row of images and captions the one before. Of several captions, the first
    counts. The caption of a figure without an image, such as a listing, belongs to no image.
    """
    block_numbers = [spot.block for spot in spots]
    captions: dict[int, str] = {}
    caption_serials: set[int] = set()
    for number, block in enumerate(blocks):
        if not block.caption or block.caption in caption_serials:
            continue
        caption_serials.add(block.caption)
        if len(caption_serials) > _MAX_CAPTIONS:
            break
        order = _owner(number, block, spots, block_numbers)
        if order is not None:
            captions.setdefault(order, _caption(blocks[number : number + 10])[:max_chars])
    return captions


def _caption(blocks: Sequence[Block]) -> str:
    """Returns the text of the first block's caption element, without tables and code."""
    own = [block for block in blocks if block.caption == blocks[0].caption]
    first = next((block for block in own if not block.code), own[0])
    return " ".join(
        block.text
        for block in own
        if block is first or not (block.code or block.tag in _NO_CAPTION)
    )


def _owner(
    number: int, caption: Block, spots: Sequence[Spot], block_numbers: Sequence[int]
) -> int | None:
    """Returns the number of the image to which the caption in block ``number`` belongs."""
    middle = bisect.bisect_right(block_numbers, number)
    ranks = []
    # Images further away than these have others in between.
    for order in range(max(0, middle - _NEAR), min(len(block_numbers), middle + _NEAR)):
        spot = spots[order]
        if caption.figure and spot.figure != caption.figure:
            continue
        if caption.caption in spot.path or _is_tiny(spot):
            continue  # for example the magnifying glass in a caption
        level = next((i for i, serial in enumerate(caption.path) if serial in spot.path), None)
        if level is not None:
            follows = block_numbers[order] > number
            ranks.append((level, follows, abs(number - block_numbers[order]), order))
    return min(ranks)[3] if ranks else None


def _is_tiny(spot: Spot) -> bool:
    return any(side is not None and side < _TINY for side in spot.sides)


def nearby(blocks: Sequence[Block], block_numbers: Sequence[int], reach: int) -> list[int]:
    """Returns the numbers of all headings and of the blocks within ``reach`` of an image."""
    chosen = {number for number, block in enumerate(blocks) if block.tag in HEADINGS}
    for block_number in set(block_numbers):
        chosen.update(range(max(0, block_number - reach), min(len(blocks), block_number + reach)))
    return sorted(chosen)
