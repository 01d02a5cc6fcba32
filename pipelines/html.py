"""Pages: one walk over the tree gives the title, the main text, and every picture with its texts.

Nothing here judges: which pictures are dominant is ``dominant``'s matter, which texts are captions
``captions``'.
"""

import bisect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from selectolax.lexbor import LexborHTMLParser, LexborNode

from vlmill.pipelines.urls import resolve
from vlmill.pipelines.words import word_set

_SPACES = re.compile(r"\s+")
_SKIPPED = word_set("script style template noframes iframe object canvas math select textarea svg")
_BLOCKS = word_set(
    "address article aside blockquote body button center dd details dialog div dl dt fieldset "
    "figcaption figure footer form h1 h2 h3 h4 h5 h6 header hr li main nav ol p pre section "
    "summary table tbody td tfoot th thead tr ul br caption noscript"
)
_HEADINGS = frozenset(("h1", "h2", "h3", "h4", "h5", "h6"))
_FURNITURE = frozenset(("nav", "footer", "aside", "form", "button", "header"))
# Classes that the wide-spread content systems give to the text under a picture.
_CAPTION_CLASS = re.compile(r"(?:^|[\s_-])(?:\w*caption\w*|gallerytext|cutline|legend)(?:$|[\s_-])")
_PICTURE_META = ("og:image", "og:image:url", "og:image:secure_url", "twitter:image")
_LAZY = ("data-src", "data-original", "data-lazy-src", "data-lazy", "data-image", "data-url")
_PICTURE_LINK = re.compile(r"\.(?:jpe?g|png|webp)(?:$|\?)", re.IGNORECASE)
_MAX_VARIANTS = 8
_SENTENCE_END = re.compile(r"[.!?…][\"”’')]*\s")
_NEAR, _MAX_CAPTIONS = 20, 4_000
_TINY = 50  # pixels: what is shown smaller has no caption
_MARKED = 8  # elements above a picture whose classes tell what it is part of
_LEVELS = 5  # how far above a picture its caption's common ancestor may be


@dataclass(frozen=True, slots=True, kw_only=True)
class PageImage:
    """A picture on a page, as the page tells of it; texts are raw, "" where there are none."""

    order: int
    src: str  # what the page says, for rejects
    urls: tuple[str, ...]  # absolute, best guess first; empty if none is usable
    alt: str = ""
    title: str = ""
    caption: str = ""
    surrounding: tuple[str, ...] = ()
    metadata: tuple[str, ...] = ()
    width: int | None = None  # as declared, in pixels
    height: int | None = None
    marks: tuple[str, ...] = ()  # class and id, lower-case: its own, then its parents' upwards
    ancestors: tuple[str, ...] = ()  # tags, the nearest first
    depth: int = 0
    is_metadata: bool = False  # og:image, twitter:image or itemprop=image
    links_to_picture: bool = False  # a thumbnail; the picture it leads to is among ``urls``


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a page says, as far as this job needs it."""

    url: str
    title: str
    declared_language: str | None
    text: str  # main visible text, bounded
    images: tuple[PageImage, ...]


@dataclass(slots=True)
class _Block:
    """A run of text between block boundaries."""

    text: str
    path: tuple[int, ...]  # serial numbers of the elements around it, the nearest first
    tag: str
    furniture: bool
    caption: int  # serial number of the caption element around it, 0 for none


@dataclass(slots=True)
class _Spot:
    """Where an image stood in the walk: before or in block number ``block``."""

    node: LexborNode
    block: int
    path: tuple[int, ...]
    ancestors: tuple[str, ...]
    marks: tuple[str, ...]
    depth: int
    link: str


@dataclass(slots=True)
class _Walk:
    """State of the walk: the open elements, and what was found."""

    max_chars: int
    blocks: list[_Block] = field(default_factory=list)
    spots: list[_Spot] = field(default_factory=list)
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
                _Block(
                    text,
                    tuple(reversed(self.serials[-_LEVELS:])),
                    inside[-1] if inside else "",
                    not _FURNITURE.isdisjoint(self.tags),
                    self.captions[-1] if self.captions else 0,
                )
            )

    def enter(self, node: LexborNode, tag: str, serial: int) -> None:
        if tag in _BLOCKS:
            self.flush()
        attributes = node.attributes
        # <body> carries switches of the whole page in its classes ("has-sidebar").
        own = f"{attributes.get('class') or ''} {attributes.get('id') or ''}"
        marks = "" if tag == "body" else own[:200].lower().strip()
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

    def _spot(self, node: LexborNode) -> _Spot:
        return _Spot(
            node,
            len(self.blocks),
            tuple(reversed(self.serials[-_LEVELS - 1 : -1])),
            tuple(reversed(self.tags[-12:-1])),
            tuple(reversed(self.marks[-_MARKED:])),
            len(self.tags),
            next((link for link in reversed(self.links[-4:]) if link), ""),
        )


def fold(text: str | None, limit: int) -> str:
    """``text`` with white space folded, at most ``limit`` characters."""
    return _SPACES.sub(" ", (text or "")[: 2 * limit]).strip()[:limit]


def read_page(
    tree: LexborHTMLParser,
    url: str,
    *,
    max_text_chars: int,
    surrounding_chars: int,
    max_images: int,
    max_main_chars: int,
) -> Page:
    """What the parsed page at ``url`` says. Lengths and numbers are cut at the limits given."""
    base_node = tree.css_first("base[href]")
    base = (resolve(url, base_node.attributes.get("href") or "") if base_node else None) or url
    title_node = tree.css_first("head > title")
    title = fold(title_node.text() if title_node else "", max_text_chars)
    walk = _walk(tree, max_text_chars, max_images)
    metadata = _metadata(tree, max_text_chars)
    heads = [u for u in (resolve(base, image) for image in metadata.get("image", ())) if u]
    texts = tuple(dict.fromkeys(metadata.get("text", ())))
    captions = _captions(walk, max_text_chars)
    images = [
        _page_image(
            order,
            spot,
            base=base,
            heads=heads,
            metadata=texts,
            caption=captions.get(order, ""),
            surrounding=tuple(_surrounding(spot, walk.blocks, surrounding_chars)),
            max_chars=max_text_chars,
        )
        for order, spot in enumerate(walk.spots)
    ]
    shown = {u for image in images for u in image.urls}
    for head in dict.fromkeys(heads):
        if head not in shown:  # the page names it, and shows it some other way
            order = len(images)
            images.append(
                PageImage(order=order, src=head, urls=(head,), metadata=texts, is_metadata=True)
            )
    root = tree.css_first("html")
    declared = fold(root.attributes.get("lang") if root else "", 35)
    text = _main_text(walk.blocks, max_main_chars)
    return Page(
        url=url,
        title=title,
        declared_language=declared or None,
        text=text or title,
        images=tuple(images),
    )


def _walk(tree: LexborHTMLParser, max_chars: int, max_images: int) -> _Walk:
    """Depth-first without recursion: pages nest deeper than Python's stack."""
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
                return walk
        if not depth or len(walk.spots) >= max_images:
            break
        node = node.next
    walk.flush()
    return walk


