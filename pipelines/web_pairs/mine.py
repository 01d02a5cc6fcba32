"""Mines an archive or a part of one, as the first step: pages, images, and references."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from vlmill.pipelines.filters.image import ImageFilters
from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web.archives import reading
from vlmill.pipelines.web.archives.index import Ranges
from vlmill.pipelines.web.archives.wat import DESCRIPTIONS
from vlmill.pipelines.web.pages import page as html
from vlmill.pipelines.web.pages.images import (
    ArchivedImage,
    Examiner,
    ImageFacts,
    measure_header,
    open_examiner,
)
from vlmill.pipelines.web_pairs import rows
from vlmill.pipelines.web_pairs.links import LinkFollower, LinkLog, Links
from vlmill.pipelines.web_pairs.page_reader import PageReader
from vlmill.pipelines.web_pairs.sources import TABLE, WAT, Archive, Kind, describe
from vlmill.pipelines.web_pairs.spool import SpoolWriter, spool
from vlmill.pipelines.web_pairs.stages import ARCHIVES, IMAGES, INLINE_IMAGES, JOIN, PAGES, RECORDS
from vlmill.pipelines.web_pairs.table_rows import read_table
from vlmill.pipelines.web_pairs.units import Job, open_counts
from vlmill.runtime.net.opt_outs import first_opt_out, robots_signals
from vlmill.runtime.net.robots import MAX_BYTES
from vlmill.runtime.units.funnel import IN, Counts, Drop, Stage
from vlmill.runtime.units.numbers import BYTES, Numbers
from vlmill.runtime.units.unit import Result, Unit
from vlmill.schemas.rejects import Reason

SPOOLS, PART_SPOOLS = (("pages", "urls", kind, "inline") for kind in ("redirects", "links"))
DAMAGED = -1  # the beginning of a part that cannot be read from its middle
MEASURED_BYTES, MOST_MEASURED = 4 << 20, 96  # images that are measured while reading continues
INLINE = ""  # the archive of inline images, whose bytes are stored separately


class MeasuredImage(NamedTuple):
    """Holds an image that is being measured, and a function that waits for the result."""

    stage: Stage
    record: reading.Record
    wait: Callable[[], ArchivedImage | Drop]


class Miner:
    """Processes the records of one archive, and writes them to spools."""

    def __init__(
        self,
        archive: bytes,
        job: Job,
        spools: dict[str, SpoolWriter],
        links: Links,
        counts: Counts,
        examiner: Examiner,
        decoder: Examiner,
    ) -> None:
        """Sets up the spools. ``examiner`` reads image headers, ``decoder`` decodes data: URIs."""
        self._archive, self._job, self._rules = archive, job, job.rules
        self._examiner, self._decoder = examiner, decoder
        self._measured: deque[MeasuredImage] = deque()
        self._measured_bytes = 0
        self._spools, self._links, self._counts = spools, links, counts
        self._pages = PageReader(job, counts)
        self.wrong_digests = 0  # records whose digest does not match their bytes

    def take(self, key: str, record: reading.Record | Drop) -> None:
        """Processes one record, or the reason why it was dropped."""
        if isinstance(record, Drop):
            self._counts.dropped(RECORDS, key, record)
            return
        if record.digest or record.target is not None:
            self._links.add(key, record)
        if record.kind not in ("page", "picture", "robots"):
            return
        if record.kind == "robots":
            self._take_robots(key, record)
            return
        self._counts.passed(RECORDS)
        self.wrong_digests += record.wrong_digest
        if record.kind == "page":
            self._take_page(record)
        else:
            self._measure(IMAGES, record)

    def _take_page(self, record: reading.Record) -> None:
        page = self._pages.read(record)
        if page is not None:
            self._write_page(page, record.offset)

    def _write_page(self, page: html.Page, offset: int) -> None:
        """Writes a page, its requests for images, and the images that it holds."""
        for url, data in page.inline:
            self._take_inline(url, data)
        if page.num_beyond:
            # One reject for all images, or a page of 8 MiB would produce a million rejects.
            limit = self._rules.max_images_per_page
            drop = Drop(Reason.TOO_MANY, f"{page.num_beyond} images after {limit}")
            self._counts.dropped(JOIN, page.url, drop)
        page = replace(page, inline=())
        # An image whose page is unknown counts as a page of the image's host.
        host_url = page.url or page.images[0].urls[0]
        page_key = rows.page_key(host_url, self._archive, offset)
        self._spools["pages"].add(page_key[0], page_key + rows.PAGE, rows.encode(page))
        for image in page.images:
            order = image.order.to_bytes(2, "big")
            for number, url in enumerate(image.urls):
                key = rows.url_key(url)
                row = key + rows.REQUEST + page_key + order + bytes((number,))
                self._spools["urls"].add(key[0], row)

    def _take_robots(self, key: str, record: reading.Record) -> None:
        """Stores the training opt-outs of a site's archived robots.txt, for its pages."""
        text = record.body[:MAX_BYTES].decode("utf-8-sig", "replace")
        if signals := robots_signals(text):
            host = rows.page_key(record.url, self._archive, record.offset)
            self._spools["pages"].add(host[0], host + rows.ROBOTS, rows.encode(signals))
        self._counts.dropped(RECORDS, key, Drop(Reason.OTHER_TYPE, "robots.txt"))

    def _take_inline(self, url: str, data: bytes) -> None:
        record = reading.Record(archive=INLINE, offset=0, url=url, kind="picture", body=data)
        self._measure(INLINE_IMAGES, record)

    def _measure(self, stage: Stage, record: reading.Record) -> None:
        """Starts to measure an image, while the archive is read further."""
        # The bytes of images in pages are available only here.
        is_inline = stage is INLINE_IMAGES
        wait = (
            measure(record, self._rules, self._decoder, decode=True)
            if is_inline
            else measure(record, self._rules, self._examiner)
        )
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
        self._spools["urls"].add(key[0], rows.outcome_key(key, outcome), rows.encode(row))

    def finish(self) -> None:
        """Writes the remaining measured images, and the links."""
        while self._measured:
            self._take_measured()
        self._links.finish()


