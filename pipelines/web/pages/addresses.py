"""The addresses of an image: every attribute that may hold one, the fullest version first."""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator, Mapping
from urllib.parse import unquote_to_bytes

from selectolax.lexbor import LexborNode

from vlmill.runtime.net.urls import resolve

Attributes = Mapping[str, str | None]

IMAGE_NAME = re.compile(r"\.(?:jpe?g|jpe|jfif|png|webp|avif|gif)(?:$|[?#&:])", re.IGNORECASE)
IMAGE_TAGS = frozenset(("img", "image", "amp-img"))
MAX_VARIANTS = 12
MAX_INLINE_BYTES = 1 << 20  # of a page's data: images together

# What scripts that load images late keep the true address in.
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
_READ = frozenset((*_LAZY, *_SETS, "src", "href", "xlink:href"))  # before all other attributes
_READ |= frozenset(("alt", "title", "class", "id", "style", "sizes", "width", "height"))
_ADDRESS = re.compile(r"\s*(?:https?:/)?/[^\s<>\"']{1,2000}\s*", re.IGNORECASE)
_QUOTED = re.compile(
    r"\"([^\"\s]{1,1000}\.(?:jpe?g|png|webp|avif|gif)(?:[?#][^\"\s]{0,500})?)\"", re.IGNORECASE
)
_SET = re.compile(r"([^\s,]\S*[^\s,])(?:\s+([\d.]{1,8})[wxh])?\s*(?:,|$)")
# ``background-image: url("a.jpg")``; of several the first lies on top.
_BACKGROUND = re.compile(
    r"background(?:-image)?\s*:[^;]{0,500}?\burl\(\s*[\"']?([^\"')\s]{1,2000})", re.IGNORECASE
)
_DATA = re.compile(r"\s*data:image/(?!svg)[\w.+-]{1,20}((?:;[\w=.+-]{1,40})*),", re.IGNORECASE)


def find_references(node: LexborNode, attributes: Attributes, link: str) -> Iterator[str]:
    """What the page says of where an image is: lazy attributes before ``src``, a placeholder.

    Sources of an ``image`` follow, then any other attribute whose value is an address or named
    like an image, and the image that it is a link to. A film's is its poster, that of any other
    element the one which its style paints behind it.
    """
    if node.tag == "video":
        yield attributes.get("poster") or ""
        return
    if node.tag not in IMAGE_TAGS:
        yield from painted(attributes)
        return
    for name in _LAZY:
        if name in attributes:
            yield attributes[name] or ""
    yield attributes.get("src") or attributes.get("href") or attributes.get("xlink:href") or ""
    for name in _SETS:
        if name in attributes:
            yield from srcset(attributes[name] or "")
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


def painted(attributes: Attributes) -> list[str]:
    """The images that an element's own style paints behind it; style sheets are not read."""
    return _BACKGROUND.findall((attributes.get("style") or "")[:4_096])


def _named_in(value: str) -> Iterator[str]:
    """The images that any attribute may name: an address, or some in the settings of a script."""
    if value[:1] in "{[":
        yield from (address.replace("\\/", "/") for address in _QUOTED.findall(value))
    elif IMAGE_NAME.search(value) or _ADDRESS.fullmatch(value):
        yield value


def addresses(base: str, references: Iterator[str]) -> tuple[str, ...]:
    """Absolute URLs of the references, each once, at most ``MAX_VARIANTS``."""
    urls: dict[str, None] = {}
    for reference in dict.fromkeys(references):
        if reference and len(urls) < MAX_VARIANTS and (url := resolve(base, reference)):
            urls[url] = None
    return tuple(urls)


def srcset(value: str) -> list[str]:
    """References of a srcset, the largest first: ``a.jpg 1x, b.jpg 2x`` gives b.jpg, a.jpg."""
    if not value:
        return []
    candidates = []
    # A comma ends a candidate only after white space or a descriptor: URLs hold commas, too.
    for candidate in _SET.finditer(value[:8_192]):
        size = candidate[2] or "1"
        candidates.append(
            (float(size) if size.count(".") <= 1 and size != "." else 1.0, candidate[1])
        )
    return [reference for _, reference in sorted(candidates, key=lambda item: -item[0])]


def inline_image(reference: str, max_bytes: int) -> tuple[str, bytes] | None:
    """(name by digest, bytes) of a ``data:`` image of at most ``max_bytes``; None for others.

    Vector graphics are left out: they are placeholders.
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
