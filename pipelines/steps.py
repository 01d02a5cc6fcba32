"""The stages as Beam steps: call a pure function, count what came in, went out and was dropped.

Every step has the outputs ``kept`` (its main one), ``rejects`` (rows) and ``tallies`` (what
``funnel`` counts). Bodies of pages and pictures pass only between steps that Beam fuses; what is
shuffled is small.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.pvalue import TaggedOutput

from vlmill.pipelines import captions, dominant, html, markup, scoring, urls, warc
from vlmill.pipelines.aggregate import Pair, Picture, preference, text_key
from vlmill.pipelines.funnel import (
    ARCHIVES,
    BEST_TEXT,
    DOMINANT,
    IN,
    JOIN,
    LANGUAGE,
    OUT,
    PAGES,
    PICTURES,
    RECORDS,
    SCORE,
    SHARED_TEXT,
    TEXTS,
    Drop,
    Stage,
)
from vlmill.pipelines.images import examine_picture
from vlmill.pipelines.language import LanguageDetector, page_language
from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.scoring import TextSource
from vlmill.schemas.ids import pair_id_of
from vlmill.schemas.progress import Progress
from vlmill.schemas.rejects import Reason, reject

KEPT, REJECTS, TALLIES = "kept", "rejects", "tallies"
PAGE_RECORDS, PICTURE_RECORDS, UNUSABLE = "page_records", "picture_records", "unusable"


Tagged = TaggedOutput[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageAt:
    """A page, and a name for its record that no other record of this run has."""

    origin: str
    page: html.Page


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A dominant picture of a page, before anybody has looked for its bytes."""

    id: str
    page_url: str
    page_title: str
    urls: tuple[str, ...]
    texts: tuple[tuple[TextSource, str], ...]
    dominance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """One of the texts of a found picture, cleaned; ``others`` are the raw ones beside it."""

    candidate: Candidate
    picture: Picture
    source: TextSource
    text: str
    others: tuple[str, ...]


def entered(stage: Stage) -> Tagged:
    """Count one more that came into ``stage``."""
    return TaggedOutput(TALLIES, ((stage.name, IN), 1))


def left(stage: Stage) -> Tagged:
    """Count one more that ``stage`` gave out."""
    return TaggedOutput(TALLIES, ((stage.name, OUT), 1))


def dropped(stage: Stage, key: str, drop: Drop) -> Iterator[Tagged]:
    """Count one more that ``stage`` dropped, and keep its row."""
    yield TaggedOutput(TALLIES, ((stage.name, drop.reason.value), 1))
    yield TaggedOutput(REJECTS, reject(stage.name, key, drop.reason, drop.detail))


def open_archive(path: str) -> Any:
    """A seekable file of the archive's stored bytes, on any file system that Beam knows."""
    return FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)


class ReadArchives(beam.DoFn):
    """Path of an archive -> its records, as ``page_records`` and ``picture_records``."""

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
    """Record of a page -> PageAt."""

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
    """Bytes to page, or why not."""
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
    """PageAt -> itself, if it is in the wanted language."""

    def __init__(self, rules: WebPairRules) -> None:
        self.rules = rules

    def setup(self) -> None:
        self.detector = LanguageDetector()

    def process(self, at: PageAt) -> Iterator[Any]:
        rules, page = self.rules, at.page
        yield entered(LANGUAGE)
        found = page_language(
            self.detector,
            page.text,
            page.declared_language,
            wanted=rules.language,
            min_probability=rules.min_language_probability,
            min_chars=rules.min_language_chars,
            max_chars=rules.max_language_chars,
        )
        if isinstance(found, Drop):
            yield from dropped(LANGUAGE, page.url, found)
        else:
            yield left(LANGUAGE)
            yield at


class FindDominant(beam.DoFn):
    """PageAt -> (id, Candidate) of its dominant pictures that have any text."""

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
    """Every raw text of a picture with its source, each once."""
    found: list[tuple[TextSource, str]] = [
        ("figcaption", image.caption),
        ("alt", image.alt),
        ("title", image.title),
        *(("metadata", text) for text in image.metadata),
        *(("surrounding", text) for text in image.surrounding),
    ]
    seen: set[str] = set()
    return tuple((s, t) for s, t in found if t and not (t in seen or seen.add(t)))  # type: ignore[func-returns-value]


class MeasurePictures(beam.DoFn):
    """Record of a picture -> (URL key, Picture); those dropped too, as ``unusable``."""

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


def wanted_urls(item: tuple[str, Candidate]) -> Iterator[tuple[str, str]]:
    """(URL key, candidate's id) for each URL under which its picture may be found."""
    key, candidate = item
    for url_key in sorted({urls.join_key(url) for url in candidate.urls}):
        yield url_key, key


