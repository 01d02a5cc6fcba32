"""Cleans texts and ids of published files, or drops them."""

import re
import unicodedata
import zlib

from vlmill.runtime.files.kept_values import NumberStore
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.ids import key64
from vlmill.schemas.rejects import MAX_KEY, Reason

MAX_TEXT = 10_000  # characters; the longest captions of published sets have some hundred
MAX_NUMBER = 1 << 40  # COCO's ids have up to twelve digits
BAD_UNICODE = Reason.BAD_UNICODE.value
_BROKEN = ("Cc", "Cs")  # control characters, lone surrogates


def clean_text(text: str) -> str:
    """Returns a text in NFC, with runs of white space as one space, stripped; control characters
    and lone surrogates become U+FFFD.
    """
    if text.isascii() and text.isprintable() and "  " not in text and text == text.strip():
        return text  # nearly all texts are clean: skips splitting and joining
    words = " ".join(text.split())
    if words.isascii() and words.isprintable():
        return words
    words = " ".join(unicodedata.normalize("NFC", words).split())
    if words.isprintable():
        return words
    return "".join("\ufffd" if unicodedata.category(c) in _BROKEN else c for c in words)


def validate_text(value: object, limit: int = MAX_TEXT) -> str | Drop:
    """Returns a published text, cleaned, or a Drop if it is not usable."""
    if not isinstance(value, str):
        return Drop(Reason.BAD_ROW, f"its text is {type(value).__name__}, expected a string")
    text = clean_text(value)
    if not text:
        return Drop(Reason.EMPTY_TEXT)
    if len(text) > limit:
        return Drop(Reason.TOO_LONG, f"{len(text)} characters, at most {limit}")
    return text


def note_repairs(text: str, published: str) -> tuple[str, ...]:
    """Returns the repairs of a text: ``bad_unicode``, unless it already had U+FFFD."""
    mended = not text.isascii() and "\ufffd" in text
    return (BAD_UNICODE,) if mended and "\ufffd" not in published else ()


_STATIC = re.compile(
    r"https?://(?:[\w-]+\.)?(?:static\.?flickr\.com|staticflickr\.com)/(?:[^?#]*/)?(\d{1,18})_[^/?#]*$",
    re.ASCII,
)


def flickr_id(url: str | None) -> str | None:
    """Returns a static Flickr URL's photo id: its last part's digits before the first ``_``."""
    match = _STATIC.match(url) if url else None
    return match[1] if match else None


def usable_id(value: str | None, column: str) -> str | Drop:
    """Returns a value as an id: unchanged except for spaces around it."""
    text = (value or "").strip()
    if not text:
        return Drop(Reason.NO_ID, f"the column {column} is empty")
    if len(text) > MAX_KEY or any(unicodedata.category(c) == "Cc" for c in text):
        return Drop(Reason.NO_ID, f"the column {column} holds control characters or is too long")
    return text


def whole_number(value: object) -> int | None:
    """Returns a published id, None if it is not a whole number."""
    return value if type(value) is int and 0 <= value < MAX_NUMBER else None


def coco_id(number: object) -> str | None:
    """Returns ``coco/`` and twelve digits: an image's one name in all years and splits."""
    image_number = whole_number(number)
    return None if image_number is None else f"coco/{image_number:012d}"


class Claims:
    """Stores the ids that occurred earlier, with a 32-bit hash of each id's content."""

    def __init__(self) -> None:
        self._earlier = NumberStore()

    def claim(self, number: int, content: str) -> Drop | None:
        """Returns None for a new id, else why its row is dropped."""
        mark = zlib.crc32(content.encode("utf-8", "surrogatepass"))
        earlier = self._earlier.claim(number, mark)
        return None if earlier is None else came_earlier(str(number), same=earlier == mark)


class NamedClaims:
    """Stores the string ids that occurred earlier, with a 64-bit hash of each id's content."""

    def __init__(self) -> None:
        self._earlier = NumberStore()

    def claim(self, name: str, content: str) -> Drop | None:
        """Returns None for a new id, else why its row is dropped."""
        mark = key64(content)
        earlier = self._earlier.claim(key64(name), mark)
        return None if earlier is None else came_earlier(name, same=earlier == mark)


def came_earlier(name: str, *, same: bool) -> Drop:
    """Returns why a row is dropped whose id occurred earlier, with the same or other content."""
    if same:
        return Drop(Reason.DUPLICATE, f"{name[:200]} has the same content in an earlier row")
    return Drop(Reason.ID_CONFLICT, f"{name[:200]} has different content in an earlier row")
