"""Steps from archives to what they hold: pages with their dominant pictures, measured pictures."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import TaggedOutput

from vlmill.pipelines.counting.funnel import (
    ARCHIVES,
    DOMINANT,
    LANGUAGE,
    PAGES,
    PICTURES,
    RECORDS,
    Drop,
)
from vlmill.pipelines.counting.steps import dropped, entered, left
from vlmill.pipelines.pages import dominant, markup, urls, warc
from vlmill.pipelines.pages import page as html
from vlmill.pipelines.pages.pictures import examine_picture
from vlmill.pipelines.pages.warc import open_archive
from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.texts.language import LanguageDetector, page_language
from vlmill.pipelines.texts.scoring import TextSource
from vlmill.pipelines.web_pairs.pair import Candidate, Picture
from vlmill.schemas.console.progress import Progress
from vlmill.schemas.rejects import Reason

PAGE_RECORDS, PICTURE_RECORDS, UNUSABLE = "page_records", "picture_records", "unusable"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageAt:
    """A page, and a name for its record that no other record of this run has."""

    origin: str
    page: html.Page


class ReadArchives(beam.DoFn):
    """Reads archives: path -> records, as ``page_records`` and ``picture_records``."""

    def __init__(self, max_bytes: int, total: int) -> None:
        self.max_bytes, self.total = max_bytes, total

    def setup(self) -> None:
        self.stack = ExitStack()
        bar = Progress(total=self.total, unit="archive", label="web pairs")
        self.progress = self.stack.enter_context(bar)

    def teardown(self) -> None:
        self.stack.close()

    def process(self, path: str) -> Iterator[Any]:
        drops = 0
        yield entered(ARCHIVES)
        try:
            with open_archive(path) as file:
                for key, record in warc.read_archive(file, path, max_bytes=self.max_bytes):
                    yield entered(RECORDS)
                    if isinstance(record, Drop):
                        drops += 1
                        yield from dropped(RECORDS, key, record)
                    else:
                        yield left(RECORDS)
                        page = record.kind == "page"
                        yield TaggedOutput(PAGE_RECORDS if page else PICTURE_RECORDS, record)
        except warc.BrokenArchive as error:
            yield from dropped(ARCHIVES, path, Drop(Reason.BROKEN_ARCHIVE, str(error)))
        else:
            yield left(ARCHIVES)
        self.progress.advance(rejects=drops)


class ReadPage(beam.DoFn):
    """Parses pages: Record -> PageAt."""

    def __init__(self, rules: WebPairRules) -> None:
        self.rules = rules

    def process(self, record: warc.Record) -> Iterator[Any]:
        yield entered(PAGES)
        page = read_page(record, self.rules)
        if isinstance(page, Drop):
            yield from dropped(PAGES, record.url, page)
        else:
            yield left(PAGES)
            yield PageAt(origin=f"{record.archive}:{record.offset}", page=page)


def read_page(record: warc.Record, rules: WebPairRules) -> html.Page | Drop:
    """Parses a page's bytes, or says why it is dropped."""
    if len(record.body) > rules.max_page_bytes:
        return Drop(Reason.TOO_LARGE, f"{len(record.body)} bytes")
    if not markup.mentions_image(record.body):
        return Drop(Reason.NO_IMAGES)
    tree = markup.parse(markup.decode(record.body, record.charset), max_nesting=rules.max_nesting)
    if isinstance(tree, Drop):
        return tree
    return html.read_page(
        tree,
        record.url,
        max_text_chars=rules.max_text_chars,
        surrounding_chars=rules.surrounding_chars,
        max_images=rules.max_images_per_page,
        max_main_chars=rules.max_language_chars,
    )


class KeepLanguage(beam.DoFn):
    """Passes the pages on that are in the rules' language: PageAt -> PageAt."""

    def __init__(self, rules: WebPairRules) -> None:
        self.rules = rules

    def setup(self) -> None:
        self.detector = LanguageDetector()

    def process(self, at: PageAt) -> Iterator[Any]:
        rules, page = self.rules, at.page
        yield entered(LANGUAGE)
        language = page_language(
            self.detector,
            page.text,
            page.declared_language,
            language=rules.language,
            min_probability=rules.min_language_probability,
            min_chars=rules.min_language_chars,
            max_chars=rules.max_language_chars,
        )
        if isinstance(language, Drop):
            yield from dropped(LANGUAGE, page.url, language)
        else:
            yield left(LANGUAGE)
            yield at


class FindDominant(beam.DoFn):
    """Finds dominant pictures that have any text: PageAt -> (id, Candidate)."""

    def __init__(self, rules: WebPairRules) -> None:
        self.rules = rules

    def process(self, at: PageAt) -> Iterator[Any]:
        page = at.page
        for image, verdict in zip(
            page.images, dominant.judge_images(page, self.rules), strict=True
        ):
            yield entered(DOMINANT)
            texts = texts_of(image)
            if not isinstance(verdict, Drop) and not texts:
                verdict = Drop(Reason.NO_TEXT)
            if isinstance(verdict, Drop):
                yield from dropped(DOMINANT, f"{page.url} {image.src}", verdict)
                continue
            yield left(DOMINANT)
            key = urls.join_key(f"{at.origin}:{image.order}")
            yield (
                key,
                Candidate(
                    id=key,
                    page_url=page.url,
                    page_title=page.title,
                    urls=verdict.image.urls,
                    texts=texts,
                    dominance=verdict.dominance,
                ),
            )


def texts_of(image: html.PageImage) -> tuple[tuple[TextSource, str], ...]:
    """Returns every raw text of a picture with its source, each once."""
    texts: list[tuple[TextSource, str]] = [
        ("figcaption", image.caption),
        ("alt", image.alt),
        ("title", image.title),
        *(("metadata", text) for text in image.metadata),
        *(("surrounding", text) for text in image.surrounding),
    ]
    seen: set[str] = set()
    return tuple((s, t) for s, t in texts if t and not (t in seen or seen.add(t)))  # type: ignore[func-returns-value]


class MeasurePictures(beam.DoFn):
    """Measures pictures: Record -> (URL key, Picture); drops go to ``unusable``, too."""

    def __init__(self, rules: WebPairRules) -> None:
        self.rules = rules

    def process(self, record: warc.Record) -> Iterator[Any]:
        yield entered(PICTURES)
        facts = examine_picture(
            record.body, min_side_px=self.rules.min_side_px, max_pixels=self.rules.max_pixels
        )
        key = urls.join_key(record.url)
        if isinstance(facts, Drop):
            yield from dropped(PICTURES, record.url, facts)
            yield TaggedOutput(UNUSABLE, (key, facts))
            return
        yield left(PICTURES)
        yield (
            key,
            Picture(
                image_id=facts.image_id,
                url=record.url,
                width=facts.width,
                height=facts.height,
                format=facts.format,
                archive=record.archive,
                offset=record.offset,
            ),
        )