def examining(
    rules: WebPairRules, filters: ImageFilters, *, headers: bool = False
) -> AbstractContextManager[Examiner]:
    """Opens an examiner for full images by the rules and filters of a run, or for headers alone."""
    return open_examiner(
        min_side_px=rules.min_side_px,
        max_pixels=rules.max_pixels,
        hashed=not headers,
        headers=headers,
        blank=False,
        judge=filters if filters and not headers else None,
    )


def measure(
    record: reading.Record, rules: WebPairRules, examiner: Examiner, *, decode: bool = False
) -> Callable[[], ArchivedImage | Drop]:
    """Returns a function that waits for an image's facts and location, or for its Drop.

    The header is enough for most images; with ``decode`` an image is decoded unless its header
    rules it out.
    """
    if not rules.ignore_opt_outs and (why := first_opt_out(record.opt_outs)):
        drop = Drop(why)
        return lambda: drop
    measured = measure_header(
        record.body, min_side_px=rules.min_side_px, max_pixels=rules.max_pixels
    )
    if isinstance(measured, Drop) or (measured is not None and not decode):
        outcome = locate(record, measured)
        return lambda: outcome
    facts = examiner.submit(record.body)
    return lambda: locate(record, facts())


def locate(record: reading.Record, facts: ImageFacts | Drop) -> ArchivedImage | Drop:
    """Returns an image's facts with its location, or the reason for a dropped image."""
    if isinstance(facts, Drop):
        return facts
    return ArchivedImage(
        image_id=facts.image_id,
        url=record.url,
        width=facts.width,
        height=facts.height,
        format=facts.format,
        phash=facts.phash,
        nsfw_score=facts.nsfw_score,
        realism_score=facts.realism_score,
        archive=record.archive,
        offset=record.offset,
    )


