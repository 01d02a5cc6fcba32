"""Reads a page's metadata outside its body: images, descriptions, license, JSON-LD."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from selectolax.lexbor import LexborHTMLParser, LexborNode

from vlmill.pipelines.web.pages.addresses import IMAGE_NAME, srcset
from vlmill.pipelines.web.pages.blocks import fold
from vlmill.runtime.net.opt_outs import meta_opt_outs
from vlmill.schemas.rejects import Reason

_IMAGES = frozenset(
    ("og:image", "og:image:url", "og:image:secure_url", "twitter:image", "twitter:image:src")
)
_IMAGE_TEXTS = frozenset(("og:image:alt", "twitter:image:alt"))
_PAGE_TEXTS = frozenset(("og:title", "og:description", "twitter:description", "description"))
_LICENSE_LINK = re.compile(
    r"https?://(?:www\.)?creativecommons\.org/(?:licenses|publicdomain)/[\w./-]{2,40}"
)
_SAYING = (
    'meta[content],link[rel="image_src"],script[type="application/ld+json"],'
    'script#__NEXT_DATA__,link[rel~="preload"][as="image"],'
    '[rel~="license"][href],a[href*="creativecommons.org/"]'
)
_MAX_SAYING, _MAX_LINK = 300, 500
_MAX_JSON_CHARS, _MAX_DATA_CHARS = 200_000, 2_000_000
# Wrappers around the JSON-LD of themes, and the non-JSON syntax of hand-written JSON-LD.
_WRAPPING = re.compile(
    r"^\s*(?://|/\*)?\s*(?:<!\[CDATA\[|<!--)\s*(?:\*/)?|(?://|/\*)?\s*(?:\]\]>|-->)\s*(?:\*/)?\s*$"
)
_STRING_OR_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*+")|/\*.*?\*/|//[^\n]*|,(?=\s*[}\]])', re.DOTALL)
# Keys in a front end's data for an image's address and for its description.
_DATA_ADDRESSES = ("src", "url", "contentUrl", "imageUrl", "image_url", "originalSrc", "href")
_DATA_TEXTS = ("caption", "altText", "alt", "alt_text", "alternativeText", "description")
_MIN_DATA_WORDS = 3
_MAX_NODES, _MAX_DEPTH = 2_000, 20


@dataclass(slots=True)
class Metadata:
    """Holds the metadata of a page's head; texts and references are unprocessed."""

    images: list[str] = field(default_factory=list)
    image_texts: list[str] = field(default_factory=list)  # of the image that the head names
    page_texts: list[str] = field(default_factory=list)  # of the page
    captions: dict[str, str] = field(default_factory=dict)  # JSON: reference -> caption
    preloads: list[list[str]] = field(default_factory=list)  # addresses of one image each
    site: str = ""
    license: str = ""
    opt_outs: frozenset[Reason] = frozenset()  # uses that all its ``meta`` elements forbid


def read_metadata(tree: LexborHTMLParser, limit: int) -> Metadata:
    """Reads ``meta``, ``link`` and JSON-LD; texts are cut after ``limit`` characters."""
    nodes = tree.css(_SAYING)
    metadata = Metadata(opt_outs=_opt_outs_in(nodes))
    for node in nodes[:_MAX_SAYING]:
        tag, attributes = node.tag, node.attributes
        if tag == "meta":
            read_meta(attributes, metadata, limit)
        elif tag == "script" and attributes.get("id") == "__NEXT_DATA__":
            for thing in _things((node.text() or "")[:_MAX_DATA_CHARS]):
                _read_data(thing, metadata, limit)
        elif tag == "script":
            for thing in _things((node.text() or "")[:_MAX_JSON_CHARS]):
                _read_thing(thing, metadata, limit)
        elif tag == "link" and attributes.get("as") == "image":
            references = srcset(attributes.get("imagesrcset") or "")
            metadata.preloads.append([*references, attributes.get("href") or ""])
        elif (attributes.get("rel") or "").lower() == "image_src":
            metadata.images.append(fold(attributes.get("href"), limit))
        elif not metadata.license:
            metadata.license = find_license(attributes)
    return metadata


