"""Finds names and captions that refer to images: ARIA, microdata, infoboxes."""

from collections.abc import Mapping

from selectolax.lexbor import LexborHTMLParser, LexborNode

from vlmill.pipelines.web.pages.walk import fold

_MAX_LABELS, _MAX_IDS = 500, 4  # per page, and per image
_MAX_CHARS = 2_000
_MAX_ELEMENTS = 500  # per type and page
_LONGEST = 300  # characters of a caption in an infobox
_DESCRIBED = (
    "img[aria-describedby],img[aria-details],figure[aria-labelledby],figure[aria-describedby],"
    "[role=figure]"
)
_IMAGE_OBJECT = '[itemtype*="schema.org/ImageObject"]'
_TEXTS = ("caption", "description", "name")  # of an ImageObject, the closest to a caption first
_INFOBOX = "table[class*=infobox],.infobox table"


class Labels:
    """Finds an image's ``aria-label``, ``aria-labelledby`` texts and a drawing's title."""

    def __init__(self, tree: LexborHTMLParser) -> None:
        self._tree = tree
        self._texts: dict[str, str] = {}
        self._named: Mapping[str, LexborNode] | None = None

    def find_label(self, node: LexborNode) -> str:
        """Returns the label of an image or of its link, or ""."""
        attributes = node.attributes
        if label := attributes.get("aria-label"):
            return label
        if ids := attributes.get("aria-labelledby"):
            return self.find_texts(ids)
        if node.tag == "image":
            return _title_of_drawing(node)
        return ""

    def find_texts(self, ids: str) -> str:
        """Returns the texts of the elements that an attribute lists by their ids."""
        return " ".join(filter(None, (self._text(name) for name in ids.split()[:_MAX_IDS])))

    def _text(self, name: str) -> str:
        """Returns the text of the element with an id; each is read once, up to a limit."""
        text = self._texts.get(name)
        if text is None:
            if len(self._texts) >= _MAX_LABELS:
                return ""
            if self._named is None:
                nodes = reversed(self._tree.css("[id]"))  # the first element with an id counts
                self._named = {node.attributes["id"] or "": node for node in nodes}
            node = self._named.get(name)
            text = self._texts[name] = "" if node is None else _plain(node)
        return text


def _plain(node: LexborNode) -> str:
    return (node.attributes.get("aria-label") or node.text(deep=True) or "")[:_MAX_CHARS]


def _title_of_drawing(node: LexborNode) -> str:
    """Returns the ``title`` of the SVG drawing that contains an image."""
    above = node.parent
    while above is not None and above.tag not in ("svg", "body"):
        above = above.parent
    title = above.css_first("title") if above is not None and above.tag == "svg" else None
    return "" if title is None else _plain(title)


def captions_by_reference(tree: LexborHTMLParser, labels: Labels) -> dict[int, str]:
    """Returns captions by the ``mem_id`` of their images; skips attributes absent from the source.

    An image's ``aria-describedby`` and ``aria-details``; the name of a figure that has one image;
    an ImageObject in microdata; the row or the text below the image of an infobox.
    """
    source = tree.raw_html or b""
    captions: dict[int, str] = {}
    if b"infobox" in source:
        for table in tree.css(_INFOBOX)[:_MAX_ELEMENTS]:
            captions |= _of_infobox(table)
    if b"ImageObject" in source:
        for scope in tree.css(_IMAGE_OBJECT)[:_MAX_ELEMENTS]:
            captions |= _of_image_object(scope)
    if b"aria-" in source:
        for node in tree.css(_DESCRIBED)[:_MAX_ELEMENTS]:
            captions |= _of_described(node, labels)
    return {image: text for image, text in captions.items() if text}


def _of_described(node: LexborNode, labels: Labels) -> Mapping[int, str]:
    attributes = node.attributes
    if node.tag == "img":
        ids = attributes.get("aria-describedby") or attributes.get("aria-details") or ""
        return {node.mem_id: labels.find_texts(ids)}
    images = node.css("img")
    if len(images) != 1:
        return {}
    ids = attributes.get("aria-labelledby") or attributes.get("aria-describedby") or ""
    return {images[0].mem_id: labels.find_texts(ids) or attributes.get("aria-label") or ""}


def _of_image_object(scope: LexborNode) -> Mapping[int, str]:
    images = [scope] if scope.tag == "img" else scope.css("img")
    if len(images) != 1:
        return {}
    for name in _TEXTS:
        for node in scope.css(f'[itemprop~="{name}"]')[:1]:
            if text := node.attributes.get("content") or node.text(deep=True):
                return {images[0].mem_id: fold(text, _LONGEST)}
    return {}


def _of_infobox(table: LexborNode) -> Mapping[int, str]:
    """Returns the text next to a single image in its cell, or alone in the next row."""
    captions: dict[int, str] = {}
    waiting: int | None = None
    for row in table.css("tr")[:_MAX_ELEMENTS]:
        images = row.css("img")
        text = fold(row.text(deep=True), _LONGEST + 1)
        if len(images) == 1:
            waiting = images[0].mem_id
        elif images:
            waiting = None
        if text and waiting is not None:
            is_single = len([cell for cell in row.iter() if cell.tag in ("td", "th")]) == 1
            if is_single and len(text) <= _LONGEST and not row.css("th"):
                captions[waiting] = text
            waiting = None
    return captions
