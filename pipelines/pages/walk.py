"""The one walk over a page's tree: its runs of text, and the places of its pictures among them.

It is the most expensive part of a page, so it notes nothing of inline elements but links and
captions, and looks for nothing that is rarely there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from selectolax.lexbor import LexborHTMLParser, LexborNode

from vlmill.pipelines.pages.addresses import painted
from vlmill.pipelines.pages.marks import (
    class_and_id,
    declared_sides,
    is_caption,
    roles,
)
from vlmill.pipelines.texts.words import word_set

_SKIPPED = word_set("script style template noframes iframe object canvas math select textarea svg")
_BLOCKS = word_set(
    "address article aside blockquote body button center dd details dialog div dl dt fieldset "
    "figcaption figure footer form h1 h2 h3 h4 h5 h6 header hr li main nav ol p pre section "
    "summary table tbody td tfoot th thead tr ul br caption noscript"
)
_OPENED = _BLOCKS | {"a", "picture"}  # of other elements nothing is noted
_PICTURES = frozenset(("img", "image", "amp-img"))
_PAINTED = '[style*="background"][style*="url("]'
_TEXT = "-text"  # the parser's name of what is no element
# Whose children the walk does not see.
_SPECIAL = _SKIPPED | _PICTURES | {"pre", "video", "-comment"}
_FURNITURE = frozenset(("nav", "footer", "aside", "button"))  # and "header", of a page
_CONTENT = frozenset(("article", "main"))
_CHANGING = _FURNITURE | _CONTENT | {"a", "figure", "figcaption", "header"}
_MARKED = 8  # elements above a picture whose classes tell what it is part of
_ANCESTORS = 12  # tags above a picture that are noted
_LEVELS = 6  # how far above a picture its caption's common ancestor may be
_INLINE_PX = 50  # a picture that is shown smaller stands in a line of text


class Block(NamedTuple):
    """A run of text between block boundaries, white space folded."""

    text: str
    path: tuple[int, ...]  # serial numbers of the elements around it, the nearest first
    tag: str = ""  # the nearest block element around it, "" for none
    furniture: bool = False  # in a menu, a footer or the like
    caption: int = 0  # serial number of the caption element around it, 0 for none
    figure: int = 0  # serial number of the figure around it, 0 for none
    code: bool = False  # a listing
    linked: float = 0.0  # share of its characters that are links


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Where a picture stood in the walk: before block number ``block``."""

    node: LexborNode
    attributes: Mapping[str, str | None]
    sides: tuple[int | None, int | None]  # as declared, in pixels; nonsense is None
    block: int
    path: tuple[int, ...]  # serial numbers of the elements around it, the nearest first
    ancestors: tuple[str, ...]  # their tags
    marks: tuple[str, ...]  # class and id, lower-case: its own, then its parents' upwards
    link: str  # where it leads, "" for nowhere
    figure: int = 0  # serial number of the figure around it, 0 for none
    furniture: bool = False  # in a menu, a footer or the like, by tags and classes


class _State(NamedTuple):
    """What holds inside an element and inside all those in it, unless they say otherwise."""

    furniture: bool = False
    caption: int = 0
    figure: int = 0
    content: bool = False  # in an article or in what the page calls its main part
    link: str = ""


# An open element: the one around it, its tag, the nearest block element's tag, its path, its state.
# A plain tuple: one is made for every element that the walk enters.
_Open = tuple["_Open | None", str, str, tuple[int, ...], _State]


