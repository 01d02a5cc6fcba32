"""Reads the page in a record, or the page that it only describes, and counts why one is dropped."""

from msgspec.structs import replace

from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web.archives.reading import Record
from vlmill.pipelines.web.pages import markup
from vlmill.pipelines.web.pages.described import Description
from vlmill.pipelines.web.pages.page import Page
from vlmill.pipelines.web.pages.page import read_page as parse_page
from vlmill.pipelines.web.texts.language import LanguageDetector, page_language, parse_languages
from vlmill.pipelines.web_pairs.stages import LANGUAGE, PAGES, PARSE
from vlmill.pipelines.web_pairs.units import Job
from vlmill.runtime.net.opt_outs import first_opt_out
from vlmill.runtime.units.funnel import Counts, Drop
from vlmill.schemas.rejects import Reason


class PageReader:
    """Reads pages by the rules of a job."""

    def __init__(self, job: Job, counts: Counts) -> None:
        self._rules, self._blocked, self._counts = job.rules, job.blocked_pages, counts
        self._detector = LanguageDetector(job.rules.language_detector)
        self._languages = parse_languages(job.rules.language)

    def read(self, record: Record) -> Page | None:
        """Returns the page of a record, with its language; None for one that is dropped."""
        description = record.described
        address = record.url if description is None else description.address
        if entry := self._blocked.find_block(address):
            self._counts.dropped(PAGES, record.key, Drop(Reason.EXCLUDED, f"blocked: {entry}"))
            return None
        if description is None:
            return self._parse(record)
        return self._describe(record, description)

    def _parse(self, record: Record) -> Page | None:
        """Returns the page in a record, with its language; None for one that is dropped."""
        source = decode_source(record, self._rules)
        if isinstance(source, Drop):
            self._counts.dropped(PAGES, record.url, source)
            return None
        self._counts.passed(PAGES)
        # Before the page is parsed, which takes longer than detecting its language.
        language = detect_language(source, self._detector, self._rules, self._languages)
        if isinstance(language, Drop):
            self._counts.dropped(LANGUAGE, record.url, language)
            return None
        self._counts.passed(LANGUAGE)
        page = read_page(source, record.url, self._rules)
        return self._with_language(record.url, page, language)

    def _describe(self, record: Record, description: Description) -> Page | None:
        """Returns the page that a record describes, with its language; None if it is dropped."""
        why = None if self._rules.ignore_opt_outs else first_opt_out(record.opt_outs)
        if why is None and not description.has_images:
            why = Reason.NO_IMAGES
        if why is not None:
            self._counts.dropped(PAGES, record.key, Drop(why))
            return None
        self._counts.passed(PAGES)
        language = description.find_language(self._detector, self._rules, self._languages)
        if isinstance(language, Drop):
            self._counts.dropped(LANGUAGE, record.key, language)
            return None
        self._counts.passed(LANGUAGE)
        return self._with_language(record.key, description.read_page(self._rules), language)

    def _with_language(self, key: str, page: Page | Drop, language: str) -> Page | None:
        if isinstance(page, Drop):
            self._counts.dropped(PARSE, key, page)
            return None
        self._counts.passed(PARSE)
        return replace(page, language=language)


def decode_source(record: Record, rules: WebPairRules) -> markup.Source | Drop:
    """Decodes a page's bytes, or returns why it is dropped."""
    if not markup.mentions_image(record.body):
        return Drop(Reason.NO_IMAGES)
    if not rules.ignore_opt_outs and (why := first_opt_out(record.opt_outs)):
        return Drop(why)
    source = markup.take_out_data(markup.decode(record.body, record.charset))
    if len(source.text) > rules.max_page_bytes:
        return Drop(Reason.TOO_LARGE, f"{len(source.text)} characters without data: URIs")
    return source


def read_page(source: markup.Source, url: str, rules: WebPairRules) -> Page | Drop:
    """Parses the page at ``url``, or returns why it is dropped."""
    tree = markup.parse(source.text, max_nesting=rules.max_nesting)
    if isinstance(tree, Drop):
        return tree
    return parse_page(
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
    """Returns the language of an unparsed page if it is in ``languages``, else why it is dropped.

    None accepts any language; the result is then "" for a page with too little text to detect one.
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