def read_records(
    archive: Archive, ranges: Ranges | None, job: Job, counts: Counts
) -> Iterator[tuple[str, reading.Record | Drop]]:
    """Yields an archive's records, or the records of ``ranges``.

    Unreadable data is counted, and ends the archive.
    """
    path, max_bytes = archive.path, job.rules.max_record_bytes
    try:
        if archive.kind == TABLE:
            yield from read_table(path, job.columns)
        else:
            with reading.open_archive(path, job.allowed) as file:
                if ranges is not None:
                    yield from reading.read_ranges(file, path, ranges, max_bytes=max_bytes)
                else:
                    contents = choose_contents(archive.kind)
                    yield from reading.read_archive(
                        file, path, max_bytes=max_bytes, contents=contents
                    )
    except reading.BrokenArchive as error:
        counts.dropped(ARCHIVES, path, Drop(Reason.BROKEN_ARCHIVE, str(error)))
    else:
        counts.passed(ARCHIVES)


def choose_contents(kind: Kind) -> reading.Contents:
    """Returns which records of a file are read: responses, or the descriptions of a WAT file."""
    return DESCRIPTIONS if kind == WAT else reading.RESPONSES


def mine(job: Job, unit: Unit) -> Result:
    """Mines one archive, or a part of one.

    Memory: one record, 4 MB of images, the rows of one run of each spool, and a decoding process.
    """
    archive = job.archives[unit.number]
    if unit.slices:
        return mine_part(job, archive, unit)
    ranges = job.load_ranges(archive)
    result = mine_records(job, unit, partial(read_records, archive, ranges, job))
    result.numbers[BYTES] = archive.size if ranges is None else int(ranges[:, 1].sum())
    return result


def mine_part(job: Job, archive: Archive, unit: Unit) -> Result:
    """Mines the records that begin in a part of an archive.

    The record of the unit states where they begin and end. A damaged part writes empty spools and
    the begin ``DAMAGED``: only reading from the beginning of the archive shows the losses.
    """
    try:
        with reading.open_archive(archive.path, job.allowed) as file:
            part = reading.PartReader(
                file,
                archive.path,
                unit.slices,
                size=archive.size,
                max_bytes=job.rules.max_record_bytes,
                contents=choose_contents(archive.kind),
            )
            result = mine_records(job, unit, lambda _: part)
            begin, end = part.begin, part.end
    except reading.BrokenArchive:
        result, begin, end = mine_records(job, unit, lambda _: ()), DAMAGED, 0
    result.about |= {"begin": begin, "end": end}
    result.numbers[BYTES] = len(unit.slices)
    return result


Records = Iterable[tuple[str, reading.Record | Drop]]


def mine_records(job: Job, unit: Unit, read: Callable[[Counts], Records]) -> Result:
    """Mines the records that ``read`` yields into the spools of a unit."""
    archive, kinds = job.archives[unit.number], PART_SPOOLS if unit.slices else SPOOLS
    with ExitStack() as stack:
        counts = stack.enter_context(open_counts(job, job.mined_spool(unit.name, "rejects")))
        spools = {
            kind: stack.enter_context(spool(job.mined_spool(unit.name, kind))) for kind in kinds
        }
        examiner = stack.enter_context(examining(job.rules, job.filters, headers=True))
        decoder = stack.enter_context(examining(job.rules, job.filters))
        links: Links = (
            LinkLog(spools["links"]) if unit.slices else LinkFollower(spools["redirects"], counts)
        )
        miner = Miner(archive.id, job, spools, links, counts, examiner, decoder)
        for key, record in read(counts):
            miner.take(key, record)
        miner.finish()
    tallies = counts.tallies
    return Result(
        tallies=tallies,
        metrics={"wrong_digests": miner.wrong_digests},
        about=describe(archive),
        numbers=Numbers(pages=tallies[PAGES.name, IN], pictures=tallies[IMAGES.name, IN]),
    )
