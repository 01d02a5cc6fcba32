"""Finds an image's addresses in every attribute that may hold one, the largest version first."""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator, Mapping
from urllib.parse import unquote, unquote_to_bytes

from selectolax.lexbor import LexborNode

from vlmill.runtime.net.urls import resolve

Attributes = Mapping[str, str | None]

IMAGE_NAME = re.compile(r"\.(?:jpe?g|jpe|jfif|png|webp|avif|gif)(?:$|[?#&:])", re.IGNORECASE)
IMAGE_TAGS = frozenset(("img", "image", "amp-img"))
MAX_VARIANTS = 12
MAX_INLINE_BYTES = 32 << 20  # of a page's data: images together

# Attributes where scripts for lazy loading keep the true address.
_LAZY = (
    "data-src",
    "data-original",
    "data-lazy-src",
    "data-lazy",
    "data-orig-file",
    "data-large-file",
    "data-full-url",
    "data-full",
    "data-image",
    "data-url",
    "data-echo",
    "data-hi-res-src",
    "data-actualsrc",
)
_SETS = ("srcset", "data-srcset", "data-lazy-srcset", "data-original-set")
# Attributes with a background image that a script loads later.
_BACKGROUNDS = (
    *("data-bg", "data-background-image", "data-background", "data-bg-image", "data-bg-src"),
    *("data-lazy-background", "data-background-src", "data-image-src"),
)
_BACKGROUND_SETS = ("data-bgset", "data-bg-srcset")
PAINTED = ",".join(
    ('[style*="background"][style*="url("]', *(f"[{name}]" for name in _BACKGROUNDS))
) + "".join(f",[{name}]" for name in _BACKGROUND_SETS)
"""Selector of the elements that may have a background image."""
PAINTED_WORDS = (b"url(", b"data-b", b"data-lazy-b", b"data-image-src")
"""Every page with such elements contains one of these."""
# Read before all other attributes.
_READ = frozenset((*_LAZY, *_SETS, "src", "href", "xlink:href", "data"))
_READ |= frozenset(("alt", "title", "class", "id", "style", "sizes", "width", "height"))
_ADDRESS = re.compile(r"\s*(?:https?:/)?/[^\s<>\"']{1,2000}\s*", re.IGNORECASE)
_QUOTED = re.compile(
    r"\"([^\"\s]{1,1000}\.(?:jpe?g|png|webp|avif|gif)(?:[?#][^\"\s]{0,500})?)\"", re.IGNORECASE
)
# A candidate of a srcset as browsers read it: an address up to white space, then, unless a comma
# ended the address, descriptors up to a comma outside of parentheses.
_SET = re.compile(r"[\s,]*(\S+)")
_DESCRIPTORS = re.compile(r"((?:[^,(]|\([^)]*\)?)*)(?:,|$)")
_SIZE = re.compile(r"[+]?(\d{0,8}(?:\.\d{1,8})?(?:[eE][+-]?\d{1,2})?)([wxh])")
# ``background-image: url("a.jpg")``; of several images the first is on top.
_BACKGROUND = re.compile(
    r"background(?:-image)?\s*:[^;]{0,500}?\burl\(\s*[\"']?([^\"')\s]{1,2000})", re.IGNORECASE
)
_CSS_URL = re.compile(r"\burl\(\s*[\"']?([^\"')\s]{1,2000})", re.IGNORECASE)
_DATA = re.compile(r"\s*data:image/(?!svg)[\w.+-]{1,20}((?:;[\w=.+-]{1,40})*),", re.IGNORECASE)


def find_references(node: LexborNode, attributes: Attributes, link: str) -> Iterator[str]:
    """Yields an image's addresses on the page: sizes before lazy attributes before ``src``.

    ``src`` is often a placeholder.

    Sources of an ``image`` follow, then any other attribute whose value is an address or named
    like an image, and the image that it links to. A video's image is its poster; for any other
    element it is the background image of its style.
    """
    if node.tag == "video":
        yield attributes.get("poster") or ""
        return
    if node.tag == "object":
        yield attributes.get("data") or ""
        return
    if node.tag not in IMAGE_TAGS:
        yield from list_backgrounds(attributes)
        return
    for name in _SETS:
        if name in attributes:
            yield from srcset(attributes[name] or "")
    for name in _LAZY:
        if name in attributes:
            yield attributes[name] or ""
    yield attributes.get("src") or attributes.get("href") or attributes.get("xlink:href") or ""
    parent = node.parent
    if parent is not None and parent.tag == "picture":
        for source in parent.css("source")[:8]:
            for name in _SETS:
                yield from srcset(source.attributes.get(name) or "")
    for name, value in attributes.items():
        if name not in _READ and value:
            yield from _named_in(value[:4_096])
    if IMAGE_NAME.search(link):
        yield link