def _metadata(tree: LexborHTMLParser, limit: int) -> dict[str, list[str]]:
    """``image``: URLs that the page names as its picture; ``text``: its descriptions."""
    found: dict[str, list[str]] = {"image": [], "text": []}
    for node in tree.css("meta[content]")[:200]:
        attributes = node.attributes
        name = (attributes.get("property") or attributes.get("name") or "").lower()
        content = fold(attributes.get("content"), limit)
        itemprop = (attributes.get("itemprop") or "").lower()
        if name in _PICTURE_META or itemprop == "image":
            found["image"].append(content)
        elif name in ("og:image:alt", "twitter:image:alt"):
            found["text"].insert(0, content)
        elif name in ("og:title", "og:description", "twitter:description", "description"):
            found["text"].append(content)
    for node in tree.css("link[rel=image_src]")[:5]:
        found["image"].append(fold(node.attributes.get("href"), limit))
    found["text"] = [text for text in found["text"] if text]
    return found


def _page_image(
    order: int,
    spot: _Spot,
    *,
    base: str,
    heads: list[str],
    metadata: tuple[str, ...],
    caption: str,
    surrounding: tuple[str, ...],
    max_chars: int,
) -> PageImage:
    attributes = spot.node.attributes
    urls = tuple(_urls(spot, base))
    named = any(u in heads for u in urls) or (attributes.get("itemprop") or "").lower() == "image"
    return PageImage(
        order=order,
        src=(attributes.get("src") or attributes.get("data-src") or "")[:200],
        urls=urls,
        alt=fold(attributes.get("alt"), max_chars),
        title=fold(attributes.get("title"), max_chars),
        caption=caption,
        surrounding=surrounding,
        metadata=metadata if named else (),
        width=_pixels(attributes.get("width")),
        height=_pixels(attributes.get("height")),
        marks=spot.marks,
        ancestors=spot.ancestors,
        depth=spot.depth,
        is_metadata=named,
        links_to_picture=_PICTURE_LINK.search(spot.link) is not None,
    )


def _pixels(value: str | None) -> int | None:
    """A declared length; percentages and nonsense are None."""
    match = re.fullmatch(r"\s*(\d{1,5})(?:\.\d*)?\s*(?:px)?\s*", value or "")
    return int(match[1]) if match else None


