"""Walks once over a page's tree and records its runs of text and its images' positions.

The walk is the most expensive part of a page, so of inline elements it records only links and
captions, and does not search for rare content.

An element's attributes give its sides in pixels and the marks of its classes.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from msgspec.structs import replace
from selectolax.lexbor import LexborHTMLParser, LexborNode

from vlmill.pipelines.web.pages.addresses import (
    IMAGE_NAME,
    PAINTED,
    PAINTED_WORDS,
    list_backgrounds,
)
from vlmill.pipelines.web.pages.blocks import Block, Spot, fold
from vlmill.pipelines.web.texts.words import word_set

_PIXELS = re.compile(r"\s*(\d{1,5})(?:\.\d*)?\s*(?:px)?\s*")
_STYLE_SIDE = re.compile(r"(?:^|;)\s*(width|height)\s*:\s*(\d{1,5})(?:\.\d*)?px")
# Classes that the wide-spread content systems give to the text under an image.
_CAPTION_CLASS = re.compile(r"(?:^|[\s_-])(?:\w*caption\w*|gallerytext|cutline|legend)(?:$|[\s_-])")
# Classes for the photographer's name in that text.
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
    """Returns width and height in pixels from attributes, else from style; None for percentages."""
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
    """Returns whether a class marks (furniture, a caption, its credit). Pages repeat classes."""
    mark = classes.lower()
    names = mark.split()
    # Blogger uses a widget for a blog's posts.
    furniture = not _FURNITURE_CLASSES.isdisjoint(names) and "blog" not in names
    caption = _CAPTION_CLASS.search(mark) is not None and "nav" not in mark
    return furniture, caption, _CREDIT_CLASS.search(mark) is not None


def class_and_id(node: LexborNode) -> str:
    """Returns class and id of an element in lower case, at most 200 characters."""
    attributes = node.attributes
    both = f"{attributes.get('class') or ''} {attributes.get('id') or ''}"
    return both[:200].lower().strip()


_SKIPPED = word_set("script style template noframes iframe canvas math select textarea -comment")
_BLOCKS = word_set(
    "address article aside blockquote body button center dd details dialog div dl dt fieldset "
    "figcaption figure footer form h1 h2 h3 h4 h5 h6 header hr li main nav ol p pre section "
    "summary table tbody td tfoot th thead tr ul br caption noscript"
)
_OPENED = _BLOCKS | {"a", "picture"}  # no other elements are recorded
_IMAGES = frozenset(("img", "image", "amp-img"))
_TEXT = "-text"  # the parser's tag for text nodes
_FURNITURE = frozenset(("nav", "footer", "aside"))  # and "header", of a page
_SURE_FURNITURE = frozenset(("nav", "footer", "button"))
_MAIN_SHARE = 0.5  # of a page's text: an element of any class with more is its main part
_CONTENT = frozenset(("article", "main"))
_CHANGING = _FURNITURE | _CONTENT | {"a", "button", "figure", "figcaption", "header"}
_MARKED = 8  # elements above an image whose classes are recorded
_ANCESTORS = 12  # tags above an image that are recorded
_LEVELS = 6  # how far above an image its caption's common ancestor may be
_INLINE_PX = 50  # a smaller image is inside a line of text


# The state in an element, inherited by its descendants unless they change it: its furniture, its
# caption, its figure, whether it is content (in an article or in the page's main
# part), its link's target, and whether it is a caption's credit.
_State = tuple[int, int, int, bool, str, bool]

# An open element: the one around it, its tag, the nearest block element's tag, its path, its state.
# Both are plain tuples: they are created for every element that the walk enters.
_Open = tuple["_Open | None", str, str, tuple[int, ...], _State]
_OUTSIDE: _Open = (None, "", "", (), (0, 0, 0, False, "", False))


@dataclass(slots=True)
class _Walk:
    """Collects the results of the walk."""

    max_chars: int
    max_images: int
    has_drawn: bool = False  # whether the page has an image in a drawing
    num_beyond: int = 0  # images after ``max_images``, which are only counted
    blocks: list[Block] = field(default_factory=list)
    spots: list[Spot] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    linked: int = 0  # characters of ``parts`` in links
    marks: dict[int, str] = field(default_factory=dict)
    furniture: dict[int, int] = field(default_factory=dict)  # serial -> the furniture around it
    sure: set[int] = field(default_factory=set)  # serials of furniture that holds no main text
    serial: int = 0  # of the last element that was entered

    def flush(self, open_element: _Open, *, code: bool = False) -> None:
        """Ends the run of text; it belongs to the innermost element, ``open_element``."""
        parts = self.parts
        text = parts[0] if len(parts) == 1 else "".join(parts)
        if len(text) <= self.max_chars and text.isprintable() and "  " not in text:
            text = text.strip()  # same as fold for most texts, without a call
        else:
            text = fold(text, self.max_chars)
        if text:
            _, _, block_tag, path, (furniture, caption, figure, _, _, credit) = open_element
            tag = "pre" if code else block_tag
            linked = min(1.0, self.linked / len(text)) if self.linked else 0.0
            # Positional arguments, for speed: this is done for every paragraph.
            code = code or credit
            self.blocks.append(Block(text, path, tag, furniture, caption, figure, code, linked))
        parts.clear()
        self.linked = 0

    def enter(
        self,
        node: LexborNode,
        tag: str,
        attributes: Mapping[str, str | None],
        kind: "_Kind",
        around: _Open,
    ) -> _Open:
        """Returns the open element of a node of ``kind`` in ``around``; ends the run of text."""
        _, caption, furniture, credit, changes = kind
        _, _, block_tag, path, state = around
        is_block = tag in _BLOCKS
        if self.parts and (is_block or caption or credit):
            self.flush(around)
        self.serial = serial = self.serial + 1
        if changes:
            link = attributes.get("href") or "" if tag == "a" else state[4]
            if tag == "button" and node.css_first("img") is None:
                furniture = True  # otherwise it enlarges the image
            state = _inside(state, tag, serial, furniture, caption, credit, link)
            if state[0] == serial:
                self.furniture[serial] = around[4][0]
                if tag in _SURE_FURNITURE:
                    self.sure.add(serial)
        path = (serial,) + path[: _LEVELS - 1]  # noqa: RUF005 - faster than unpacking
        return around, tag, tag if is_block else block_tag, path, state

    def add_image(self, node: LexborNode, open_element: _Open) -> None:
        """Records an image and its position, in ``open_element``."""
        if len(self.spots) == self.max_images:
            self.num_beyond += 1
            return
        attributes = node.attributes
        sides = declared_sides(attributes)
        if self.parts and not any(side is not None and side < _INLINE_PX for side in sides):
            self.flush(open_element)
        _, _, _, path, (furniture, _, figure, _, link, _) = open_element
        self.spots.append(
            Spot(
                node=node,
                attributes=attributes,
                sides=sides,
                block=len(self.blocks),
                path=path,
                ancestors=_ancestors(open_element),
                marks=self._marks(node),
                link=link,
                figure=figure,
                furniture=furniture,
            )
        )

    def add_object(self, node: LexborNode, open_element: _Open) -> None:
        """Records an ``object``'s image, or the images inside an ``object`` with a drawing."""
        attributes = node.attributes
        kind, data = (attributes.get("type") or "").lower(), attributes.get("data") or ""
        if "svg" in kind or data.partition("?")[0].lower().endswith(".svg"):
            for image in node.css("img")[:4]:
                self.add_image(image, open_element)
        elif kind.startswith("image/") or IMAGE_NAME.search(data):
            self.add_image(node, open_element)

    def add_listing(self, node: LexborNode, open_element: _Open) -> None:
        """Records a listing in ``open_element`` as one block, with its highlighting elements."""
        if self.parts:
            self.flush(open_element)
        self.parts.append((node.text(deep=True) or "")[: 2 * self.max_chars])
        self.flush(open_element, code=True)

    def add_poster(self, node: LexborNode, open_element: _Open) -> None:
        """Records the image that a video shows before it plays."""
        if node.attributes.get("poster"):
            self.add_image(node, open_element)

    def add_drawn(self, node: LexborNode, open_element: _Open) -> None:
        """Records the images inside a drawing."""
        if self.has_drawn:
            for drawn in node.css("image"):
                self.add_image(drawn, open_element)

    def skip(self, node: LexborNode, open_element: _Open) -> None:
        """Records nothing."""

    def _marks(self, node: LexborNode) -> tuple[str, ...]:
        marks: list[str] = []
        ancestor: LexborNode | None = node
        while ancestor is not None and len(marks) < _MARKED:
            if ancestor.tag == "body":
                # Its classes hold switches of the whole page ("has-sidebar").
                marks.append("")
                break
            mark = self.marks.get(ancestor.mem_id)
            if mark is None:
                mark = self.marks[ancestor.mem_id] = class_and_id(ancestor)
            marks.append(mark)
            ancestor = ancestor.parent
        return tuple(marks)


