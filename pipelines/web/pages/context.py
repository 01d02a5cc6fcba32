"""Finds the texts of a page's images: captions, the surrounding blocks, the main text.

Captions are also in rows of tables, infoboxes, microdata and ARIA's references to images.
"""

import bisect
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from selectolax.lexbor import LexborHTMLParser, LexborNode

from vlmill.pipelines.web.pages.blocks import Block, Spot, fold

HEADINGS = frozenset(("h1", "h2", "h3", "h4", "h5", "h6"))
_NEAR, _MAX_CAPTIONS = 20, 4_000
_TINY = 50  # pixels: a smaller image has no caption
_NO_CAPTION = frozenset(("td", "th", "table", "tr", "pre"))  # may be wrongly in a figcaption

_MAX_LABELS, _MAX_IDS = 500, 4  # per page, and per image
_MAX_CHARS = 2_000
_MAX_ELEMENTS = 500  # per type and page
_LONGEST = 300  # characters of a caption in an infobox
_DESCRIBED = (
    "img[aria-describedby],img[aria-details],figure[aria-labelledby],figure[aria-describedby],"
    "[role=figure]"
)
_IMAGE_OBJECT = '[itemtype*="schema.org/ImageObject"]'
_TEXTS = ("caption", "description", "name")  # of an ImageObject, the closest to a caption first
_INFOBOX = "table[class*=infobox],.infobox table"

_CELLS = ("td", "th")
_MAX_TABLES, _MAX_ROWS, _MAX_CELLS = 200, 500, 50
_MAX_CAPTION = 200  # characters of a caption; a longer text is content in a layout table

Cell = tuple[int, LexborNode]  # the column where it begins, and the cell


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
        is_tiny = any(side is not None and side < _TINY for side in spot.sides)
        if is_tiny or caption.caption in spot.path:
            continue  # for example the magnifying glass in a caption
        level = next((i for i, serial in enumerate(caption.path) if serial in spot.path), None)
        if level is not None:
            follows = block_numbers[order] > number
            ranks.append((level, follows, abs(number - block_numbers[order]), order))
    return min(ranks)[3] if ranks else None


def nearby(blocks: Sequence[Block], block_numbers: Sequence[int], reach: int) -> list[int]:
    """Returns the numbers of all headings and of the blocks within ``reach`` of an image."""
    chosen = {number for number, block in enumerate(blocks) if block.tag in HEADINGS}
    for block_number in set(block_numbers):
        chosen.update(range(max(0, block_number - reach), min(len(blocks), block_number + reach)))
    return sorted(chosen)


class Labels:
    """Finds an image's ``aria-label``, ``aria-labelledby`` texts and a drawing's title."""

    def __init__(self, tree: LexborHTMLParser) -> None:
        self._tree = tree
        self._texts: dict[str, str] = {}
        self._named: Mapping[str, LexborNode] | None = None

    def find_label(self, node: LexborNode) -> str:
        """Returns the label of an image or of its link, or ""."""
        attributes = node.attributes
        if label := attributes.get("aria-label"):
            return label
        if ids := attributes.get("aria-labelledby"):
            return self.find_texts(ids)
        if node.tag == "image":
            return _title_of_drawing(node)
        return ""

    def find_texts(self, ids: str) -> str:
        """Returns the texts of the elements that an attribute lists by their ids."""
        return " ".join(filter(None, (self._text(name) for name in ids.split()[:_MAX_IDS])))

    def _text(self, name: str) -> str:
        """Returns the text of the element with an id; each is read once, up to a limit."""
        text = self._texts.get(name)
        if text is None:
            if len(self._texts) >= _MAX_LABELS:
                return ""
            if self._named is None:
                nodes = reversed(self._tree.css("[id]"))  # the first element with an id counts
                self._named = {node.attributes["id"] or "": node for node in nodes}
            node = self._named.get(name)
            text = self._texts[name] = "" if node is None else _plain(node)
        return text


def _plain(node: LexborNode) -> str:
    return (node.attributes.get("aria-label") or node.text(deep=True) or "")[:_MAX_CHARS]


def _title_of_drawing(node: LexborNode) -> str:
    """Returns the ``title`` of the SVG drawing that contains an image."""
    above = node.parent
    while above is not None and above.tag not in ("svg", "body"):
        above = above.parent
    title = above.css_first("title") if above is not None and above.tag == "svg" else None
    return "" if title is None else _plain(title)


