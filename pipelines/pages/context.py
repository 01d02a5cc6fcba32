"""What a page's text says about its pictures: captions, the text around each, the main text."""

import bisect
import re
from collections.abc import Iterator, Sequence

from vlmill.pipelines.pages.walk import Block, Spot

_HEADINGS = frozenset(("h1", "h2", "h3", "h4", "h5", "h6"))
_SENTENCE_END = re.compile(r"[.!?…][\"”’')]*\s")
_NEAR, _MAX_CAPTIONS = 20, 4_000
_TINY = 50  # pixels: what is shown smaller has no caption


def captions_by_picture(
    blocks: Sequence[Block], spots: Sequence[Spot], *, max_chars: int
) -> dict[int, str]:
    """Number of a picture in ``spots`` -> its caption; pictures without one are left out.

    A caption belongs to the nearest of those pictures that share its closest ancestor: in a figure
    its own picture, in a row of pictures and captions the one before. Of several, the first counts.
    """
    places = [spot.block for spot in spots]
    captions: dict[int, str] = {}
    seen: set[int] = set()
    for number, block in enumerate(blocks):
        if not block.caption or block.caption in seen:
            continue
        seen.add(block.caption)
        if len(seen) > _MAX_CAPTIONS:
            break
        order = _owner(number, block, spots, places)
        if order is not None:
            parts = [b.text for b in blocks[number : number + 10] if b.caption == block.caption]
            captions.setdefault(order, " ".join(parts)[:max_chars])
    return captions


def _owner(number: int, caption: Block, spots: Sequence[Spot], places: Sequence[int]) -> int | None:
    """Number of the picture to which the caption in block ``number`` belongs."""
    middle = bisect.bisect_right(places, number)
    ranks = []
    # Pictures further away than these have others in between.
    for order in range(max(0, middle - _NEAR), min(len(places), middle + _NEAR)):
        path = spots[order].path
        if caption.caption in path or _is_tiny(spots[order]):
            continue  # the magnifying glass in a caption
        level = next((i for i, serial in enumerate(caption.path) if serial in path), None)
        if level is not None:
            follows = places[order] > number
            ranks.append((level, follows, abs(number - places[order]), order))
    return min(ranks)[3] if ranks else None


def _is_tiny(spot: Spot) -> bool:
    return any(side is not None and side < _TINY for side in spot.sides)


def surrounding_texts(spot: Spot, blocks: Sequence[Block], limit: int) -> Iterator[str]:
    """The text that the picture stands in or before, and the one above it if that points here.

    A heading points at what follows, and so does a text that ends in a colon or has nothing else
    after it. Each is whole sentences within ``limit`` characters.
    """
    after = blocks[spot.block] if spot.block < len(blocks) else None
    before = blocks[spot.block - 1] if spot.block else None
    follows = after is not None and not after.furniture and not after.caption
    if after is not None and follows and (text := first_sentences(after.text, limit)):
        yield text
    if before is not None and not before.furniture and not before.caption:
        points = before.tag in _HEADINGS or before.text.endswith(":") or not follows
        if points and (text := last_sentences(before.text, limit)):
            yield text


def first_sentences(text: str, limit: int) -> str:
    """Whole sentences from the start within ``limit`` characters; "" if the first is longer."""
    if len(text) <= limit:
        return text
    ends = [match.end() for match in _SENTENCE_END.finditer(text[: limit + 1])]
    return text[: ends[-1]].strip() if ends else ""


def last_sentences(text: str, limit: int) -> str:
    """Whole sentences up to the end within ``limit`` characters; "" if the last is longer."""
    if len(text) <= limit:
        return text
    first = _SENTENCE_END.search(text, len(text) - limit)
    return text[first.end() :].strip() if first else ""


def main_text(blocks: Sequence[Block], limit: int) -> str:
    """Paragraph-like text outside of menus first; on pages without any, all text there is.

    At most ``limit`` characters.
    """
    texts = [b.text for b in blocks if not b.furniture and _is_prose(b.text)]
    prose = [text for text in texts if len(text) >= 60]
    rest = [text for text in texts if len(text) < 60]
    if sum(map(len, prose)) < limit // 2:
        prose += rest
    return " ".join(prose or [b.text for b in blocks])[:limit]


def _is_prose(text: str) -> bool:
    """Letters and spaces for the most part: settings in JSON lie in hidden elements of pages."""
    return sum(c.isalpha() or c.isspace() for c in text) >= 0.8 * len(text)