# The walk does not enter these elements: what it records of each.
_HANDLERS: dict[str, Callable[[_Walk, LexborNode, _Open], None]] = {
    **dict.fromkeys(_SKIPPED, _Walk.skip),
    **dict.fromkeys(_IMAGES, _Walk.add_image),
    "pre": _Walk.add_listing,
    "video": _Walk.add_poster,
    "object": _Walk.add_object,
    "svg": _Walk.add_drawn,
}


def _ancestors(open_element: _Open) -> tuple[str, ...]:
    tags: list[str] = []
    parent, tag, *_ = open_element
    while parent is not None and len(tags) < _ANCESTORS:
        tags.append(tag)
        parent, tag, *_ = parent
    return tuple(tags)


def walk_page(
    tree: LexborHTMLParser, *, max_chars: int, max_images: int
) -> tuple[list[Block], list[Spot], int]:
    """Returns the texts and images of the page's body in document order, and how many are omitted.

    A text is cut after ``max_chars`` characters, images are omitted after ``max_images``.
    """
    walk = _Walk(max_chars, max_images, has_drawn=b"<image" in (tree.raw_html or b""))
    body = tree.body
    if body is not None:
        _descend(walk, tree, body)
        if any(spot.furniture for spot in walk.spots):
            _release_main_part(walk)
    return walk.blocks, walk.spots, walk.num_beyond


