"""Mining costs hours by the archives' bytes; what comes out is unknown until it is mined."""

from collections.abc import Iterator, Sequence

from vlmill.pipelines.counting.funnel import Drop
from vlmill.pipelines.pages import dominant, warc
from vlmill.pipelines.pages.pictures import examine_picture
from vlmill.pipelines.pages.warc import open_archive
from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.texts.language import LanguageDetector, page_language
from vlmill.pipelines.web_pairs.steps_pages import read_page
from vlmill.schemas.console.cost import Estimate, Rate, measured_rate

MEGABYTE = 1e6


def measure(archives: Sequence[tuple[str, int]], rules: WebPairRules) -> Rate:
    """The megabytes of archives per second, by the first records of the first archives.

    What each record costs alone is done: parsing, language and dominance of pages, measuring of
    pictures.
    """
    return measured_rate(_megabytes(archives, rules), "MB", weight=float)


def _megabytes(archives: Sequence[tuple[str, int]], rules: WebPairRules) -> Iterator[float]:
    """Goes on by a record, and yields how far that was in its archive."""
    detector = LanguageDetector()
    for path, size in archives:
        at = 0
        try:
            with open_archive(path) as file:
                for _, record in warc.read_archive(file, path, max_bytes=rules.max_record_bytes):
                    if isinstance(record, Drop):
                        continue
                    _examine(record, rules, detector)
                    yield (record.offset - at) / MEGABYTE
                    at = record.offset
        except warc.BrokenArchive:
            continue  # the run counts it among the rejects
        yield (size - at) / MEGABYTE


def _examine(record: warc.Record, rules: WebPairRules, detector: LanguageDetector) -> None:
    if record.kind == "picture":
        examine_picture(record.body, min_side_px=rules.min_side_px, max_pixels=rules.max_pixels)
        return
    page = read_page(record, rules)
    if isinstance(page, Drop):
        return
    language = page_language(
        detector,
        page.text,
        page.declared_language,
        language=rules.language,
        min_probability=rules.min_language_probability,
        min_chars=rules.min_language_chars,
        max_chars=rules.max_language_chars,
    )
    if not isinstance(language, Drop):
        dominant.judge_images(page, rules)


def estimate_of(archives: Sequence[tuple[str, int]], rate: Rate) -> Estimate:
    """The cost of all archives at that rate."""
    megabytes = sum(size for _, size in archives) / MEGABYTE
    return Estimate(
        inputs={"--warc": f"{len(archives):,} archives, {megabytes:,.1f} MB"},
        seconds=rate.seconds_for(megabytes),
        rate=rate,
        note="time of one process, without joining and writing; divide by Beam's workers",
    )
