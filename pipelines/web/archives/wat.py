"""Reads WAT files: the links and metadata of a crawl's pages as JSON, one record per response.

The layout is that of Common Crawl's extractor (ia-web-commons). ``Envelope`` describes a record of
the WARC file of the same name. Its ``HTML-Metadata`` has the title, the ``meta`` and ``link``
elements of the head, the ``base``, and the links of the body in the order of the page: an image is
``{"path": "IMG@/src", "url": ..., "alt": ..., "title": ...}``. Addresses are as the page has them.
Since December 2024 the language of the ``html`` element is a ``meta`` of the name ``HTML@/lang``.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from fastwarc.warc import WarcRecordType

from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web.archives.content import REDIRECTS, Record, target_url
from vlmill.pipelines.web.archives.reading import Contents
from vlmill.pipelines.web.archives.records import Stored
from vlmill.pipelines.web.pages.blocks import fold
from vlmill.pipelines.web.pages.described import read_images
from vlmill.pipelines.web.pages.metadata import Metadata, find_license, read_meta
from vlmill.pipelines.web.pages.page import Page, add_metadata
from vlmill.pipelines.web.texts.language import LanguageDetector, page_language
from vlmill.runtime.net.opt_outs import first_opt_out, header_opt_outs, meta_opt_outs
from vlmill.runtime.net.urls import resolve
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason

IMAGE = "IMG@/src"
_LANGUAGES = ("html@/lang", "html@/xml:lang")
_DESCRIPTIONS = ("description", "og:description", "og:title")
_MAX_ELEMENTS = 300  # of the head, as for pages
_MAX_JSON = 8 << 20  # bytes of a record: 3 bytes ("{},") become 90 in memory
_MAX_TEXT = 200  # characters of a text from which the language is detected


# A field may hold anything: Any accepts it, and ``_text`` makes it a text. Lists and objects may be
# null.
class _Link(msgspec.Struct):
    path: Any = None
    url: Any = None
    alt: Any = None
    title: Any = None
    text: Any = None
    rel: Any = None


class _Head(
    msgspec.Struct, rename={"base": "Base", "title": "Title", "metas": "Metas", "links": "Link"}
):
    base: Any = None
    title: Any = None
    metas: list[dict[str, Any]] | None = None
    links: list[_Link] | None = None


class _Html(msgspec.Struct, rename={"head": "Head", "links": "Links"}):
    head: _Head | None = None
    links: list[_Link] | None = None


class _Status(msgspec.Struct, rename={"status": "Status"}):
    status: Any = None


class _Response(
    msgspec.Struct,
    rename={"html": "HTML-Metadata", "headers": "Headers", "message": "Response-Message"},
):
    html: _Html | None = None
    headers: dict[str, Any] | None = None
    message: _Status | None = None


class _Payload(msgspec.Struct, rename={"response": "HTTP-Response-Metadata"}):
    response: _Response | None = None


class _Header(msgspec.Struct, rename={"type": "WARC-Type"}):
    type: Any = None


class _Envelope(
    msgspec.Struct, rename={"header": "WARC-Header-Metadata", "payload": "Payload-Metadata"}
):
    header: _Header | None = None
    payload: _Payload | None = None


class _Wat(msgspec.Struct, rename={"envelope": "Envelope"}):
    envelope: _Envelope


_decode = msgspec.json.Decoder(_Wat).decode


# An escape of half a character: an emoji that a writer has cut.
_HALF = re.compile(
    rb"(?<!\\)((?:\\\\)*)(?:\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)


def _decode_record(block: bytes) -> _Wat:
    """Returns a record's JSON. Bytes and escapes that are not characters become U+FFFD.

    Raises msgspec's errors, and RecursionError.
    """
    try:
        return _decode(block)
    except msgspec.ValidationError:
        raise  # the JSON of another layout
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _decode(_HALF.sub(rb"\1\\ufffd", block.decode("utf-8", "replace").encode()))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatPage:
    """Describes a page by its record in a WAT file."""

    url: str
    head: _Head
    metas: Sequence[Mapping[str, Any]]  # of the head
    links: Sequence[_Link]  # of the body
    declared: str | None  # language, by the HTTP header

    @property
    def address(self) -> str:
        """Returns the page's URL."""
        return self.url

    @property
    def has_images(self) -> bool:
        """Returns whether the page refers to an image, in its body or its head."""
        return any(link.path == IMAGE for link in self.links) or any(
            "image" in _text(meta.get("property") or meta.get("name")) for meta in self.metas
        )

    def find_language(
        self, detector: LanguageDetector, rules: WebPairRules, languages: frozenset[str] | None
    ) -> str | Drop:
        """Returns the language of the title, the descriptions and the texts of images and links."""
        language = page_language(
            detector,
            join_texts(self._texts(), rules.max_language_chars),
            self._declared_language(),
            languages=languages,
            min_probability=rules.min_language_probability,
            min_chars=rules.min_language_chars,
            max_chars=rules.max_language_chars,
        )
        return "" if languages is None and isinstance(language, Drop) else language

    def _declared_language(self) -> str | None:
        declared = {
            _text(meta.get("name") or meta.get("http-equiv")).lower(): _text(meta.get("content"))
            for meta in self.metas[:_MAX_ELEMENTS]
        }
        names = (*_LANGUAGES, "content-language")
        return next((declared[name] for name in names if declared.get(name)), self.declared)

    def _texts(self) -> Iterator[str]:
        """Yields texts of the page, those next to images before the texts of links."""
        yield _text(self.head.title)
        for meta in self.metas[:_MAX_ELEMENTS]:
            if _text(meta.get("property") or meta.get("name")).lower() in _DESCRIPTIONS:
                yield _text(meta.get("content"))
        yield from (_text(link.alt) for link in self.links if link.path == IMAGE)
        yield from (_text(link.text) for link in self.links)

    def read_page(self, rules: WebPairRules) -> Page | Drop:
        """Returns the page, or the opt-out in its metadata."""
        limit = rules.max_text_chars
        contents = ((_text(meta.get("name")), _text(meta.get("content"))) for meta in self.metas)
        opt_outs = meta_opt_outs(contents)
        if not rules.ignore_opt_outs and (why := first_opt_out(opt_outs)):
            return Drop(why, "by the page's metadata")
        base = resolve(self.url, _text(self.head.base)) or self.url
        links = (link for link in self.links if link.path == IMAGE)
        images, inline, num_beyond = read_images(
            ((_text(link.url), _text(link.alt), _text(link.title)) for link in links), base, rules
        )
        metadata = self._read_head(limit)
        return Page(
            url=self.url,
            title=fold(_text(self.head.title), limit),
            images=tuple(add_metadata(images, metadata, base)),
            site=metadata.site,
            license=metadata.license or None,
            inline=tuple(inline.items()),
            num_beyond=num_beyond,
        )

    def _read_head(self, limit: int) -> Metadata:
        metadata, head_links = Metadata(), (self.head.links or [])[:_MAX_ELEMENTS]
        for meta in self.metas[:_MAX_ELEMENTS]:
            read_meta({name: _text(value) for name, value in meta.items()}, metadata, limit)
        for link in head_links:
            if _text(link.rel).lower() == "image_src":
                metadata.images.append(fold(_text(link.url), limit))
        for link in (*head_links, *self.links):
            if metadata.license:
                break
            if link.path != IMAGE:
                attributes = {"href": _text(link.url), "rel": _text(link.rel)}
                metadata.license = find_license(attributes)
        return metadata


