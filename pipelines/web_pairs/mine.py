"""First step, an archive a unit: its pages, its images, and which page asks for which URL."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from vlmill.pipelines.filters.image import ImageFilters
from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web.archives.index import Ranges
from vlmill.pipelines.web.archives.reading import (
    BrokenArchive,
    Record,
    open_archive,
    read_archive,
    read_ranges,
)
from vlmill.pipelines.web.pages import markup
from vlmill.pipelines.web.pages import page as html
from vlmill.pipelines.web.pages.images import (
    ArchivedImage,
    Examiner,
    ImageFacts,
    open_examiner,
)
from vlmill.pipelines.web.texts.language import LanguageDetector, page_language, parse_languages
from vlmill.pipelines.web_pairs import rows
from vlmill.pipelines.web_pairs.spool import SpoolWriter, spool
from vlmill.pipelines.web_pairs.stages import (
    ARCHIVES,
    IMAGES,
    INLINE_IMAGES,
    JOIN,
    LANGUAGE,
    PAGES,
    PARSE,
    RECORDS,
    REDIRECTS,
)
from vlmill.pipelines.web_pairs.units import Job, open_counts
from vlmill.runtime.net.opt_outs import first_opt_out
from vlmill.runtime.units.counts import Counts
from vlmill.runtime.units.funnel import IN, Drop, Stage
from vlmill.runtime.units.numbers import Numbers
from vlmill.runtime.units.unit import Result, Unit
from vlmill.schemas.rejects import Reason

MOST_REDIRECTS = 100_000  # of an archive, that are followed to their last target
MOST_HOPS = 5
SPOOLS = ("pages", "urls", "redirects", "inline")
MEASURED_BYTES, MOST_MEASURED = 4 << 20, 96  # of images that are measured while reading goes on
INLINE = ""  # the archive of images that stand in their page: their bytes are kept beside it


class MeasuredImage(NamedTuple):
    """An image that is being measured, and what waits for the outcome."""

    stage: Stage
    record: Record
    wait: Callable[[], ArchivedImage | Drop]


class Miner:
    """Takes the records of one archive, and leaves spools of what they are."""

    def __init__(
        self,
        archive: bytes,
        job: Job,
        spools: dict[str, SpoolWriter],
        counts: Counts,
        examiner: Examiner,
    ) -> None:
        self._archive, self._job, self._rules = archive, job, job.rules
        self._examiner = examiner
        self._measured: deque[MeasuredImage] = deque()
        self._measured_bytes = 0
        self._spools, self._counts = spools, counts
        self._detector = LanguageDetector(job.rules.language_detector)
        self._languages = parse_languages(job.rules.language)
        self._targets: dict[bytes, bytes] = {}
        self.wrong_digests = 0  # records whose bytes are not those that their writer saw

    def take(self, key: str, record: Record | Drop) -> None:
        """Takes one record, or why it is none."""
        if isinstance(record, Drop):
            self._counts.dropped(RECORDS, key, record)
            return
        self._counts.passed(RECORDS)
        self.wrong_digests += record.wrong_digest
        if record.kind == "page":
            self._take_page(record)
        elif record.kind == "picture":
            self._measure(IMAGES, record)
        else:
            self._take_redirect(record)

    def _take_page(self, record: Record) -> None:
        source = decode_source(record, self._rules)
        if isinstance(source, Drop):
            self._counts.dropped(PAGES, record.url, source)
            return
        self._counts.passed(PAGES)
        # Before the page is parsed, which takes longer than telling its language.
        language = detect_language(source, self._detector, self._rules, self._languages)
        if isinstance(language, Drop):
            self._counts.dropped(LANGUAGE, record.url, language)
            return
        self._counts.passed(LANGUAGE)
        page = read_page(source, record.url, self._rules)
        if isinstance(page, Drop):
            self._counts.dropped(PARSE, record.url, page)
            return
        self._counts.passed(PARSE)
        for url, data in page.inline:
            self._take_inline(url, data)
        if page.num_beyond:
            # One for all, or a page of 8 MiB would leave a million rejects.
            limit = self._rules.max_images_per_page
            drop = Drop(Reason.TOO_MANY, f"{page.num_beyond} images after {limit}")
            self._counts.dropped(JOIN, page.url, drop)
        page = replace(page, language=language, inline=())
        page_key = rows.page_key(page.url, self._archive, record.offset)
        self._spools["pages"].add(page_key[0], page_key + rows.PAGE, rows.encode(page))
        for image in page.images:
            order = image.order.to_bytes(2, "big")
            for number, url in enumerate(image.urls):
                key = rows.url_key(url)
                row = key + rows.REQUEST + page_key + order + bytes((number,))
                self._spools["urls"].add(key[0], row)

    def _take_inline(self, url: str, data: bytes) -> None:
        record = Record(archive=INLINE, offset=0, url=url, kind="picture", body=data)
        self._measure(INLINE_IMAGES, record)

    def _measure(self, stage: Stage, record: Record) -> None:
        """Begins to measure an image, while the archive is read on."""
        wait = measure(record, self._rules, self._examiner)
        self._measured.append(MeasuredImage(stage, record, wait))
        self._measured_bytes += len(record.body)
        while self._measured_bytes > MEASURED_BYTES or len(self._measured) > MOST_MEASURED:
            self._take_measured()

    def _take_measured(self) -> None:
        image = self._measured.popleft()
        self._measured_bytes -= len(image.record.body)
        outcome = image.wait()
        self._take_image(image.stage, image.record.url, outcome)
        if isinstance(outcome, ArchivedImage) and image.stage is INLINE_IMAGES:
            shard = rows.assign_shard(outcome.image_id, self._job.shards)
            key = bytes.fromhex(outcome.image_id)
            self._spools["inline"].add(shard, key, image.record.body)

    def _take_image(self, stage: Stage, url: str, outcome: ArchivedImage | Drop) -> None:
        if isinstance(outcome, Drop):
            self._counts.dropped(stage, url, outcome)
            row = rows.Fact(None, outcome)
        else:
            self._counts.passed(stage)
            row = rows.Fact(outcome, None)
        key = rows.url_key(url)
        self._spools["urls"].add(key[0], rows.fact_key(key, outcome), rows.encode(row))

    def _take_redirect(self, record: Record) -> None:
        self._counts.passed(REDIRECTS)
        assert record.target is not None
        self._targets[rows.url_key(record.url)] = rows.url_key(record.target)
        if len(self._targets) > MOST_REDIRECTS:
            self._follow()

    def finish(self) -> None:
        """Leaves what is still measured, and where redirects lead."""
        while self._measured:
            self._take_measured()
        self._follow()

    def _follow(self) -> None:
        """Leaves where redirects lead in the end, as far as this archive tells."""
        for source, target in self._targets.items():
            for _ in range(MOST_HOPS):
                target = self._targets.get(target, target)
            self._spools["redirects"].add(target[0], target + source)
        self._targets.clear()


def decode_source(record: Record, rules: WebPairRules) -> markup.Source | Drop:
    """Decodes a page's bytes, or says why it is dropped."""
    if not markup.mentions_image(record.body):
        return Drop(Reason.NO_IMAGES)
    if not rules.ignore_opt_outs and (why := first_opt_out(record.opt_outs)):
        return Drop(why)
    source = markup.take_out_data(markup.decode(record.body, record.charset))
    if len(source.text) > rules.max_page_bytes:
        return Drop(Reason.TOO_LARGE, f"{len(source.text)} characters without data: URIs")
    return source