def captions_by_reference(tree: LexborHTMLParser, labels: Labels) -> dict[int, str]:
    """Returns captions by the ``mem_id`` of their images; skips attributes absent from the source.

    An image's ``aria-describedby`` and ``aria-details``; the name of a figure that has one image;
    an ImageObject in microdata; the row or the text below the image of an infobox.
    """
    source = tree.raw_html or b""
    captions: dict[int, str] = {}
    if b"infobox" in source:
        for table in tree.css(_INFOBOX)[:_MAX_ELEMENTS]:
            captions |= _of_infobox(table)
    if b"ImageObject" in source:
        for scope in tree.css(_IMAGE_OBJECT)[:_MAX_ELEMENTS]:
            captions |= _of_image_object(scope)
    if b"aria-" in source:
        for node in tree.css(_DESCRIBED)[:_MAX_ELEMENTS]:
            captions |= _of_described(node, labels)
    return {image: text for image, text in captions.items() if text}


def _of_described(node: LexborNode, labels: Labels) -> Mapping[int, str]:
    attributes = node.attributes
    if node.tag == "img":
        ids = attributes.get("aria-describedby") or attributes.get("aria-details") or ""
        return {node.mem_id: labels.find_texts(ids)}
    images = node.css("img")
    if len(images) != 1:
        return {}
    ids = attributes.get("aria-labelledby") or attributes.get("aria-describedby") or ""
    return {images[0].mem_id: labels.find_texts(ids) or attributes.get("aria-label") or ""}


def _of_image_object(scope: LexborNode) -> Mapping[int, str]:
    images = [scope] if scope.tag == "img" else scope.css("img")
    if len(images) != 1:
        return {}
    for name in _TEXTS:
        for node in scope.css(f'[itemprop~="{name}"]')[:1]:
            if text := node.attributes.get("content") or node.text(deep=True):
                return {images[0].mem_id: fold(text, _LONGEST)}
    return {}


def _of_infobox(table: LexborNode) -> Mapping[int, str]:
    """Returns the text next to a single image in its cell, or alone in the next row."""
    captions: dict[int, str] = {}
    waiting: int | None = None
    for row in table.css("tr")[:_MAX_ELEMENTS]:
        images = row.css("img")
        text = fold(row.text(deep=True), _LONGEST + 1)
        if len(images) == 1:
            waiting = images[0].mem_id
        elif images:
            waiting = None
        if text and waiting is not None:
            is_single = len([cell for cell in row.iter() if cell.tag in ("td", "th")]) == 1
            if is_single and len(text) <= _LONGEST and not row.css("th"):
                captions[waiting] = text
            waiting = None
    return captions


def captions_in_tables(tree: LexborHTMLParser) -> dict[int, str]:
    """Returns captions that are cell by cell above or below a row of images: ``mem_id`` -> text.

    A row of images has two or more and no text. The captions are in the row below it, with a short
    text under every image, or in the row above if the table's last row is of images.
    """
    captions: dict[int, str] = {}
    for table in tree.css("table")[:_MAX_TABLES]:
        if len(table.css("table")) > 1:  # a layout table; its inner tables are read separately
            continue
        rows = list(_rows(table))
        kinds = [_images(row) for row in rows]
        step = -1 if kinds and kinds[-1] else 1
        for (row, images), (other, more) in pairwise(list(zip(rows, kinds, strict=True))[::step]):
            if images and not more and row:
                captions |= _matched(images, other)
    return captions


def _rows(table: LexborNode) -> Iterator[list[Cell]]:
    """Yields the cells of each row of a table, without empty rows."""
    groups = [table, *(n for n in table.iter() if n.tag in ("tbody", "thead", "tfoot"))]
    number = 0
    for group in groups:
        for row in group.iter():
            if row.tag != "tr":
                continue
            number += 1
            if number > _MAX_ROWS:
                return
            cells = list(_cells(row))
            if cells:
                yield cells


def _cells(row: LexborNode) -> Iterator[Cell]:
    column = 0
    for cell in row.iter():
        if cell.tag in _CELLS:
            yield column, cell
            span = cell.attributes.get("colspan") or ""
            column += min(int(span), _MAX_CELLS) if span.isascii() and span.isdigit() else 1
            if column > _MAX_CELLS:
                return


def _images(row: list[Cell]) -> dict[int, int]:
    """Returns the ``mem_id`` of a row's images by column; {} for a row with other content."""
    images: dict[int, int] = {}
    for column, cell in row:
        elements = cell.css("img")
        if len(elements) > 1 or fold(cell.text(deep=True), _MAX_CAPTION):
            return {}
        if elements:
            images[column] = elements[0].mem_id
    return images if len(images) > 1 else {}


def _matched(images: dict[int, int], row: list[Cell]) -> dict[int, str]:
    """Returns the images with the texts of their columns, if each has a short one."""
    texts = {column: fold(cell.text(deep=True), _MAX_CAPTION + 1) for column, cell in row}
    captions = {image: texts.get(column, "") for column, image in images.items()}
    return captions if all(0 < len(text) <= _MAX_CAPTION for text in captions.values()) else {}