@dataclass(slots=True)
class _Walk:
    """State of the walk: the innermost open element, and what stood before."""

    max_chars: int
    max_images: int
    num_beyond: int = 0  # pictures after ``max_images``, which are only counted
    blocks: list[Block] = field(default_factory=list)
    spots: list[Spot] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    linked: int = 0  # characters of ``parts`` in links
    open: _Open = (None, "", "", (), _State())
    num_entered: int = 0
    marks: dict[int, str] = field(default_factory=dict)

    def flush(self, *, code: bool = False) -> None:
        """Ends the run of text; it belongs to the innermost element."""
        parts = self.parts
        text = fold(parts[0] if len(parts) == 1 else "".join(parts), self.max_chars)
        if text:
            _, _, block_tag, path, (furniture, caption, figure, _, _) = self.open
            tag = "pre" if code else block_tag
            linked = min(1.0, self.linked / len(text)) if self.linked else 0.0
            # By position: this is done for every paragraph.
            self.blocks.append(Block(text, path, tag, furniture, caption, figure, code, linked))
        parts.clear()
        self.linked = 0

    def enter(self, node: LexborNode, tag: str) -> None:
        """Opens an element."""
        attributes, is_block = node.attributes, tag in _BLOCKS
        furniture = caption = False
        if attributes and (classes := attributes.get("class") or attributes.get("id")):
            furniture, caption = roles(classes[:200])
        if self.parts and (is_block or caption):
            self.flush()
        self.num_entered = serial = self.num_entered + 1
        outer = self.open
        _, _, block_tag, path, state = outer
        if furniture or caption or tag in _CHANGING:
            link = attributes.get("href") or "" if tag == "a" else state.link
            state = _inside(state, tag, serial, furniture, caption, link)
        path = (serial,) + path[: _LEVELS - 1]  # noqa: RUF005 - a third faster than unpacking
        self.open = (outer, tag, tag if is_block else block_tag, path, state)

    def leave(self) -> None:
        """Closes the innermost element."""
        outer, tag, _, _, state = self.open
        assert outer is not None
        if self.parts and (tag in _BLOCKS or state.caption != outer[4].caption):
            self.flush()
        self.open = outer

    def see(self, node: LexborNode) -> None:
        """Notes a picture's place."""
        if len(self.spots) == self.max_images:
            self.num_beyond += 1
            return
        attributes = node.attributes
        sides = declared_sides(attributes)
        if self.parts and not any(side is not None and side < _INLINE_PX for side in sides):
            self.flush()
        _, _, _, path, state = self.open
        self.spots.append(
            Spot(
                node=node,
                attributes=attributes,
                sides=sides,
                block=len(self.blocks),
                path=path,
                ancestors=self._ancestors(),
                marks=self._marks(node),
                link=state.link,
                figure=state.figure,
                furniture=state.furniture,
            )
        )

    def see_listing(self, node: LexborNode) -> None:
        """Takes a listing as one block, whatever elements colour its words."""
        if self.parts:
            self.flush()
        self.parts.append((node.text(deep=True) or "")[: 2 * self.max_chars])
        self.flush(code=True)

    def _ancestors(self) -> tuple[str, ...]:
        tags: list[str] = []
        at, tag, *_ = self.open
        while at is not None and len(tags) < _ANCESTORS:
            tags.append(tag)
            at, tag, *_ = at
        return tuple(tags)

    def _marks(self, node: LexborNode) -> tuple[str, ...]:
        marks: list[str] = []
        at: LexborNode | None = node
        while at is not None and len(marks) < _MARKED:
            if at.tag == "body":
                # It carries switches of the whole page in its classes ("has-sidebar").
                marks.append("")
                break
            mark = self.marks.get(at.mem_id)
            if mark is None:
                mark = self.marks[at.mem_id] = class_and_id(at)
            marks.append(mark)
            at = at.parent
        return tuple(marks)


def walk_page(
    tree: LexborHTMLParser, *, max_chars: int, max_images: int
) -> tuple[list[Block], list[Spot], int]:
    """Texts and pictures of the page's body in document order, and how many pictures are left out.

    A text is cut after ``max_chars`` characters, pictures are left out after ``max_images``.
    """
    walk = _Walk(max_chars, max_images)
    body = tree.body
    if body is not None:
        _descend(walk, tree, body)
    if walk.parts:
        walk.flush()
    return walk.blocks, walk.spots, walk.num_beyond


def _inside(
    state: _State, tag: str, serial: int, furniture: bool, caption: bool, link: str
) -> _State:
    """The state in an element that changes it."""
    return _State(
        # The header of an article holds its headline, the header of a page its banner.
        state.furniture
        or tag in _FURNITURE
        or (tag == "header" and not state.content)
        or (furniture and tag not in _CONTENT and tag != "body"),
        serial if caption or tag == "figcaption" else state.caption,
        serial if tag == "figure" else state.figure,
        state.content or tag in _CONTENT,
        link,
    )


def _descend(walk: _Walk, tree: LexborHTMLParser, body: LexborNode) -> None:
    """Goes depth-first without recursion: pages nest deeper than Python's stack."""
    limit = 2 * walk.max_chars
    parts = walk.parts
    above: list[tuple[LexborNode, bool]] = []  # open nodes, and whether the walk entered them
    source = tree.raw_html or b""
    has_drawn = b"<image" in source
    styled = body.css(_PAINTED) if b"url(" in source else ()
    behind = {n.mem_id for n in styled if painted(n.attributes)}
    node: LexborNode | None = body
    while node is not None:
        tag = node.tag or ""
        if behind and node.mem_id in behind and tag not in _SPECIAL:
            walk.see(node)
        if tag == _TEXT:
            # Between blocks there is mostly nothing but white space.
            if parts or not node.is_empty_text_node:
                text = node.text_content or ""
                parts.append(text[:limit])
                if walk.open[4].link:
                    walk.linked += len(text)
        elif tag in _SPECIAL:
            if tag in _PICTURES or (tag == "video" and node.attributes.get("poster")):
                walk.see(node)
            elif tag == "pre":
                walk.see_listing(node)
            elif tag == "svg" and has_drawn:
                for drawn in node.css("image"):
                    walk.see(drawn)
        elif (child := node.child) is not None:
            is_noted = tag in _OPENED or is_caption(node)
            if is_noted:
                walk.enter(node, tag)
            above.append((node, is_noted))
            node = child
            continue
        elif parts and tag in _BLOCKS:
            walk.flush()
        if not above:
            return
        node = node.next
        while node is None and above:
            last, is_noted = above.pop()
            if is_noted:
                walk.leave()
            node = last.next if above else None


def fold(text: str | None, limit: int) -> str:
    """Folds the white space of ``text``; gives at most ``limit`` characters."""
    folded = " ".join((text or "")[: 2 * limit].split())
    return folded if len(folded) <= limit else folded[:limit].rstrip()
