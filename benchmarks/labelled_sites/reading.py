"""Reads archives of sites as pages joined with their images, in this process."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from msgspec.structs import replace

from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web.archives.reading import Record, read_archive
from vlmill.pipelines.web.choice.joined_page import JoinedPage, Measured
from vlmill.pipelines.web.pages.images import examine_image
from vlmill.pipelines.web.pages.page import Page
from vlmill.pipelines.web.texts.language import LanguageDetector, parse_languages
from vlmill.pipelines.web_pairs.page_reader import decode_source, detect_language, read_page
from vlmill.runtime.net.urls import join_key
from vlmill.runtime.units.funnel import Drop


def joined_pages(archive: Path, rules: WebPairRules) -> list[JoinedPage]:
    """The pages of an archive with the images that lie in it, in whatever language they are."""
    detector = LanguageDetector()
    pages: list[Page] = []
    images: dict[str, Measured | Drop] = {}
    for record in _records(archive, rules):
        if record.kind == "page":
            page = page_of(record, detector, rules)
            if page is not None:
                pages.append(page)
        elif record.kind == "picture":
            facts = examine_image(
                record.body, min_side_px=rules.min_side_px, max_pixels=rules.max_pixels
            )
            images[join_key(record.url)] = facts
    return [join(page, images) for page in pages]


def _records(archive: Path, rules: WebPairRules) -> Iterator[Record]:
    with archive.open("rb") as file:
        for _, record in read_archive(file, archive.name, max_bytes=rules.max_record_bytes):
            if isinstance(record, Record):
                yield record


def page_of(record: Record, detector: LanguageDetector, rules: WebPairRules) -> Page | None:
    """Parses and reads a page; None for one without images or that cannot be parsed."""
    source = decode_source(record, rules)
    page = source if isinstance(source, Drop) else read_page(source, record.url, rules)
    if isinstance(page, Drop) or isinstance(source, Drop):
        return None
    language = detect_language(source, detector, rules, parse_languages(rules.language))
    return replace(page, language="" if isinstance(language, Drop) else language)


def join(page: Page, images: dict[str, Measured | Drop]) -> JoinedPage:
    """The page with the largest image that lies under the addresses of each of its images."""
    at_hand: dict[int, Measured | Drop] = {}
    for image in page.images:
        outcomes = [images[key] for url in image.urls if (key := join_key(url)) in images]
        if outcomes:
            at_hand[image.order] = max(outcomes, key=_area)
    return JoinedPage(page, at_hand)


def _area(outcome: Measured | Drop) -> int:
    return -1 if isinstance(outcome, Drop) else outcome.width * outcome.height


def by_host(pages: list[JoinedPage]) -> dict[str, list[JoinedPage]]:
    """The pages of each host: what the job surveys as one site."""
    hosts: dict[str, list[JoinedPage]] = defaultdict(list)
    for joined in pages:
        hosts[urlsplit(joined.page.url).netloc].append(joined)
    return dict(hosts)
