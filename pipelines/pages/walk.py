"""The one walk over a page's tree: its runs of text, and the places of its pictures among them."""

import re
from dataclasses import dataclass, field

from selectolax.lexbor import LexborHTMLParser, LexborNode

from vlmill.pipelines.texts.words import word_set

_SPACES = re.compile(r"\s+")
_PIXELS = re.compile(r"\s*(\d{1,5})(?:\.\d*)?\s*(?:px)?\s*")
_SKIPPED = word_set("script style template noframes iframe object canvas math select textarea svg")
_BLOCKS = word_set(
    "address article aside blockquote body button center dd details dialog div dl dt fieldset "
    "figcaption figure footer form h1 h2 h3 h4 h5 h6 header hr li main nav ol p pre section "
    "summary table tbody td tfoot th thead tr ul br caption noscript"
)
_FURNITURE = frozenset(("nav", "footer", "aside", "form", "button", "header"))
# Classes that the wide-spread content systems give to the text under a picture.
_CAPTION_CLASS = re.compile(r"(?:^|[\s_-])(?:\w*caption\w*|gallerytext|cutline|legend)(?:$|[\s_-])")
_MARKED = 8  # elements above a picture whose classes tell what it is part of
_LEVELS = 5  # how far above a picture its caption's common ancestor may be


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A run of text between block boundaries, white space folded."""

    text: str
    path: tuple[int, ...]  # serial numbers of the elements around it, the nearest first
    tag: str  # the nearest block element around it, "" for none
    furniture: bool  # in a menu, a footer or the like
    caption: int  # serial number of the caption element around it, 0 for none


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Where a picture stood in the walk: before or in block number ``block``."""

    node: LexborNode
    block: int
    path: tuple[int, ...]  # serial numbers of the elements around it, the nearest first
    ancestors: tuple[str, ...]  # their tags
    marks: tuple[str, ...]  # class and id, lower-case: its own, then its parents' upwards
    depth: int
    link: str  # where it leads, "" for nowhere

    @property
    def sides(self) -> tuple[int | None, int | None]:
        """Width and height as declared, in pixels; percentages and nonsense are None."""
        attributes = self.node.attributes
        return _pixels(attributes.get("width")), _pixels(attributes.get("height"))


@dataclass(slots=True)
class _Walk:
    """State of the walk: the open elements, and what was found."""

    max_chars: int
    blocks: list[Block] = field(default_factory=list)
    spots: list[Spot] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    serials: list[int] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    captions: list[int] = field(default_factory=list)

    def flush(self) -> None:
        text = fold("".join(self.parts), self.max_chars)
        self.parts.clear()
        if text:
            inside = [t for t in self.tags if t in _BLOCKS]
            self.blocks.append(
                Block(
                    text=text,
                    path=tuple(reversed(self.serials[-_LEVELS:])),
                    tag=inside[-1] if inside else "",
                    furniture=not _FURNITURE.isdisjoint(self.tags),
                    caption=self.captions[-1] if self.captions else 0,
                )
            )

    def enter(self, node: LexborNode, tag: str, serial: int) -> None:
        if tag in _BLOCKS:
            self.flush()
        attributes = node.attributes
        # <body> carries switches of the whole page in its classes ("has-sidebar").
        class_and_id = f"{attributes.get('class') or ''} {attributes.get('id') or ''}"
        marks = "" if tag == "body" else class_and_id[:200].lower().strip()
        self.serials.append(serial)
        self.tags.append(tag)
        self.marks.append(marks)
        self.links.append((attributes.get("href") or "") if tag == "a" else "")
        if tag == "figcaption" or _CAPTION_CLASS.search(marks):
            self.flush()
            self.captions.append(serial)
        if tag == "img":
            self.spots.append(self._spot(node))

    def leave(self) -> None:
        if self.tags[-1] in _BLOCKS or (self.captions and self.captions[-1] == self.serials[-1]):
            self.flush()
        if self.captions and self.captions[-1] == self.serials[-1]:
            self.captions.pop()
        for stack in (self.serials, self.tags, self.marks, self.links):
            stack.pop()

    def _spot(self, node: LexborNode) -> Spot:
        return Spot(
            node=node,
            block=len(self.blocks),
            path=tuple(reversed(self.serials[-_LEVELS - 1 : -1])),
            ancestors=tuple(reversed(self.tags[-12:-1])),
            marks=tuple(reversed(self.marks[-_MARKED:])),
            depth=len(self.tags),
            link=next((link for link in reversed(self.links[-4:]) if link), ""),
        )


def walk_page(
    tree: LexborHTMLParser, *, max_chars: int, max_images: int
) -> tuple[list[Block], list[Spot]]:
    """Texts and pictures of the page's body in document order.

    A text is cut after ``max_chars`` characters, the walk ends after ``max_images`` pictures.
    """
    # Depth-first without recursion: pages nest deeper than Python's stack.
    walk = _Walk(max_chars)
    node, serial = tree.body, 0
    depth = 0
    while node is not None:
        tag = node.tag
        child = None
        if tag == "-text":
            walk.parts.append((node.text_content or "")[: 2 * max_chars])
        elif tag and tag[0] != "-" and tag not in _SKIPPED:
            serial += 1
            walk.enter(node, tag, serial)
            child = node.child
            if child is None:
                walk.leave()
        if child is not None:
            node, depth = child, depth + 1
            continue
        while depth and node.next is None:
            node, depth = node.parent, depth - 1
            walk.leave()
            if node is None:
                return walk.blocks, walk.spots
        if not depth or len(walk.spots) >= max_images:
            break
        node = node.next
    walk.flush()
    return walk.blocks, walk.spots


def fold(text: str | None, limit: int) -> str:
    """Folds the white space of ``text``; gives at most ``limit`` characters."""
    return _SPACES.sub(" ", (text or "")[: 2 * limit]).strip()[:limit]


def _pixels(value: str | None) -> int | None:
    match = _PIXELS.fullmatch(value or "")
    return int(match[1]) if match else None