def _urls(spot: _Spot, base: str) -> Iterator[str]:
    """Absolute URLs under which the picture may be found, each once, at most ``_MAX_VARIANTS``."""
    attributes = spot.node.attributes
    references = [attributes.get("src") or "", *(attributes.get(name) or "" for name in _LAZY)]
    references += srcset(attributes.get("srcset") or attributes.get("data-srcset") or "")
    parent = spot.node.parent
    if parent is not None and parent.tag == "picture":
        for source in parent.css("source[srcset]")[:4]:
            references += srcset(source.attributes.get("srcset") or "")
    if _PICTURE_LINK.search(spot.link):
        references.append(spot.link)
    seen: set[str] = set()
    for reference in references:
        url = resolve(base, reference)
        if url and url not in seen and len(seen) < _MAX_VARIANTS:
            seen.add(url)
            yield url


def srcset(value: str) -> list[str]:
    """References of a srcset, the largest first: ``a.jpg 1x, b.jpg 2x`` gives b.jpg, a.jpg."""
    found = []
    # A comma ends a candidate only after white space or a descriptor: URLs hold commas, too.
    for candidate in re.finditer(
        r"([^\s,]\S*[^\s,])(?:\s+([\d.]{1,8})[wxh])?\s*(?:,|$)", value[:8_192]
    ):
        size = candidate[2] or "1"
        found.append((float(size) if size.count(".") <= 1 and size != "." else 1.0, candidate[1]))
    return [reference for _, reference in sorted(found, key=lambda item: -item[0])]


def _captions(walk: _Walk, max_chars: int) -> dict[int, str]:
    """Number of a picture -> its caption.

    A caption belongs to the nearest of those pictures that share its closest ancestor: in a figure
    its own picture, in a row of pictures and captions the one before. Of several, the first counts.
    """
    places = [spot.block for spot in walk.spots]
    found: dict[int, str] = {}
    seen: set[int] = set()
    for number, block in enumerate(walk.blocks):
        if not block.caption or block.caption in seen:
            continue
        seen.add(block.caption)
        if len(seen) > _MAX_CAPTIONS:
            break
        middle = bisect.bisect_right(places, number)
        ranks = []
        # Pictures further away than these have others in between.
        for order in range(max(0, middle - _NEAR), min(len(places), middle + _NEAR)):
            path = walk.spots[order].path
            if block.caption in path or _is_tiny(walk.spots[order].node):
                continue  # the magnifying glass in a caption
            level = next((i for i, serial in enumerate(block.path) if serial in path), None)
            if level is not None:
                follows = places[order] > number
                ranks.append((level, follows, abs(number - places[order]), order))
        if ranks:
            parts = [
                b.text for b in walk.blocks[number : number + 10] if b.caption == block.caption
            ]
            found.setdefault(min(ranks)[3], " ".join(parts)[:max_chars])
    return found


def _is_tiny(node: LexborNode) -> bool:
    sides = (_pixels(node.attributes.get("width")), _pixels(node.attributes.get("height")))
    return any(side is not None and side < _TINY for side in sides)


def _surrounding(spot: _Spot, blocks: list[_Block], limit: int) -> Iterator[str]:
    """The text that the picture stands in or before, and the one above it if that points here.

    A heading points at what follows, and so does a text that ends in a colon or has nothing else
    after it.
    """
    after = blocks[spot.block] if spot.block < len(blocks) else None
    before = blocks[spot.block - 1] if spot.block else None
    follows = after is not None and not after.furniture and not after.caption
    if after is not None and follows and (text := _first_sentences(after.text, limit)):
        yield text
    if before is not None and not before.furniture and not before.caption:
        points = before.tag in _HEADINGS or before.text.endswith(":") or not follows
        if points and (text := _last_sentences(before.text, limit)):
            yield text


def _first_sentences(text: str, limit: int) -> str:
    """Whole sentences from the start within ``limit`` characters; "" if the first is longer."""
    if len(text) <= limit:
        return text
    ends = [match.end() for match in _SENTENCE_END.finditer(text[: limit + 1])]
    return text[: ends[-1]].strip() if ends else ""


def _last_sentences(text: str, limit: int) -> str:
    """Whole sentences up to the end within ``limit`` characters; "" if the last is longer."""
    if len(text) <= limit:
        return text
    first = _SENTENCE_END.search(text, len(text) - limit)
    return text[first.end() :].strip() if first else ""


def _main_text(blocks: list[_Block], limit: int) -> str:
    """Paragraph-like text outside of menus first; on pages without any, all text there is."""
    texts = [b.text for b in blocks if not b.furniture and _is_prose(b.text)]
    prose = [text for text in texts if len(text) >= 60]
    rest = [text for text in texts if len(text) < 60]
    if sum(map(len, prose)) < limit // 2:
        prose += rest
    return " ".join(prose or [b.text for b in blocks])[:limit]


def _is_prose(text: str) -> bool:
    """Letters and spaces for the most part: settings in JSON lie in hidden elements of pages."""
    return sum(c.isalpha() or c.isspace() for c in text) >= 0.8 * len(text)
