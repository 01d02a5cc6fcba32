"""Parses request bodies into images and words: one image, a form of files, or JSON.

Images that a request names by URL are fetched, never from internal addresses.

Parsers copy images once and never decode them as text. JSON needs up to nine times the size of
its texts, which is bounded.
"""

import binascii
import json
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from vlmill.runtime.net.addresses import parse_networks
from vlmill.runtime.net.client import Client
from vlmill.runtime.net.exchange import Answer, ClientSettings, Request
from vlmill.runtime.service.refusals import RequestRefused, bad_request
from vlmill.runtime.service.settings import ServiceSettings
from vlmill.schemas.rejects import Reason

FORM, JSON, BYTES = "multipart/form-data", "application/json", "application/octet-stream"
MOST_FIELDS = 1_000  # in addition to images
LONGEST_NAME, LONGEST_TEXT = 200, 20_000
MAX_BOUNDARY = 70  # characters (RFC 2046, section 5.1.1)
HEADERS_OF_A_PART, HEADER_BYTES = 8, 4_096
# Limit of JSON outside its strings: brackets, commas, quotes, white space. Unbounded, 31 MiB of
# empty lists became 900 MiB, and of empty objects 1.9 GiB.
MOST_BESIDE_STRINGS = 65_536
# Of all strings of JSON except images in base64. One character outside of Unicode's basic plane
# makes every character of its text take four bytes, in the whole text and again in the string.
MOST_TEXT_BYTES = 8 * 2**20
# A string, or its beginning: matching continues at its end with any content, so a body is read
# once.
STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
SHORTEST_IMAGE = 1_024  # characters of base64; shorter ones are read as texts
MOST_REDIRECTS, FETCH_SECONDS = 3, 20.0  # of an image that is named by its URL
LONG_BASE64 = re.compile(rb'"[A-Za-z0-9+/]{%d,}={0,2}"' % SHORTEST_IMAGE)


@dataclass(frozen=True, kw_only=True)
class RequestImage:
    """Holds an image of a request. ``name`` is the sender's name for it, never used as a path."""

    name: str
    content: bytes


@dataclass(kw_only=True)
class Form:
    """Holds the content of a request: its images in order, and the texts by field."""

    images: list[RequestImage] = field(default_factory=list)
    words: dict[str, list[str]] = field(default_factory=dict)

    def get_word(self, name: str) -> str:
        """Returns the only word of a field. Raises RequestRefused."""
        words = self.words.get(name, [])
        if len(words) != 1:
            raise bad_request(f"field {name}: expected it once, got it {len(words)} times")
        return words[0]

    def image(self) -> RequestImage:
        """Returns the only image. Raises RequestRefused."""
        if len(self.images) != 1:
            raise bad_request(f"expected one image, got {len(self.images)}")
        return self.images[0]


def read_form(
    content_type: str, body: bytes, *, words: Collection[str] = (), most_images: int
) -> Form:
    """Parses a body by its type; ``words`` are the known fields in addition to images.

    A part of a form is an image if it has a file name, regardless of its field's name. In JSON
    images are ``pictures``, in base64. Raises RequestRefused for everything else.
    """
    kind, options = parse_options_header(content_type)
    form = Form()
    if kind.startswith(b"image/"):
        form.images.append(RequestImage(name="picture", content=body))
    elif kind == FORM.encode():
        boundary = options.get(b"boundary", find_boundary(body))
        if not 1 <= len(boundary) <= MAX_BOUNDARY:
            raise bad_request(f"multipart: expected a boundary of 1 to {MAX_BOUNDARY} characters")
        Parts(form, words, most_images).read(boundary, body)
    elif kind == JSON.encode():
        read_json(form, body, words)
    else:
        raise RequestRefused(
            415,
            "unsupported_type",
            f"content-type {content_type[:80] or 'is missing'}: send image/*, {FORM} or {JSON}",
        )
    require_max_images(form.images, most_images)
    return form


def find_boundary(body: bytes) -> bytes:
    """Returns the boundary in a form's first line: clients that set the content type by hand
    often leave it out of the header. Empty if there is none.
    """
    start = body[: MAX_BOUNDARY + 8].lstrip(b"\r\n")
    line, ended, _ = start.partition(b"\r\n")
    return line[2:] if ended and line.startswith(b"--") else b""


def require_max_images(images: Sequence[Any], max_images: int) -> None:
    """Raises RequestRefused for more images than a request may have."""
    if len(images) > max_images:
        raise RequestRefused(
            413, "too_many_pictures", f"over {max_images} images; send several requests"
        )