def read_page(source: markup.Source, url: str, rules: WebPairRules) -> html.Page | Drop:
    """Parses the page at ``url``, or says why it is dropped."""
    tree = markup.parse(source.text, max_nesting=rules.max_nesting)
    if isinstance(tree, Drop):
        return tree
    return html.read_page(
        tree,
        url,
        max_text_chars=rules.max_text_chars,
        max_images=rules.max_images_per_page,
        ignore_opt_outs=rules.ignore_opt_outs,
        data_images=source.data_images,
    )


def detect_language(
    source: markup.Source,
    detector: LanguageDetector,
    rules: WebPairRules,
    languages: frozenset[str] | None,
) -> str | Drop:
    """Tells the language of an unparsed page if it is one of ``languages``, else why it is dropped.

    None stands for any language; "" is then that of a page that has too little text to tell.
    """
    language = page_language(
        detector,
        markup.quick_text(source.text, rules.max_language_chars),
        markup.declared_language(source.text),
        languages=languages,
        min_probability=rules.min_language_probability,
        min_chars=rules.min_language_chars,
        max_chars=rules.max_language_chars,
    )
    if languages is None and isinstance(language, Drop):
        return ""
    return language


def examining(rules: WebPairRules, filters: ImageFilters) -> AbstractContextManager[Examiner]:
    """Opens what examines images by the rules and the filters of a run."""
    return open_examiner(
        min_side_px=rules.min_side_px,
        max_pixels=rules.max_pixels,
        hashed=True,
        judge=filters.judge,
    )