def match_urls(
    item: tuple[str, Mapping[str, Iterable[Any]]],
) -> Iterator[tuple[str, Picture | Drop]]:
    """What lies under one URL, given to each candidate that asks for it."""
    found = best_picture(item[1]["pictures"])
    if found is not None:
        for candidate_id in item[1]["wanted"]:
            yield candidate_id, found


def best_picture(found: Iterable[Picture | Drop]) -> Picture | Drop | None:
    """The largest picture of one URL or of one candidate; else why there is none."""
    return min(found, key=_size_rank, default=None)


def _size_rank(found: Picture | Drop) -> tuple[int, int, str, str, str, int]:
    if isinstance(found, Drop):
        return (1, 0, found.reason.value, found.detail or "", "", 0)
    area = found.width * found.height
    return (0, -area, found.image_id, found.url, found.archive, found.offset)


class JoinPictures(beam.DoFn):
    """(id, candidates and what was found under their URLs) -> (Candidate, Picture)."""

    def process(self, item: tuple[str, Mapping[str, Iterable[Any]]]) -> Iterator[Any]:
        for candidate in item[1]["candidates"]:
            yield entered(JOIN)
            found = best_picture(item[1]["found"])
            if isinstance(found, Picture):
                yield left(JOIN)
                yield candidate, found
            else:
                why = Drop(Reason.MISSING_IMAGE)
                if found is not None:
                    why = Drop(Reason.REJECTED_IMAGE, f"{found.reason}: {found.detail}")
                yield from dropped(JOIN, candidate.urls[0], why)


class FindTexts(beam.DoFn):
    """(Candidate, Picture) -> its captions as Text."""

    def __init__(self, rules: WebPairRules) -> None:
        self.rules = rules

    def process(self, item: tuple[Candidate, Picture]) -> Iterator[Any]:
        candidate, picture = item
        seen: set[str] = set()
        for source, raw in candidate.texts:
            yield entered(TEXTS)
            caption = captions.caption_of(raw, self.rules)
            if not isinstance(caption, Drop) and caption in seen:
                caption = Drop(Reason.DUPLICATE, caption)
            if isinstance(caption, Drop):
                yield from dropped(TEXTS, f"{source} {picture.url}", caption)
                continue
            seen.add(caption)
            yield left(TEXTS)
            others = tuple(text for _, text in candidate.texts if text != raw)
            yield Text(
                candidate=candidate, picture=picture, source=source, text=caption, others=others
            )


class ScoreTexts(beam.DoFn):
    """Text -> (image id, Pair), if its score is high enough."""

    def __init__(self, rules: WebPairRules) -> None:
        self.rules = rules

    def process(self, item: Text) -> Iterator[Any]:
        yield entered(SCORE)
        value = scoring.score(
            scoring.features(
                item.text,
                item.source,
                image_url=item.picture.url,
                page_title=item.candidate.page_title,
                others=item.others,
                dominance=item.candidate.dominance,
            )
        )
        if value < self.rules.min_score:
            drop = Drop(Reason.LOW_SCORE, f"{value:.3f} {item.source}: {item.text}")
            yield from dropped(SCORE, item.picture.url, drop)
            return
        yield left(SCORE)
        yield (
            item.picture.image_id,
            Pair(
                picture=item.picture,
                text=item.text,
                text_source=item.source,
                score=value,
                language=self.rules.language,
                page_url=item.candidate.page_url,
            ),
        )


class KeepBestText(beam.DoFn):
    """(image id, its pairs) -> (text key, best Pair)."""

    def process(self, item: tuple[str, Iterable[Pair]]) -> Iterator[Any]:
        best: Pair | None = None
        for pair in item[1]:
            yield entered(BEST_TEXT)
            loser = pair if best is None or preference(best) <= preference(pair) else best
            if best is not None:
                detail = f"{loser.score:.3f} {loser.text_source}: {loser.text}"
                yield from dropped(BEST_TEXT, item[0], Drop(Reason.NOT_BEST_TEXT, detail))
            if best is None or loser is best:
                best = pair
        if best is not None:
            yield left(BEST_TEXT)
            yield text_key(best.text), best


class DropSharedTexts(beam.DoFn):
    """(text key, pairs) -> the pairs, unless more than ``max_images`` pictures have the text."""

    def __init__(self, max_images: int) -> None:
        self.max_images = max_images

    def process(self, item: tuple[str, Iterable[Pair]]) -> Iterator[Any]:
        held: list[Pair] = []
        for count, pair in enumerate(item[1], start=1):
            yield entered(SHARED_TEXT)
            held.append(pair)
            if count > self.max_images:  # from here on memory stays bounded
                for one in held:
                    key = pair_id_of(one.picture.image_id, one.text)
                    yield from dropped(
                        SHARED_TEXT, key, Drop(Reason.SHARED_TEXT, f"{one.picture.url} {one.text}")
                    )
                held.clear()
        for pair in held:
            yield left(SHARED_TEXT)
            yield pair
