"""Defines the runs of text and the images of a page, and folds the white space of texts."""

from collections.abc import Mapping

import msgspec
from selectolax.lexbor import LexborNode


class Block(msgspec.Struct, frozen=True, array_like=True):
    """Holds a run of text between block boundaries, white space folded."""

    text: str
    path: tuple[int, ...]  # serial numbers of the elements around it, the nearest first
    tag: str = ""  # the nearest block element around it, or ""
    furniture: int = 0  # serial number of the menu, footer or the like around it, or 0
    caption: int = 0  # serial number of the caption element around it, or 0
    figure: int = 0  # serial number of the figure around it, or 0
    code: bool = False  # a listing, or the credit in a caption: not a text about an image
    linked: float = 0.0  # share of its characters that are links


class Spot(msgspec.Struct, frozen=True, kw_only=True):
    """Holds an image found in the walk, which comes before block number ``block``."""

    node: LexborNode
    attributes: Mapping[str, str | None]
    sides: tuple[int | None, int | None]  # as declared, in pixels; None for invalid values
    block: int
    path: tuple[int, ...]  # serial numbers of the elements around it, the nearest first
    ancestors: tuple[str, ...]  # their tags
    marks: tuple[str, ...]  # class and id, lower-case: its own, then its parents' upwards
    link: str  # its target, or ""
    figure: int = 0  # serial number of the figure around it, or 0
    furniture: int = 0  # serial number of the menu, footer or the like around it, or 0


def fold(text: str | None, limit: int) -> str:
    """Folds the white space of ``text``; returns at most ``limit`` characters."""
    text = (text or "")[: 2 * limit]
    # The only printable white space is a space, so most texts do not change.
    is_folded = text.isprintable() and "  " not in text
    text = text.strip() if is_folded else " ".join(text.split())
    return text if len(text) <= limit else text[:limit].rstrip()