class Parts:
    """Collects the parts of a multipart form."""

    def __init__(self, form: Form, words: Collection[str], most_images: int) -> None:
        self._form, self._known, self._most = form, words, most_images
        self._name = self._value = b""
        self._headers: dict[bytes, bytes] = {}
        self._spans: list[tuple[bytes, int, int]] = []  # of the part's content, in the body
        self._is_whole = False

    def read(self, boundary: bytes, body: bytes) -> None:
        """Reads all parts. Raises RequestRefused for a body that is truncated or not a form."""
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._header_name,
                "on_header_value": self._header_value,
                "on_header_end": self._header_end,
                "on_part_data": self._data,
                "on_part_end": self._end,
                "on_end": self._whole,
            },
            max_header_count=HEADERS_OF_A_PART,
            max_header_size=HEADER_BYTES,
        )
        try:
            parser.write(body.lstrip(b"\r\n"))  # the parser skips these too, but at 1 MB/s
            parser.finalize()
        except FormParserError as error:
            raise bad_request(f"multipart: {str(error)[:200]}", "bad_form") from None
        if not self._is_whole:
            raise bad_request("multipart: the body ends before its last boundary", "bad_form")

    def _begin(self) -> None:
        self._name = self._value = b""
        self._headers, self._spans = {}, []

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        self._headers[self._name.lower()] = self._value
        self._name = self._value = b""

    def _data(self, data: bytes, start: int, end: int) -> None:
        # Near a possible boundary the parser reports spans of a few bytes: they are joined.
        if self._spans and self._spans[-1][0] is data and self._spans[-1][2] == start:
            start = self._spans.pop()[1]
        self._spans.append((data, start, end))

    def _whole(self) -> None:
        self._is_whole = True

    def _end(self) -> None:
        about = self._headers.get(b"content-disposition", b"").decode(
            "latin-1"
        )  # bytes as they are
        kind, options = parse_options_header(about)
        name = options.get(b"name")
        if kind != b"form-data" or name is None:
            raise bad_request(
                "multipart: a part has no content-disposition with a name", "bad_form"
            )
        file = options.get(b"filename")
        if file is None and sum(end - start for _, start, end in self._spans) > 4 * LONGEST_TEXT:
            raise too_long(name.decode("utf-8", "replace"))
        content = b"".join(memoryview(data)[start:end] for data, start, end in self._spans)
        if file is not None:
            require_image_type(self._headers.get(b"content-type", b"").decode("latin-1"))
            self._form.images.append(RequestImage(name=plain_name(file), content=content))
            require_max_images(self._form.images, self._most)
            return
        add_word(self._form, name.decode("utf-8", "replace"), decode_text(content), self._known)


def require_image_type(content_type: str) -> None:
    """Raises RequestRefused for a part whose type is not an image."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind and not kind.startswith("image/") and kind != BYTES:
        raise RequestRefused(
            415,
            "unsupported_type",
            f"a file's content-type is {kind[:80]}; expected image/* or {BYTES}",
        )


def plain_name(raw: bytes) -> str:
    """Returns a file's name. Raises RequestRefused for a path or an invalid name."""
    name = raw.decode("utf-8", "replace")
    is_path = "/" in name or "\\" in name or name in ("", ".", "..")
    if is_path or len(name) > LONGEST_NAME or not name.isprintable():
        raise bad_request(
            f"a file's name must be a plain name of 1 to {LONGEST_NAME} characters", "bad_name"
        )
    return name


def decode_text(content: bytes) -> str:
    """Returns the text of a form field. Raises RequestRefused if it is not UTF-8."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise bad_request("a text is not UTF-8", "bad_text") from None


def add_word(form: Form, name: str, text: str, known: Collection[str]) -> None:
    """Adds a field's word. Raises RequestRefused for unknown fields and for long words."""
    if name not in known:
        there = f"there are {', '.join(sorted(known))}" if known else "none is known"
        raise bad_request(f"unknown field {name[:80]!r}; besides files {there}", "unknown_field")
    if len(text) > LONGEST_TEXT:
        raise too_long(name)
    if sum(map(len, form.words.values())) >= MOST_FIELDS:
        raise RequestRefused(413, "too_many_fields", f"over {MOST_FIELDS} fields")
    form.words.setdefault(name, []).append(text)


def too_long(name: str) -> RequestRefused:
    """Returns the refusal of a text that is too long."""
    return RequestRefused(413, "too_long", f"field {name[:80]}: over {LONGEST_TEXT} characters")


