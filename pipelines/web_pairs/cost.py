"""Estimates mining hours from the archives' bytes; the number of pairs is unknown before mining."""

from collections.abc import Iterator, Sequence

from vlmill.pipelines.filters.image import ImageFilters
from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web.archives import reading
from vlmill.pipelines.web.pages.images import Examiner
from vlmill.pipelines.web.texts.language import LanguageDetector, parse_languages
from vlmill.pipelines.web_pairs.mine import (
    decode_source,
    detect_language,
    examining,
    read_page,
)
from vlmill.pipelines.web_pairs.mine import measure as measure_image
from vlmill.runtime.console.cost import Estimate, Rate, measure_rate
from vlmill.runtime.units.funnel import Drop

MEGABYTE = 1e6


def measure(
    archives: Sequence[tuple[str, int]], rules: WebPairRules, allowed: Sequence[str] = ()
) -> Rate:
    """Measures the megabytes of archives per second on the first records of the first archives.

    Only the expensive work is measured: parsing pages, detecting their language, measuring images.
    """
    with examining(rules, ImageFilters()) as examiner:
        return measure_rate(_megabytes(archives, rules, allowed, examiner), "MB", weight=float)


def _megabytes(
    archives: Sequence[tuple[str, int]],
    rules: WebPairRules,
    allowed: Sequence[str],
    examiner: Examiner,
) -> Iterator[float]:
    """Processes one record per step, and yields by how many megabytes that advanced."""
    detector, languages = LanguageDetector(rules.language_detector), parse_languages(rules.language)
    for path, size in archives:
        last_offset = 0
        try:
            with reading.open_archive(path, allowed) as file:
                for _, record in reading.read_archive(file, path, max_bytes=rules.max_record_bytes):
                    if isinstance(record, Drop):
                        continue
                    _examine(record, rules, examiner, detector, languages)
                    yield (record.offset - last_offset) / MEGABYTE
                    last_offset = record.offset
        except reading.BrokenArchive:
            continue  # the run counts it among the rejects
        yield (size - last_offset) / MEGABYTE


def _examine(
    record: reading.Record,
    rules: WebPairRules,
    examiner: Examiner,
    detector: LanguageDetector,
    languages: frozenset[str] | None,
) -> None:
    if record.kind == "picture":
        measure_image(record, rules, examiner)()
        return
    if record.kind != "page":
        return
    source = decode_source(record, rules)
    if isinstance(source, Drop):
        return
    if not isinstance(detect_language(source, detector, rules, languages), Drop):
        read_page(source, record.url, rules)


def estimate_cost(archives: Sequence[tuple[str, int]], rate: Rate) -> Estimate:
    """Returns the cost of all archives at that rate."""
    megabytes = sum(size for _, size in archives) / MEGABYTE
    return Estimate(
        inputs={"--warc": f"{len(archives):,} archives, {megabytes:,.1f} MB"},
        seconds=rate.seconds_for(megabytes),
        rate=rate,
        note="time of one process, without joining and writing; divide by --workers",
    )