def find_license(attributes: Mapping[str, str | None]) -> str:
    """Returns the license that a link states, or ""."""
    href = attributes.get("href") or ""
    link = _LICENSE_LINK.match(href)
    by_rel = "license" in (attributes.get("rel") or "").lower().split()
    return href[:_MAX_LINK] if by_rel else link.group() if link else ""


def read_meta(attributes: Mapping[str, str | None], metadata: Metadata, limit: int) -> None:
    """Records the image, text or name that a ``meta`` element states."""
    name = (attributes.get("property") or attributes.get("name") or "").lower()
    content = fold(attributes.get("content"), limit)
    if not content:
        return
    if name in _IMAGES or (attributes.get("itemprop") or "").lower() == "image":
        metadata.images.append(content)
    elif name in _IMAGE_TEXTS:
        metadata.image_texts.append(content)
    elif name in _PAGE_TEXTS:
        metadata.page_texts.append(content)
    elif name == "og:site_name":
        metadata.site = content


def _things(text: str) -> Iterator[dict[str, Any]]:
    """Yields every object of a JSON text, outer ones first; nothing if the text is invalid."""
    try:
        open_values: list[tuple[Any, int]] = [(_loads(text), 0)]
    except (ValueError, RecursionError):
        return
    for _ in range(_MAX_NODES):
        if not open_values:
            return
        value, depth = open_values.pop(0)
        if isinstance(value, dict):
            yield value
            inner = list(value.values())
        else:
            inner = value if isinstance(value, list) else []
        if depth < _MAX_DEPTH:
            open_values += [(child, depth + 1) for child in inner if isinstance(child, dict | list)]


def _loads(text: str) -> Any:
    """Parses JSON with raw control characters; may remove wrappers, comments and last commas.

    Raises ValueError for anything else.
    """
    try:
        return json.loads(text, strict=False)
    except ValueError:
        text = _WRAPPING.sub("", _WRAPPING.sub("", text))
        text = _STRING_OR_COMMENT.sub(lambda match: match[1] or "", text)
        return json.loads(text.strip().removesuffix(";"), strict=False)


def _read_data(thing: dict[str, Any], metadata: Metadata, limit: int) -> None:
    """Records an image of a front end's data if the same object describes it."""
    references = (_text(thing.get(name)) for name in _DATA_ADDRESSES)
    reference = next((one for one in references if IMAGE_NAME.search(one)), "")
    texts = (_text(thing.get(name)) for name in _DATA_TEXTS)
    caption = next((one for one in texts if len(one.split()) >= _MIN_DATA_WORDS), "")
    if reference and caption and "<" not in caption:
        metadata.images.append(reference)
        metadata.captions.setdefault(reference, fold(caption, limit))


def _read_thing(thing: dict[str, Any], metadata: Metadata, limit: int) -> None:
    kinds = thing.get("@type")
    if "ImageObject" in (kinds if isinstance(kinds, list) else [kinds]):
        reference = _text(thing.get("contentUrl")) or _text(thing.get("url"))
        texts = (_text(thing.get(name)) for name in ("caption", "description", "name"))
        caption = next(filter(None, texts), "")
        if reference:
            metadata.images.append(reference)
            if caption:
                metadata.captions[reference] = fold(caption, limit)
    else:
        images = thing.get("image")
        for image in images[:20] if isinstance(images, list) else [images]:
            if isinstance(image, str) and image:
                metadata.images.append(image)
    license = _text(thing.get("license"))
    if license and not metadata.license:
        metadata.license = license[:_MAX_LINK]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _opt_outs_in(nodes: Sequence[LexborNode]) -> frozenset[Reason]:
    attributes = (node.attributes for node in nodes if node.tag == "meta")
    return meta_opt_outs((a.get("name") or "", a.get("content") or "") for a in attributes)