def list_backgrounds(attributes: Attributes) -> list[str]:
    """Returns the background images of an element, from its style or a script's attributes.

    Style sheets are not read.
    """
    found: list[str] = _BACKGROUND.findall((attributes.get("style") or "")[:4_096])
    for name in _BACKGROUND_SETS:
        if value := attributes.get(name):
            found += srcset(value)
    for name in _BACKGROUNDS:
        if value := (attributes.get(name) or "")[:4_096].strip():
            inner = _CSS_URL.search(value)
            if inner or IMAGE_NAME.search(value) or _ADDRESS.fullmatch(value):
                found.append(inner[1] if inner else value)
    return found


def _named_in(value: str) -> Iterator[str]:
    """Yields the images of an attribute's value: an address, or several in a script's settings."""
    if value[:1] in "{[":
        yield from (address.replace("\\/", "/") for address in _QUOTED.findall(value))
    elif IMAGE_NAME.search(value) or _ADDRESS.fullmatch(value):
        yield value


def addresses(base: str, references: Iterator[str]) -> tuple[str, ...]:
    """Returns absolute URLs of the references, each once, at most ``MAX_VARIANTS``."""
    urls: dict[str, None] = {}
    for reference in dict.fromkeys(references):
        if reference and len(urls) < MAX_VARIANTS and (url := resolve(base, reference)):
            urls[url] = None
    for url in list(urls):
        if len(urls) < MAX_VARIANTS and (origin := unwrap_proxy(url)) and origin != url:
            urls[origin] = None
    return tuple(urls)


# Image proxies name the original in their query (/_next/image?url=...) or at the end of their path
# (/_ipx/w_640/https://..., .../fetch/w_640/https%3A%2F%2F..., i0.wp.com/host/a.jpg).
_PROXY = re.compile(
    r"image|img|thumb|resiz|proxy|fetch|_ipx|photo|media|weserv|timthumb|cdn|optimi", re.IGNORECASE
)
_PROXY_QUERY = re.compile(r"[?&](?:url|u|src|image|img|imgurl|source|file|uri)=([^&]{4,2000})")
_PROXY_PATH = re.compile(r".(https?(?::|%3A)(?:/|%2F){1,2}[^/%].*)", re.IGNORECASE)
_PHOTON = re.compile(r"https?://i\d\.wp\.com/([^?]+)")


def unwrap_proxy(url: str) -> str | None:
    """Returns the original image's address from an image proxy's URL; None for other URLs."""
    if photon := _PHOTON.match(url):
        return resolve("", f"https://{photon[1]}")
    if "?" in url and (named := _PROXY_QUERY.search(url)) and _PROXY.search(url[: named.start()]):
        inner = unquote(named[1])
        if IMAGE_NAME.search(inner) or inner.startswith(("http:", "https:", "/")):
            return resolve(url, inner)
    if (behind := _PROXY_PATH.search(url, 9)) and _PROXY.search(url[: behind.start(1)]):
        inner = unquote(behind[1]) if "%" in behind[1][:12] else behind[1]
        return resolve("", re.sub(r"^(https?):/(?=[^/])", r"\1://", inner))
    return None


def srcset(value: str) -> list[str]:
    """Returns a srcset's references, largest first: ``a.jpg 1x, b.jpg 2x`` gives b.jpg, a.jpg."""
    if not value:
        return []
    candidates: list[tuple[float, str]] = []
    value, position = value[:8_192], 0
    while candidate := _SET.match(value, position):
        reference, position, size = candidate[1], candidate.end(), 1.0
        if reference.endswith(","):  # commas inside belong to the URL
            reference = reference.rstrip(",")
        elif descriptors := _DESCRIPTORS.match(value, position):
            position = descriptors.end()
            for descriptor in descriptors[1].split():
                measured = _SIZE.fullmatch(descriptor)
                if measured and measured[1] and measured[2] != "h":
                    size = float(measured[1])
        if reference:
            candidates.append((size, reference))
    return [reference for _, reference in sorted(candidates, key=lambda item: -item[0])]


def inline_image(reference: str, max_bytes: int) -> tuple[str, bytes] | None:
    """Returns (name by digest, bytes) of a ``data:`` image of at most ``max_bytes``, or None.

    Vector graphics are ignored: they are placeholders.
    """
    head = _DATA.match(reference[:200])
    if head is None or len(reference) > 2 * max_bytes:
        return None
    coded = unquote_to_bytes(reference[head.end() :])
    if ";base64" in head[1].lower():
        try:
            coded = base64.b64decode(coded + b"=" * (-len(coded) % 4))
        except (binascii.Error, ValueError):
            return None
    if not coded or len(coded) > max_bytes:
        return None
    return f"urn:sha256:{hashlib.sha256(coded).hexdigest()}", coded
