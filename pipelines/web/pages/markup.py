"""Turns the bytes of a page into its parsed tree: encoding, bounds, parser."""

import codecs
import html
import re
from collections.abc import Sequence
from typing import NamedTuple

from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5
from selectolax.lexbor import LexborHTMLParser

from vlmill.pipelines.web.texts.words import word_set
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason

_META_CHARSET = re.compile(
    rb"(?:<meta[^>]{0,500}charset|<\?xml[^>]{0,200}encoding)\s*=\s*[\"']?\s*([\w.:-]{1,40})",
    re.IGNORECASE,
)
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]{0,15})")
# A page with one of these has an image; in lower case.
_IMAGE_WORDS = (
    *(b"<image", b"<amp-img", b"<picture", b"<source", b":image", b"image_src", b"<object"),
    *(b"data-bg", b"data-back", b"__next_data__"),
)
# A page that has one of these words may have an image, if it also matches their expression. Each
# expression begins with letters, for which the search is many times as fast.
_IMAGE_HINTS = tuple(
    (word, re.compile(pattern))
    for word, pattern in (
        (b"poster", rb"poster(?<=\sposter)\s*="),
        (b"url(", rb"style\s*=\s*[\"'][^>]{0,500}url\("),
        (b"itemprop", rb"itemprop\s*=\s*[\"']?image"),
        (b"image", rb"image(?<=[\"']image)(?:object)?[\"']"),
    )
)
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# Void elements, and elements that close each other: they do not nest.
_FLAT = word_set(
    "area base br col embed hr img input link meta param source track wbr p li dt dd tr td th "
    "tbody thead tfoot option optgroup"
)
# If one of these is open, it is opened again in every following block, so their number multiplies.
_FORMATTING = word_set("a b big code em font i nobr s small strike strong tt u")
# Encodings for which browsers use a larger table than Python does under the same name.
_WHATWG = {
    **dict.fromkeys(("gbk", "gb2312", "gb18030"), "gb18030"),
    **{"shift_jis": "cp932", "euc_kr": "cp949", "big5": "big5hkscs", "iso8859-11": "cp874"},
    **{"utf-16-le": "utf-8", "utf-16-be": "utf-8"},  # for a page whose tags are readable as ASCII
}
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)

_HIDDEN = re.compile(r"<(script|style|head|svg|template|noscript|SCRIPT|STYLE|HEAD)[\s>]")
_DECLARED = re.compile(
    r"<html(?:\s[^>]{0,2000})?\s(?:xml:)?lang\s*=\s*[\"']?([\w-]{2,35})", re.IGNORECASE
)
_MIN_STRETCH = 6
_STRETCH = re.compile(rf">([^<>]{{{_MIN_STRETCH},}})")
_ADDRESS, _OPERATORS = re.compile(r"\bhttp"), re.compile(r"[{};=]{2}")
_HASH = 50  # characters without white space
_MAX_QUICK_CHARS, _MAX_STRETCHES, _MAX_STRETCH = 200_000, 40, 400
_MAX_DECLARED, _MAX_DETECTED = 16_384, 1 << 20

# Below these sizes the worst page takes tenths of a second and a few megabytes.
_HARMLESS_TAGS, _HARMLESS_CHARS = 1_000, 1 << 16
# Measured: 5,000 levels over 50,000 tags, a product of 250 million, took 1.2 s.
_MAX_DEPTH_TIMES_TAGS = 50_000_000
_MAX_REOPENED = 1_000_000
_MAX_ATTRIBUTES = 2_000
_ATTRIBUTE = r"[\s/]*+=?+[^\s/=>]++(?:\s*+=\s*+(?:\"[^\"]*\"|'[^']*'|[^\s>]++))?+"
_ELEMENT = re.compile(rf"<[a-zA-Z][^\s/>]*+((?:{_ATTRIBUTE})*+)")
_ATTRIBUTES = re.compile(_ATTRIBUTE)


def mentions_image(body: bytes) -> bool:
    """Returns whether a page can have an image; most cannot, and need no parser."""
    if b"<img" in body or body.startswith(_UTF_16):  # nearly every page
        return True
    lower = body.lower()
    return (
        b"<img" in lower
        or any(word in lower for word in _IMAGE_WORDS)
        or any(word in lower and hint.search(lower) is not None for word, hint in _IMAGE_HINTS)
    )


