"""The rejects table: everything that was dropped, where and why.

The list of reasons is closed, so that reports and scripts can rely on it; free text goes to
``detail``.
"""

from collections.abc import Mapping
from enum import StrEnum

from vlmill.schemas.plurals import format_count

MAX_KEY = 2_048
MAX_DETAIL = 500


class Reason(StrEnum):
    """The reasons for dropping something, one line each, grouped by the stages that use them."""

    # Archives and records
    BROKEN_ARCHIVE = "broken_archive"  # cut, not gzip, not WARC: what could be read was read
    BAD_STATUS = "bad_status"  # an HTTP status other than 200
    OTHER_TYPE = "other_type"  # neither a page nor an image
    REVISIT = "revisit"  # the archive refers to an earlier record instead of the content
    DAMAGED = "damaged"  # bytes between two records of an archive that belong to none
    EMPTY = "empty"  # no bytes, or nothing in them
    TOO_LARGE = "too_large"  # more bytes or pixels than the limit
    TOO_EXPENSIVE = "too_expensive"  # an image whose parts would take too much time or memory

    # Pages
    BROKEN_PAGE = "broken_page"  # cannot be parsed
    NO_IMAGES = "no_images"  # the page's markup mentions no image
    OTHER_LANGUAGE = "other_language"
    UNKNOWN_LANGUAGE = "unknown_language"  # too little text to detect it

    # Requests (runtime/net/client.py)
    BAD_ADDRESS = (
        "bad_address"  # the host is, or leads to, an address inside; a port not of the web
    )
    UNKNOWN_HOST = "unknown_host"  # DNS has no address of it
    NO_CONNECTION = "no_connection"  # refused or unreachable
    TLS_ERROR = "tls_error"  # no TLS, or a certificate that is not trusted or another host's
    TIMED_OUT = "timed_out"  # no connection, no end of the answer, or too few bytes in time
    HEADERS_TOO_LARGE = "headers_too_large"
    BAD_RESPONSE = "bad_response"  # not HTTP, or broken framing
    CUT_OFF = "cut_off"  # the connection closed before the end
    ROBOTS = "robots"  # robots.txt does not let us, or could not be read
    TOO_MANY_REDIRECTS = "too_many_redirects"
    HOST_FAILED = "host_failed"  # its host failed too often, or asked for a long pause
    HOST_LIMIT = "host_limit"  # its host took all the time or bytes that one may, or is too slow

    # Opt-outs of a page or image (runtime/net/opt_outs.py)
    TDM_RESERVED = "tdm_reserved"  # tdm-reservation: 1
    NO_AI = "no_ai"  # robots: noai, noml
    NO_IMAGE_AI = "no_image_ai"  # robots: noimageai
    NO_INDEX = "no_index"  # robots: noindex, none
    NO_IMAGE_INDEX = "no_image_index"  # robots: noimageindex

    # Images on pages
    NOT_DOMINANT = "not_dominant"  # nothing marks it as content of its page
    ICON = "icon"  # by its name or class: icon, logo, sprite, avatar, tracking pixel
    ADVERTISEMENT = "advertisement"  # by its class or host
    NAVIGATION = "navigation"  # in a menu, header, footer or side bar
    DECLARED_SMALL = "declared_small"  # the page shows it too small, or as a strip
    REPEATED = "repeated"  # the page shows it again and again
    TOO_MANY = "too_many"  # number of images of a page beyond the limit, in ``detail``
    BAD_URL = "bad_url"  # data:, javascript:, malformed
    MISSING_IMAGE = "missing_image"  # not among the available images
    REJECTED_IMAGE = "rejected_image"  # available, but rejected itself

    # Images
    UNREADABLE_IMAGE = "unreadable_image"  # not decodable, truncated, or no image at all
    UNSUPPORTED_FORMAT = "unsupported_format"
    ANIMATED = "animated"
    BLANK_IMAGE = "blank_image"  # of one colour
    TOO_SMALL = "too_small"  # a side at or below the limit
    RACY_IMAGE = "racy_image"  # by the user's model
    UNREALISTIC_IMAGE = "unrealistic_image"  # a drawing, a chart, a logo, by the user's model
    DUPLICATE = "duplicate"  # the same bytes, text or id came earlier

    # Texts
    NO_TEXT = "no_text"
    BOILERPLATE = "boilerplate"
    TOO_SHORT = "too_short"
    TOO_LONG = "too_long"
    NOT_A_SENTENCE = "not_a_sentence"
    NOT_WORDS = "not_words"  # numbers, codes, too few letters
    REPETITIVE = "repetitive"
    BLOCKED_WORD = "blocked_word"
    FILE_NAME = "file_name"  # of an image, describing a camera rather than the content
    CAPITALS = "capitals"  # nothing but capital letters
    PUNCTUATION = "punctuation"  # more marks than words, or the same one again and again
    UNBALANCED = "unbalanced"  # a quotation mark or a bracket without its other half
    UNKNOWN_WORDS = "unknown_words"  # too many that are not in the vocabulary
    PERSONAL_DATA = "personal_data"  # an e-mail address, a telephone or a card number

    # Pairs
    LOW_SCORE = "low_score"
    NOT_BEST_TEXT = "not_best_text"  # another text suits this image better
    SHARED_TEXT = "shared_text"  # too many images have this text
    EXCLUDED = "excluded"  # an image of a list that the user gave, as of test sets
    NEAR_DUPLICATE = "near_duplicate"  # another image looks the same

    # Tables of others
    BAD_ENCODING = "bad_encoding"  # bytes that are not of the file's encoding
    NO_ID = "no_id"  # the column of ids or of images is empty, or holds what can be no id
    ID_CONFLICT = "id_conflict"  # an earlier row has this id and another content
    UNSAFE_PATH = "unsafe_path"  # a name that leads out of the folder of images

    # Published data sets (pipelines/manifest/sets)
    BAD_ROW = "bad_row"  # a row of another layout than the others, or no JSON
    BAD_UNICODE = "bad_unicode"  # control characters or lone surrogates: replaced, and counted
    EMPTY_TEXT = "empty_text"
    IMAGE_MISSING = "image_missing"  # no such file in the folder of images
    IMAGE_BROKEN = "image_broken"  # cut, damaged, or no image that can be decoded
    IMAGE_TOO_LARGE = "image_too_large"  # more bytes or pixels than the limit
    PLACEHOLDER = "placeholder"  # the same bytes under many ids: "photo unavailable"
    EMPTY_BOX = "empty_box"  # no part of the box is inside its image
    BAD_REFERENCE = "bad_reference"  # an object number without an object
    LABEL_UNKNOWN = "label_unknown"  # an answer or a class that is not in the list

    # Regions and training
    NO_IMAGE = "no_picture"  # the pair names none, or the images table has no such row
    NO_REGIONS = "no_regions"  # the image has no row in the regions table
    NO_BOXES = "no_boxes"  # it has a row without boxes
    HELD_OUT = "held_out"  # its split is kept for validation or test
    BAD_RECORD = "bad_record"  # of a feature file: cannot be parsed, or contradicts itself
    BAD_BOXES = "bad_boxes"  # a given box does not fit this image
    NO_GIVEN_BOXES = "no_given_boxes"  # the box file has no entry for the image
    NOT_FINITE = "not_finite"  # a box, feature or score that is not, or not as the stored type
    NETWORK_FAILED = "network_failed"  # out of memory, mostly: the image failed alone, too


