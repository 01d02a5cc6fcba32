"""Rows of images in tables with a row of captions beside them: what markup does not say."""

from collections.abc import Iterator
from itertools import pairwise

from selectolax.lexbor import LexborHTMLParser, LexborNode

from vlmill.pipelines.web.pages.walk import fold

_CELLS = ("td", "th")
_MAX_TABLES, _MAX_ROWS, _MAX_CELLS = 200, 500, 50
_LONGEST = 200  # characters of a caption; more is content that a table lays out

Cell = tuple[int, LexborNode]  # the column in which it begins, and the cell


def captions_in_tables(tree: LexborHTMLParser) -> dict[int, str]:
    """Captions of images that stand cell by cell above or below their row: ``mem_id`` -> text.

    A row of images has two or more and no text. Captions stand in the row below it with a short
    text under every image; in the row above if the table's last row is of images.
    """
    captions: dict[int, str] = {}
    for table in tree.css("table")[:_MAX_TABLES]:
        if len(table.css("table")) > 1:  # a table around tables lays out a page; it counts itself
            continue
        rows = list(_rows(table))
        kinds = [_images(row) for row in rows]
        step = -1 if kinds and kinds[-1] else 1
        for (row, images), (other, more) in pairwise(list(zip(rows, kinds, strict=True))[::step]):
            if images and not more and row:
                captions |= _matched(images, other)
    return captions


def _rows(table: LexborNode) -> Iterator[list[Cell]]:
    """The cells of each row of a table; empty rows are left out."""
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
    """Columns of a row's images and their ``mem_id``; none for a row that is not of images."""
    images: dict[int, int] = {}
    for column, cell in row:
        elements = cell.css("img")
        if len(elements) > 1 or fold(cell.text(deep=True), _LONGEST):
            return {}
        if elements:
            images[column] = elements[0].mem_id
    return images if len(images) > 1 else {}


def _matched(images: dict[int, int], row: list[Cell]) -> dict[int, str]:
    """Images with the texts of their columns, if each has a short one."""
    texts = {column: fold(cell.text(deep=True), _LONGEST + 1) for column, cell in row}
    captions = {image: texts.get(column, "") for column, image in images.items()}
    return captions if all(0 < len(text) <= _LONGEST for text in captions.values()) else {}