def decode(body: bytes, charset: str | None) -> str:
    """Decodes a page by its byte order mark, HTTP charset, meta charset, or detection from bytes.

    A page that is valid UTF-8 to the last byte is decoded as UTF-8, regardless of its declaration.
    Undecodable bytes become U+FFFD; NULs are removed.
    """
    for bom, name in _BOMS:
        if body.startswith(bom):
            return body.decode(name, "replace").replace("\0", "")
    if not body.isascii() and (text := _strict_utf8(body)) is not None:
        return text.replace("\0", "")
    in_meta = _META_CHARSET.search(body, 0, 16_384)
    declared = charset or (in_meta[1].decode("ascii", "replace") if in_meta else None)
    encoding = map_encoding_to_html5(declared) if declared else None
    encoding = _WHATWG.get(encoding or "utf-8", encoding or "utf-8")
    if encoding == "utf-8" and not _is_utf8(body):
        # Only as a last resort: detection errs on short pages, and valid UTF-8 is unambiguous.
        encoding = detect_encoding(body[:_MAX_DETECTED]) or "utf-8"
    return body.decode(encoding, "replace").replace("\0", "")


def _strict_utf8(body: bytes) -> str | None:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _is_utf8(body: bytes) -> bool:
    """Returns whether a page is UTF-8 except for at most one byte in 500."""
    return body.decode("utf-8", "replace").count("\ufffd") * 500 <= len(body)


def quick_text(text: str, max_chars: int) -> str:
    """Returns the longest stretches of a page's text without parsing it, to detect its language.

    Menus and footers are short and often in another language, so the longest come first. Hidden
    elements, code and hashes do not count.
    """
    texts = map(str.strip, _STRETCH.findall(_without_hidden(text[:_MAX_QUICK_CHARS])))
    stretches = dict.fromkeys(stretch for stretch in texts if len(stretch) >= _MIN_STRETCH)
    # A character outside ASCII weighs more: in most such scripts it is a syllable or a word.
    weight = len if text.isascii() else _weight
    longest = sorted(stretches, key=weight, reverse=True)
    chosen: list[str] = []
    left = max_chars
    for stretch in longest[:_MAX_STRETCHES]:
        if not _is_code(stretch):
            chosen.append(" ".join(html.unescape(stretch[:_MAX_STRETCH]).split()))
            left -= len(chosen[-1])
        if left <= 0:
            break
    return " ".join(chosen)[:max_chars]


def _weight(stretch: str) -> int:
    return len(stretch) if stretch.isascii() else 3 * len(stretch)


def _is_code(stretch: str) -> bool:
    """Returns whether a stretch holds code, an address or a hash.

    Rare characters are checked first, as that is faster than a regular expression.
    """
    return (
        "@" in stretch
        or "©" in stretch
        or ");" in stretch
        or (
            ("{" in stretch or "}" in stretch or ";" in stretch or "=" in stretch)
            and _OPERATORS.search(stretch) is not None
        )
        or ("http" in stretch and _ADDRESS.search(stretch) is not None)
        or any(len(word) >= _HASH and word.isascii() for word in stretch.split())
    )


def _without_hidden(text: str) -> str:
    """Removes elements whose text is not shown; of an unclosed element only the tag is removed."""
    parts, position, endless = list[str](), 0, set[str]()
    while hidden := _HIDDEN.search(text, position):
        parts.append(text[position : hidden.start()])
        name = hidden[1]
        end = -1 if name in endless else text.find(f"</{name}", hidden.end())
        if end < 0:
            endless.add(name)
        position = end if end >= 0 else hidden.end()
    parts.append(text[position:])
    return "".join(parts)


def declared_language(text: str) -> str | None:
    """Returns the language that an unparsed page declares in its first element, or None."""
    declared = _DECLARED.search(text, 0, _MAX_DECLARED)
    return declared[1] if declared else None


