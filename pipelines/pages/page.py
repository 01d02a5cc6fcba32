"""Pages: their title, main text and metadata, and every picture with its addresses and texts.

Nothing here judges: which pictures are dominant is ``dominant``'s matter, which texts are captions
``captions``'.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from selectolax.lexbor import LexborHTMLParser

from vlmill.pipelines.pages.context import captions_by_picture, main_text, surrounding_texts
from vlmill.pipelines.pages.urls import resolve
from vlmill.pipelines.pages.walk import Spot, fold, walk_page

_PICTURE_META = ("og:image", "og:image:url", "og:image:secure_url", "twitter:image")
_LAZY = ("data-src", "data-original", "data-lazy-src", "data-lazy", "data-image", "data-url")
_PICTURE_LINK = re.compile(r"\.(?:jpe?g|png|webp)(?:$|\?)", re.IGNORECASE)
_MAX_VARIANTS = 8


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
    blocks, spots = walk_page(tree, max_chars=max_text_chars, max_images=max_images)
    metadata = _metadata(tree, max_text_chars)
    heads = [u for u in (resolve(base, image) for image in metadata.get("image", ())) if u]
    texts = tuple(dict.fromkeys(metadata.get("text", ())))
    captions = captions_by_picture(blocks, spots, max_chars=max_text_chars)
    images = [
        _page_image(
            order,
            spot,
            base=base,
            heads=heads,
            metadata=texts,
            caption=captions.get(order, ""),
            surrounding=tuple(surrounding_texts(spot, blocks, surrounding_chars)),
            max_chars=max_text_chars,
        )
        for order, spot in enumerate(spots)
    ]
    images += _unshown(heads, images, texts)
    root = tree.css_first("html")
    declared = fold(root.attributes.get("lang") if root else "", 35)
    return Page(
        url=url,
        title=title,
        declared_language=declared or None,
        text=main_text(blocks, max_main_chars) or title,
        images=tuple(images),
    )


def _unshown(heads: list[str], images: list[PageImage], texts: tuple[str, ...]) -> list[PageImage]:
    """Returns the pictures that the page names, and shows some other way than as an image."""
    shown = {u for image in images for u in image.urls}
    named = [head for head in dict.fromkeys(heads) if head not in shown]
    return [
        PageImage(order=order, src=head, urls=(head,), metadata=texts, is_metadata=True)
        for order, head in enumerate(named, start=len(images))
    ]


def _metadata(tree: LexborHTMLParser, limit: int) -> dict[str, list[str]]:
    """``image``: URLs that the page names as its picture; ``text``: its descriptions."""
    named: dict[str, list[str]] = {"image": [], "text": []}
    for node in tree.css("meta[content]")[:200]:
        attributes = node.attributes
        name = (attributes.get("property") or attributes.get("name") or "").lower()
        content = fold(attributes.get("content"), limit)
        itemprop = (attributes.get("itemprop") or "").lower()
        if name in _PICTURE_META or itemprop == "image":
            named["image"].append(content)
        elif name in ("og:image:alt", "twitter:image:alt"):
            named["text"].insert(0, content)
        elif name in ("og:title", "og:description", "twitter:description", "description"):
            named["text"].append(content)
    for node in tree.css("link[rel=image_src]")[:5]:
        named["image"].append(fold(node.attributes.get("href"), limit))
    named["text"] = [text for text in named["text"] if text]
    return named


def _page_image(
    order: int,
    spot: Spot,
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
    width, height = spot.sides
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
        width=width,
        height=height,
        marks=spot.marks,
        ancestors=spot.ancestors,
        depth=spot.depth,
        is_metadata=named,
        links_to_picture=_PICTURE_LINK.search(spot.link) is not None,
    )


def _urls(spot: Spot, base: str) -> Iterator[str]:
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
    candidates = []
    # A comma ends a candidate only after white space or a descriptor: URLs hold commas, too.
    for candidate in re.finditer(
        r"([^\s,]\S*[^\s,])(?:\s+([\d.]{1,8})[wxh])?\s*(?:,|$)", value[:8_192]
    ):
        size = candidate[2] or "1"
        candidates.append(
            (float(size) if size.count(".") <= 1 and size != "." else 1.0, candidate[1])
        )
    return [reference for _, reference in sorted(candidates, key=lambda item: -item[0])]