def measure(
    record: Record, rules: WebPairRules, examiner: Examiner
) -> Callable[[], ArchivedImage | Drop]:
    """Returns what waits for an image's facts and its place, or for why it is dropped."""
    if not rules.ignore_opt_outs and (why := first_opt_out(record.opt_outs)):
        drop = Drop(why)
        return lambda: drop
    facts = examiner.submit(record.body)
    return lambda: locate(record, facts())


def locate(record: Record, facts: ImageFacts | Drop) -> ArchivedImage | Drop:
    """Returns an image's facts with its place; of one that is dropped the reason."""
    if isinstance(facts, Drop):
        return facts
    assert facts.phash is not None
    return ArchivedImage(
        image_id=facts.image_id,
        url=record.url,
        width=facts.width,
        height=facts.height,
        format=facts.format,
        phash=facts.phash,
        archive=record.archive,
        offset=record.offset,
    )


def read_records(
    path: str, ranges: Ranges | None, job: Job, counts: Counts
) -> Iterator[tuple[str, Record | Drop]]:
    """Yields an archive's records, or those of ``ranges``.

    What cannot be read further is counted, and ends it.
    """
    max_bytes = job.rules.max_record_bytes
    try:
        with open_archive(path, job.allowed) as file:
            if ranges is not None:
                yield from read_ranges(file, path, ranges, max_bytes=max_bytes)
            else:
                yield from read_archive(file, path, max_bytes=max_bytes)
    except BrokenArchive as error:
        counts.dropped(ARCHIVES, path, Drop(Reason.BROKEN_ARCHIVE, str(error)))
    else:
        counts.passed(ARCHIVES)


def mine(job: Job, unit: Unit) -> Result:
    """Mines one archive. Memory: one record, 4 MB of images and the rows of one run of each
    spool, and a process that decodes.
    """
    archive = job.archives[unit.number]
    ranges = job.load_ranges(archive)

    def path(kind: str) -> Path:
        return job.mined / f"{unit.name}.mined-{kind}.spool"

    with ExitStack() as stack:
        counts = stack.enter_context(open_counts(job, path("rejects")))
        spools = {kind: stack.enter_context(spool(path(kind))) for kind in SPOOLS}
        examiner = stack.enter_context(examining(job.rules, job.filters))
        miner = Miner(archive.id, job, spools, counts, examiner)
        for key, record in read_records(archive.path, ranges, job, counts):
            miner.take(key, record)
        miner.finish()
    tallies = counts.tallies
    numbers = Numbers(
        bytes=archive.size if ranges is None else int(ranges[:, 1].sum()),
        pages=tallies[PAGES.name, IN],
        pictures=tallies[IMAGES.name, IN],
    )
    return Result(
        tallies=tallies,
        metrics={"wrong_digests": miner.wrong_digests},
        about={"path": archive.path, "size": archive.size},
        numbers=numbers,
    )