def parse(text: str, *, max_nesting: int) -> LexborHTMLParser | Drop:
    """Returns the tree of a page; a Drop for one that would take quadratic time or memory."""
    reason = expensive(text, max_nesting)
    if reason is not None:
        return Drop(Reason.BROKEN_PAGE, reason)
    if "shadowroot" in text:
        text = show_shadow_roots(text)
    try:
        # The parser rejects surrogates that a decoder has produced.
        return LexborHTMLParser(text.encode("utf-8", "replace"))
    except (ValueError, RuntimeError) as error:
        return Drop(Reason.BROKEN_PAGE, str(error))


_TEMPLATE = re.compile(r"<(/?)template\b([^>]{0,1000})>", re.IGNORECASE)
_SHADOW = re.compile(r"\sshadowroot(?:mode)?\s*=", re.IGNORECASE)


def show_shadow_roots(text: str) -> str:
    """Returns a page with its declarative shadow roots as ordinary elements.

    Browsers display them; other templates are not displayed and stay templates.
    """
    parts, position, open_templates = list[str](), 0, list[bool]()
    for tag in _TEMPLATE.finditer(text):
        if not tag[1]:
            is_shown = _SHADOW.search(tag[2]) is not None
            open_templates.append(is_shown)
        elif open_templates:
            is_shown = open_templates.pop()
        else:
            is_shown = False
        if is_shown:
            parts += [text[position : tag.start()], f"<{tag[1]}div>"]
            position = tag.end()
    return "".join((*parts, text[position:]))


# Longer data: URIs are removed from the markup before anything else reads it.
_LONG_URI = 4_096
_DATA_URI = re.compile(rf"data:([\w.+-]+/[\w.+-]+)?[^\"'\s<>()]{{{_LONG_URI},}}+")
INLINE = "urn:data:"


class Source(NamedTuple):
    """Holds a page's markup, and the images that its long data: URIs hold."""

    text: str
    data_images: Sequence[str] = ()


def take_out_data(text: str) -> Source:
    """Returns the markup without its long data: URIs, and the images among them.

    The n-th image is replaced by ``urn:data:N``. Pages that browsers save as one file hold
    megabytes of these, and little markup.
    """
    if len(text) < _LONG_URI or "data:" not in text:
        return Source(text)
    images: list[str] = []

    def store_image(uri: re.Match[str]) -> str:
        if not (uri[1] or "").lower().startswith("image/"):
            return "data:,"
        images.append(uri[0])
        return f"{INLINE}{len(images) - 1}"

    return Source(_DATA_URI.sub(store_image, text), images)


def expensive(text: str, max_nesting: int) -> str | None:
    """Returns why parsing ``text`` would be too expensive, or None.

    The parser is linear on real pages, and quadratic in the depth of nesting (100,000 open <div>
    took 13 s), in open formatting elements (opened again in each block) and in the attributes of
    one element (40,000 took 5 s).
    """
    num_tags = text.count("<")
    if num_tags > _HARMLESS_TAGS and num_tags - text.count("</") > _HARMLESS_TAGS:
        deepest, formatting, tags = _nesting(text)
        if deepest > max_nesting or deepest * tags > _MAX_DEPTH_TIMES_TAGS:
            return f"nested {deepest} deep, {tags} tags"
        if formatting > 20 and formatting * tags > _MAX_REOPENED:
            return f"{formatting} nested formatting elements, {tags} tags"
    if len(text) > _HARMLESS_CHARS:
        for element in _ELEMENT.finditer(text):
            if len(element[1]) > 2 * _MAX_ATTRIBUTES:
                attributes = sum(1 for _ in _ATTRIBUTES.finditer(element[1]))
                if attributes > _MAX_ATTRIBUTES:
                    return f"an element with {attributes} attributes"
    return None


def _nesting(text: str) -> tuple[int, int, int]:
    """Returns deepest nesting, most open formatting elements, number of tags.

    Rules that close elements implicitly are ignored.
    """
    depth = deepest = formatting = max_formatting = 0
    tags = _TAG.findall(text)
    for closing, name in tags:
        name = name.lower()
        if name in _FLAT:
            continue
        step = -1 if closing else 1
        depth = max(0, depth + step)
        deepest = max(deepest, depth)
        if name in _FORMATTING:
            formatting = max(0, formatting + step)
            max_formatting = max(max_formatting, formatting)
    return deepest, max_formatting, len(tags)
