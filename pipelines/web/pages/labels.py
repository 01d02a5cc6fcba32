"""Names that an image gets for those who cannot see it, other than its alt text."""

from collections.abc import Mapping

from selectolax.lexbor import LexborHTMLParser, LexborNode

_MAX_LABELS, _MAX_IDS = 500, 4  # of a page, and of an image
_MAX_CHARS = 2_000


class Labels:
    """Finds what ``aria-label``, ``aria-labelledby`` and a drawing's title say of an image."""

    def __init__(self, tree: LexborHTMLParser) -> None:
        self._tree = tree
        self._texts: dict[str, str] = {}
        self._named: Mapping[str, LexborNode] | None = None

    def find_label(self, node: LexborNode) -> str:
        """Returns the label of an image or of its link, "" for none."""
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
        """The text of the element with an id; each is read once, and not too many."""
        text = self._texts.get(name)
        if text is None:
            if len(self._texts) >= _MAX_LABELS:
                return ""
            if self._named is None:
                nodes = reversed(self._tree.css("[id]"))  # of several with one id the first counts
                self._named = {node.attributes["id"] or "": node for node in nodes}
            node = self._named.get(name)
            text = self._texts[name] = "" if node is None else _plain(node)
        return text


def _plain(node: LexborNode) -> str:
    return (node.attributes.get("aria-label") or node.text(deep=True) or "")[:_MAX_CHARS]


def _title_of_drawing(node: LexborNode) -> str:
    """The ``title`` of the SVG drawing that an image is part of."""
    above = node.parent
    while above is not None and above.tag not in ("svg", "body"):
        above = above.parent
    title = above.css_first("title") if above is not None and above.tag == "svg" else None
    return "" if title is None else _plain(title)
