"""Rows of pictures in tables with a row of captions beside them: what markup does not say."""

from collections.abc import Iterator
from itertools import pairwise

from selectolax.lexbor import LexborHTMLParser, LexborNode

from vlmill.pipelines.pages.walk import fold

_CELLS = ("td", "th")
_MAX_TABLES, _MAX_ROWS, _MAX_CELLS = 200, 500, 50
_LONGEST = 200  # characters of a caption; more is content that a table lays out

Cell = tuple[int, LexborNode]  # the column in which it begins, and the cell


def captions_in_tables(tree: LexborHTMLParser) -> dict[int, str]:
    """Captions of pictures that stand cell by cell above or below their row: ``mem_id`` -> text.

    A row of pictures has two or more and no text. Captions stand in the row below it with a short
    text under every picture; in the row above if the table's last row is of pictures.
    """
    captions: dict[int, str] = {}
    for table in tree.css("table")[:_MAX_TABLES]:
        if len(table.css("table")) > 1:  # a table around tables lays out a page; it counts itself
            continue
        rows = list(_rows(table))
        kinds = [_pictures(row) for row in rows]
        step = -1 if kinds and kinds[-1] else 1
        for (row, pictures), (other, more) in pairwise(list(zip(rows, kinds, strict=True))[::step]):
            if pictures and not more and row:
                captions |= _matched(pictures, other)
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


def _pictures(row: list[Cell]) -> dict[int, int]:
    """Columns of a row's pictures and their ``mem_id``; none for a row that is not of pictures."""
    pictures: dict[int, int] = {}
    for column, cell in row:
        elements = cell.css("img")
        if len(elements) > 1 or fold(cell.text(deep=True), _LONGEST):
            return {}
        if elements:
            pictures[column] = elements[0].mem_id
    return pictures if len(pictures) > 1 else {}


def _matched(pictures: dict[int, int], row: list[Cell]) -> dict[int, str]:
    """Pictures with the texts of their columns, if each has a short one."""
    texts = {column: fold(cell.text(deep=True), _LONGEST + 1) for column, cell in row}
    captions = {image: texts.get(column, "") for column, image in pictures.items()}
    return captions if all(0 < len(text) <= _LONGEST for text in captions.values()) else {}