def _release_main_part(walk: _Walk) -> None:
    """Treats an element as content that is furniture by its class, but has most of the text."""
    masses: Counter[int] = Counter()
    for block in walk.blocks:
        serial, mass = block.furniture, round(len(block.text) * (1 - block.linked))
        masses[0] += mass
        while serial:
            masses[serial] += mass
            serial = walk.furniture[serial]
    min_mass = _MAIN_SHARE * masses.pop(0, 0)
    main = {serial for serial, mass in masses.items() if mass > min_mass} - walk.sure
    if not main:
        return

    def furniture(serial: int) -> int:
        while serial in main:
            serial = walk.furniture[serial]
        return serial

    walk.blocks = [replace(b, furniture=furniture(b.furniture)) for b in walk.blocks]
    walk.spots = [replace(s, furniture=furniture(s.furniture)) for s in walk.spots]


_Kind = tuple[bool, bool, bool, bool, bool]
"""Whether an element is (recorded, a caption, furniture, a credit, changing the state)."""


@lru_cache(maxsize=4_096)
def _kind(tag: str, classes: str) -> _Kind:
    """Returns the kind of an element.

    ``classes`` are its classes, else its id. Without an entry in ``_OPENED`` nothing is recorded of
    an id; results are cached, as both repeat.
    """
    furniture, caption, credit = roles(classes)
    caption = caption and tag not in _FURNITURE  # a table of contents with a class of captions
    is_noted = caption or credit or tag in _OPENED
    changes = furniture or caption or credit or tag in _CHANGING
    return is_noted, caption, furniture, credit, changes


_UNNOTED = (False, False, False, False, False)
_PLAIN = {tag: _kind(tag, "") for tag in _OPENED | _CHANGING}  # of elements without classes


def _inside(
    state: _State, tag: str, serial: int, furniture: bool, caption: bool, credit: bool, link: str
) -> _State:
    """Returns the state in an element that changes it."""
    in_furniture, in_caption, in_figure, in_content, _, in_credit = state
    return (
        # The header of an article holds its headline, the header of a page its banner.
        serial
        if tag in _FURNITURE
        or (tag == "header" and not in_content)
        or (furniture and tag not in _CONTENT and tag != "body")
        else in_furniture,
        serial if caption or tag == "figcaption" else in_caption,
        serial if tag == "figure" else in_figure,
        in_content or tag in _CONTENT,
        link,
        in_credit or (credit and not caption and (in_caption or in_figure) > 0),
    )


def _descend(walk: _Walk, tree: LexborHTMLParser, body: LexborNode) -> None:
    """Descends depth-first without recursion: pages nest deeper than Python's stack."""
    parts, limit, open_element = walk.parts, 2 * walk.max_chars, _OUTSIDE
    # Open nodes, and for each node that the walk has entered the element around it.
    above: list[tuple[LexborNode, _Open | None]] = []
    backgrounds = _find_backgrounds(tree, body)
    node: LexborNode | None = body
    while node is not None:
        tag = node.tag or ""
        if backgrounds and node.mem_id in backgrounds and tag not in _HANDLERS:
            walk.add_image(node, open_element)
        if tag == _TEXT:
            # Between blocks there is usually only white space.
            if parts or not node.is_empty_text_node:
                text = node.text_content or ""
                parts.append(text[:limit])
                if open_element[4][4]:
                    walk.linked += len(text)
        elif (handler := _HANDLERS.get(tag)) is not None:
            handler(walk, node, open_element)
        elif (child := node.child) is not None:
            attributes, around = node.attributes, None
            classes = attributes.get("class") or (tag in _OPENED and attributes.get("id")) or ""
            kind = _kind(tag, classes[:200]) if classes else _PLAIN.get(tag, _UNNOTED)
            if kind[0]:
                around = open_element
                open_element = walk.enter(node, tag, attributes, kind, around)
            above.append((node, around))
            node = child
            continue
        elif parts and tag in _BLOCKS:
            walk.flush(open_element)
        if not above:
            break
        node = node.next
        while node is None and above:
            last, around = above.pop()
            if around is not None:
                if parts and _ends_text(open_element, around):
                    walk.flush(open_element)
                open_element = around
            node = last.next if above else None
    if parts:
        walk.flush(open_element)


def _find_backgrounds(tree: LexborHTMLParser, body: LexborNode) -> frozenset[int]:
    """Returns the elements whose style has a background image."""
    source = tree.raw_html or b""
    styled = body.css(PAINTED) if any(word in source for word in PAINTED_WORDS) else ()
    return frozenset(n.mem_id for n in styled if list_backgrounds(n.attributes))


def _ends_text(open_element: _Open, around: _Open) -> bool:
    """Returns whether a run of text ends with ``open_element``."""
    (_, tag, _, _, state), (_, _, _, _, outer) = open_element, around
    return tag in _BLOCKS or state[1] != outer[1] or state[5] != outer[5]
