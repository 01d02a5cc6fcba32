"""What the attributes of one element say: its sides in pixels, and what its classes mark it as."""

import re
from collections.abc import Mapping
from functools import lru_cache

from selectolax.lexbor import LexborNode

from vlmill.pipelines.web.texts.words import word_set

_PIXELS = re.compile(r"\s*(\d{1,5})(?:\.\d*)?\s*(?:px)?\s*")
_STYLE_SIDE = re.compile(r"(?:^|;)\s*(width|height)\s*:\s*(\d{1,5})(?:\.\d*)?px")
# Classes that the wide-spread content systems give to the text under an image.
_CAPTION_CLASS = re.compile(r"(?:^|[\s_-])(?:\w*caption\w*|gallerytext|cutline|legend)(?:$|[\s_-])")
# What they give to the name of the photographer in it.
_CREDIT_CLASS = re.compile(
    r"(?:^|[\s_-])(?:credits?|copyright|photographer|attribution|photocredit|imagecredit)(?:$|[\s_-])"
)
# Whole class names: "sidebar" is a side bar, "content-sidebar-wrap" wraps the page's content.
_FURNITURE_CLASSES = word_set(
    "nav navbar navigation menu main-menu topnav footer site-footer page-footer sidebar "
    "side-bar breadcrumb breadcrumbs widget widgets widget-area toolbar pagination share sharing "
    "social related related-posts related-articles relatedposts yarpp-related comments comment-list"
)


def declared_sides(attributes: Mapping[str, str | None]) -> tuple[int | None, int | None]:
    """Width and height in pixels by attributes, else by style; percentages are None."""
    width, height = _pixels(attributes.get("width")), _pixels(attributes.get("height"))
    style = attributes.get("style")
    if style and (width is None or height is None):
        styled = {side: int(value) for side, value in _STYLE_SIDE.findall(style[:500].lower())}
        width, height = width or styled.get("width"), height or styled.get("height")
    return width, height


def _pixels(value: str | None) -> int | None:
    match = _PIXELS.fullmatch(value or "")
    return int(match[1]) if match else None


@lru_cache(maxsize=4_096)
def roles(classes: str) -> tuple[bool, bool, bool]:
    """Says whether a class marks (furniture, a caption, its credit); pages repeat their classes."""
    mark = classes.lower()
    names = mark.split()
    # Blogger keeps a blog's posts in a widget.
    furniture = not _FURNITURE_CLASSES.isdisjoint(names) and "blog" not in names
    caption = _CAPTION_CLASS.search(mark) is not None and "nav" not in mark
    return furniture, caption, _CREDIT_CLASS.search(mark) is not None


def class_and_id(node: LexborNode) -> str:
    """Class and id of an element in lower case, at most 200 characters."""
    attributes = node.attributes
    both = f"{attributes.get('class') or ''} {attributes.get('id') or ''}"
    return both[:200].lower().strip()