def join_texts(texts: Iterable[str], max_chars: int) -> str:
    """Returns distinct texts as one, of at least ``max_chars`` characters if there are as many."""
    chosen, size = dict[str, None](), 0
    for text in texts:
        text = fold(text, _MAX_TEXT)
        if text and text not in chosen:
            chosen[text] = None
            size += len(text) + 2
            if size > max_chars:
                break
    return ". ".join(chosen)


def _is_metadata(offset: int, record: Any) -> bool:
    return bool(record.record_type & WarcRecordType.metadata)


def extract_description(
    stored: Stored, archive: str, *, offset: int, max_bytes: int
) -> Record | Drop | None:
    """Returns the page or redirect that a record describes, or why it is dropped.

    None for the description of a request or of another record without a response.
    """
    record, block = stored.record, stored.block
    if "json" not in (record.headers.get("Content-Type") or "").lower():
        return None
    if record.content_length > min(max_bytes, _MAX_JSON):
        return Drop(Reason.TOO_LARGE, f"{record.content_length} bytes")
    if not stored.is_whole:
        return Drop(Reason.BROKEN_ARCHIVE, f"{len(block)} of {record.content_length} bytes")
    try:
        envelope = _decode_record(block).envelope
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return Drop(Reason.BAD_RECORD, f"not the JSON of a WAT record: {error}")
    kind = _text(envelope.header and envelope.header.type)
    response = envelope.payload.response if envelope.payload else None
    if kind == "revisit":
        return Drop(Reason.REVISIT)
    if response is None:
        has_response = kind in ("response", "resource")
        return Drop(Reason.OTHER_TYPE, "no HTTP response") if has_response else None
    url = target_url(record)
    if url is None:
        return Drop(Reason.BAD_URL)
    return _read_response(response, archive, offset, url)


def _read_response(response: _Response, archive: str, offset: int, url: str) -> Record | Drop:
    headers = _lower_headers(response.headers or {})
    status = str((response.message and response.message.status) or "200").strip()
    if status in map(str, REDIRECTS) and (target := resolve(url, headers.get("location", ""))):
        return Record(archive=archive, offset=offset, url=url, kind="redirect", target=target)
    if status != "200":
        return Drop(Reason.BAD_STATUS, status[:20])
    if response.html is None:
        return Drop(Reason.OTHER_TYPE, headers.get("content-type", "")[:200])
    html, head = response.html, response.html.head or _Head()
    return Record(
        archive=archive,
        offset=offset,
        url=url,
        kind="page",
        opt_outs=header_opt_outs(headers),
        described=WatPage(
            url=url,
            head=head,
            metas=head.metas or [],
            links=html.links or [],
            declared=headers.get("content-language") or None,
        ),
    )


def _lower_headers(headers: Mapping[str, Any]) -> dict[str, str]:
    """Returns headers by lower-case names; several values of a name are lines of one."""
    lines: dict[str, list[str]] = {}
    for name, value in headers.items():
        values = value if isinstance(value, list) else [value]
        lines.setdefault(name.lower(), []).extend(filter(None, map(_text, values)))
    return {name: "\n".join(values) for name, values in lines.items()}


DESCRIPTIONS = Contents(_is_metadata, extract_description)
"""The pages that the records of a WAT file describe."""
