"""Finds captions in tables, in the row above or below a row of images, without other markup."""

from collections.abc import Iterator
from itertools import pairwise

from selectolax.lexbor import LexborHTMLParser, LexborNode

from vlmill.pipelines.web.pages.walk import fold

_CELLS = ("td", "th")
_MAX_TABLES, _MAX_ROWS, _MAX_CELLS = 200, 500, 50
_LONGEST = 200  # characters of a caption; a longer text is content in a layout table

Cell = tuple[int, LexborNode]  # the column where it begins, and the cell


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
        if len(elements) > 1 or fold(cell.text(deep=True), _LONGEST):
            return {}
        if elements:
            images[column] = elements[0].mem_id
    return images if len(images) > 1 else {}


def _matched(images: dict[int, int], row: list[Cell]) -> dict[int, str]:
    """Returns the images with the texts of their columns, if each has a short one."""
    texts = {column: fold(cell.text(deep=True), _LONGEST + 1) for column, cell in row}
    captions = {image: texts.get(column, "") for column, image in images.items()}
    return captions if all(0 < len(text) <= _LONGEST for text in captions.values()) else {}