class Rejected(Exception):
    """Raised for an item that is dropped, with the reason."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail

    def __str__(self) -> str:
        return self.detail


def reason_counts(counts: Mapping[str, int]) -> str:
    """Returns the count of each reason for a command's last line: "3 no_text, 1 duplicate".

    The most frequent reason comes first; keys that are not reasons are ignored.
    """
    known = [(count, reason.value) for reason in Reason if (count := counts.get(reason, 0))]
    known.sort(key=lambda one: -one[0])
    return ", ".join(f"{count} {reason}" for count, reason in known)


def format_rejects(counts: Mapping[str, int]) -> str:
    """Returns "4 rejects (3 no_text, 1 duplicate)", or "0 rejects"."""
    total = sum(counts.get(reason, 0) for reason in Reason)
    return format_count(total, "reject") + (f" ({reason_counts(counts)})" if total else "")


def reject(stage: str, key: str, reason: Reason, detail: str | None = None) -> dict[str, object]:
    """Returns a row of the rejects table; truncates and cleans ``key`` and ``detail``.

    ``key`` identifies the thing in its stage (a URL, an id, a path).
    """
    return {
        "stage": stage,
        "key": clean(key, MAX_KEY),
        "reason": Reason(reason).value,
        "detail": None if detail is None else clean(detail, MAX_DETAIL),
    }


def clean(text: str, limit: int) -> str:
    """Cuts ``text`` to ``limit`` characters of valid UTF-8; replaces NULs and surrogates."""
    cut = text[:limit].replace("\0", "\N{REPLACEMENT CHARACTER}")
    return cut.encode("utf-8", "replace").decode("utf-8")
