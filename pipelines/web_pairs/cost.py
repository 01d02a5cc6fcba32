"""Estimates mining hours from the archives' bytes; the number of pairs is unknown before mining."""

from collections.abc import Iterator, Sequence

from vlmill.pipelines.filters.image import ImageFilters
from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web.archives import reading
from vlmill.pipelines.web.pages.described import RowPage
from vlmill.pipelines.web.pages.images import Examiner
from vlmill.pipelines.web.texts.language import LanguageDetector, parse_languages
from vlmill.pipelines.web_pairs.mine import choose_contents, examining
from vlmill.pipelines.web_pairs.mine import measure as measure_image
from vlmill.pipelines.web_pairs.page_reader import decode_source, detect_language, read_page
from vlmill.pipelines.web_pairs.sources import TABLE, WARC, WAT, Kind, SourceFile
from vlmill.pipelines.web_pairs.table_rows import NO_COLUMNS, TableColumns, read_table
from vlmill.runtime.console.cost import Estimate, Rate, measure_rate
from vlmill.runtime.units.funnel import Drop

MEGABYTE = 1e6


def measure(
    archives: Sequence[SourceFile],
    rules: WebPairRules,
    allowed: Sequence[str] = (),
    columns: TableColumns = NO_COLUMNS,
) -> Rate:
    """Measures the megabytes of archives per second on the first records of the first archives.

    Only the expensive work is measured: parsing pages, detecting their language, measuring images.
    A row of a table counts as many bytes as its texts have.
    """
    with examining(rules, ImageFilters()) as examiner:
        steps = _megabytes(archives, rules, allowed, columns, examiner)
        return measure_rate(steps, "MB", weight=float)


def _megabytes(
    archives: Sequence[SourceFile],
    rules: WebPairRules,
    allowed: Sequence[str],
    columns: TableColumns,
    examiner: Examiner,
) -> Iterator[float]:
    """Processes one record per step, and yields by how many megabytes that advanced."""
    detector, languages = LanguageDetector(rules.language_detector), parse_languages(rules.language)
    for archive in archives:
        last_position = 0
        try:
            for position, record in _read(archive, rules, allowed, columns):
                _examine(record, rules, examiner, detector, languages)
                yield (position - last_position) / MEGABYTE
                last_position = position
        except reading.BrokenArchive:
            continue  # the run counts it among the rejects
        yield max(0, archive.size - last_position) / MEGABYTE


def _read(
    archive: SourceFile, rules: WebPairRules, allowed: Sequence[str], columns: TableColumns
) -> Iterator[tuple[int, reading.Record]]:
    """Yields (position in bytes, record) of a file's records, without the dropped records."""
    path, max_bytes = archive.path, rules.max_record_bytes
    if archive.kind == TABLE:
        position = 0
        for _, row in read_table(path, columns):
            if not isinstance(row, Drop) and isinstance(row.described, RowPage):
                position += len(row.described.image_url) + len(row.described.text)
                yield position, row
        return
    with reading.open_archive(path, allowed) as file:
        contents = choose_contents(archive.kind)
        for _, record in reading.read_archive(file, path, max_bytes=max_bytes, contents=contents):
            if not isinstance(record, Drop):
                yield record.offset, record


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
    if record.described is not None:
        if not isinstance(record.described.find_language(detector, rules, languages), Drop):
            record.described.read_page(rules)
        return
    source = decode_source(record, rules)
    if isinstance(source, Drop):
        return
    if not isinstance(detect_language(source, detector, rules, languages), Drop):
        read_page(source, record.url, rules)


def estimate_cost(archives: Sequence[SourceFile], rate: Rate) -> Estimate:
    """Returns the cost of all archives at that rate."""
    sizes: dict[Kind, list[float]] = {}
    for archive in archives:
        sizes.setdefault(archive.kind, []).append(archive.size / MEGABYTE)
    words: dict[Kind, str] = {WARC: "archives", WAT: "archives", TABLE: "tables"}
    return Estimate(
        inputs={
            f"--{kind}": f"{len(each):,} {words[kind]}, {sum(each):,.1f} MB"
            for kind, each in sizes.items()
        },
        seconds=rate.seconds_for(sum(map(sum, sizes.values()))),
        rate=rate,
        note="time of one process, without joining and writing; divide by --workers",
    )