def read_json(form: Form, body: bytes, words: Collection[str]) -> None:
    """Reads a JSON object: ``images`` in base64, and lists of texts or single ones."""
    plain, images = cut_images(body)
    try:
        content = json.loads(plain.decode("utf-8-sig"), parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise bad_request("the body is not JSON", "bad_json") from None
    del plain
    if not isinstance(content, Mapping):
        raise bad_request("the body is not a JSON object", "bad_json")
    for name, value in content.items():
        values = value if isinstance(value, list) else [value]
        for item in values:
            if not isinstance(item, str):
                if name in words and isinstance(item, int) and not isinstance(item, bool):
                    item = str(item)
                else:
                    raise bad_request(
                        f"field {name[:80]!r}: expected a text, or a list of texts", "bad_json"
                    )
            if not item.isascii() and any("\ud800" <= letter <= "\udfff" for letter in item):
                raise bad_request(f"field {name[:80]!r}: text with lone surrogates", "bad_text")
            encoded = images.get(item, item)
            if name == "pictures":
                form.images.append(
                    RequestImage(name=f"image {len(form.images)}", content=decode_base64(encoded))
                )
            elif isinstance(encoded, str):
                add_word(form, name, encoded, words)
            elif len(encoded) > LONGEST_TEXT:
                raise too_long(name)
            else:  # a word that might be base64
                add_word(form, name, str(encoded, "ascii"), words)


def cut_images(body: bytes) -> tuple[bytes, dict[str, memoryview]]:
    """Replaces images in base64 in a JSON text by short names.

    Returns the remaining JSON, and the images by these names, as views of the body. Raises
    RequestRefused for more values or more text than a request needs, before they use memory: two or
    three bytes of JSON become dozens of bytes.
    """
    if b"\0" in body:  # in UTF-16 or UTF-32, where strings and values look different
        raise bad_request("the body is not JSON", "bad_json")
    if len(body) < SHORTEST_IMAGE:
        return body, {}
    nonce = secrets.token_hex(16)  # no string of the body can equal such a name
    parts, images, end = [], dict[str, memoryview](), 0
    num_besides = num_text_bytes = 0  # outside strings, plus one byte of each; in other strings
    for match in STRING.finditer(body):
        num_besides += match.start() - end + 1
        is_image = LONG_BASE64.fullmatch(body, *match.span()) is not None
        num_text_bytes += 0 if is_image else match.end() - match.start()
        require_little(num_besides, num_text_bytes)
        if is_image:
            name = f"{nonce}{len(images)}"
            images[name] = memoryview(body)[match.start() + 1 : match.end() - 1]
            parts.append(body[end : match.start()] + f'"{name}"'.encode())
        else:
            parts.append(body[end : match.end()])
        end = match.end()
    require_little(num_besides + len(body) - end, num_text_bytes)
    return b"".join([*parts, body[end:]]), images


def require_little(num_besides: int, num_text_bytes: int) -> None:
    """Raises RequestRefused for too many bytes of JSON outside of strings, or in its texts."""
    if num_besides > MOST_BESIDE_STRINGS:
        raise RequestRefused(
            413,
            "too_many_fields",
            f"JSON with over {MOST_BESIDE_STRINGS} characters in addition to its strings",
        )
    if num_text_bytes > MOST_TEXT_BYTES:
        raise RequestRefused(413, "too_long", f"JSON with over {MOST_TEXT_BYTES} bytes of text")


def _no_number(word: str) -> None:
    raise ValueError(word)


def decode_base64(encoded: str | memoryview) -> bytes:
    """Decodes base64. Raises RequestRefused."""
    try:
        return binascii.a2b_base64(encoded, strict_mode=True)
    except (binascii.Error, ValueError):
        raise bad_request("images: not base64", "bad_json") from None


def client_settings(settings: ServiceSettings) -> ClientSettings:
    """Returns the HTTP client's settings for a service."""
    return ClientSettings(
        contact=settings.contact,
        connections=settings.max_images,
        connect_seconds=5.0,
        seconds=min(FETCH_SECONDS, settings.seconds),
        max_bytes=settings.max_bytes,
        allowed=parse_networks("--allow-address", settings.allowed_addresses),
    )


def fetch_images(urls: Sequence[str], settings: ServiceSettings) -> list[RequestImage]:
    """Downloads the images simultaneously; redirects are followed by the same client.

    Raises RequestRefused for an image that is not available; its message names no private address.
    """
    contents: dict[int, bytes] = {}
    with Client(client_settings(settings)) as client:
        indices: dict[str, list[int]] = {}
        for index, url in enumerate(urls):
            indices.setdefault(url, []).append(index)
        # The open requests, the image of each, and its number of redirects.
        pending = {url: [(url, 0)] for url in indices}
        for url in indices:
            client.start(Request(url=url))
        total = 0
        while client.num_running:
            for answer in client.wait(timeout=1.0):
                for origin, redirects in pending.pop(answer.request.url):
                    if answer.failure is None and 300 <= answer.status < 400:
                        if answer.location is None or redirects == MOST_REDIRECTS:
                            raise bad_request(f"{origin[:200]}: too many redirects", "not_fetched")
                        if answer.location not in pending:
                            client.start(Request(url=answer.location))
                        pending.setdefault(answer.location, []).append((origin, redirects + 1))
                        continue
                    require_content(origin, answer)
                    total += len(answer.content)
                    if total > settings.max_bytes:
                        raise RequestRefused(
                            413, "too_large", f"over {settings.max_bytes} bytes downloaded"
                        )
                    contents |= dict.fromkeys(indices[origin], answer.content)
    return [RequestImage(name=url, content=contents[index]) for index, url in enumerate(urls)]


def require_content(url: str, answer: Answer) -> None:
    """Raises RequestRefused unless the response is complete and has status 200."""
    short = url[:200]
    if answer.failure in (Reason.BAD_ADDRESS, Reason.BAD_URL):
        raise bad_request(f"{short}: not a web address", "bad_address")
    if answer.failure is not None:
        raise bad_request(f"{short}: not downloaded ({answer.failure.value})", "not_fetched")
    if answer.status != 200:
        raise bad_request(f"{short}: response with status {answer.status}", "not_fetched")
