"""Joins images with their pages, by ranges of URLs, and texts with images, by ranges of hosts."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, groupby
from pathlib import Path

from vlmill.pipelines.web.choice.choose import choose
from vlmill.pipelines.web.choice.joined_page import JoinedPage, ScoredText
from vlmill.pipelines.web.choice.site_content import Site, count_site_content
from vlmill.pipelines.web.pages.images import ArchivedImage
from vlmill.pipelines.web.pages.page import Page, PageImage
from vlmill.pipelines.web.texts.language import LanguageDetector, caption_language
from vlmill.pipelines.web_pairs import rows
from vlmill.pipelines.web_pairs.exclude import Exclusions
from vlmill.pipelines.web_pairs.pair import Pair, with_others
from vlmill.pipelines.web_pairs.spool import (
    Row,
    SpoolFiles,
    SpoolWriter,
    Tape,
    read_slices,
    sorted_rows,
    spool,
)
from vlmill.pipelines.web_pairs.stages import DOMINANT, JOIN, TEXTS
from vlmill.pipelines.web_pairs.units import Job, open_counts
from vlmill.runtime.net.opt_outs import signals_forbid
from vlmill.runtime.units.funnel import Counts, Drop, Stage
from vlmill.runtime.units.unit import Result, Unit
from vlmill.schemas.rejects import Reason

# An image's reject reason shows the stage: before it is joined, or when its texts are chosen.
AT_JOIN = frozenset((Reason.BAD_URL, Reason.MISSING_IMAGE, Reason.REJECTED_IMAGE, Reason.NO_AI))
AT_TEXTS = frozenset(
    (
        *(Reason.NO_TEXT, Reason.BOILERPLATE, Reason.TOO_SHORT, Reason.TOO_LONG),
        *(Reason.NOT_A_SENTENCE, Reason.NOT_WORDS, Reason.REPETITIVE, Reason.BLOCKED_WORD),
        *(Reason.FILE_NAME, Reason.CAPITALS, Reason.PUNCTUATION, Reason.UNBALANCED),
        *(Reason.UNKNOWN_WORDS, Reason.PERSONAL_DATA, Reason.DUPLICATE, Reason.LOW_SCORE),
        *(Reason.OTHER_LANGUAGE, Reason.SHARED_TEXT),
    )
)


def follow_redirects(job: Job, unit: Unit) -> Result:
    """Writes the facts of a redirect's target under the redirect's URL, too."""
    redirects = job.spools("mined-redirects", unit.slices)
    urls = job.spools("mined-urls", unit.slices)
    with spool(job.joins / f"{unit.name}.forwarded.spool") as forwarded, SpoolFiles() as files:
        for slice_, stream in read_slices(redirects, unit.slices):
            edges = peekable(stream)
            if edges is not None:
                forward_slice(edges, sorted_rows(urls, slice_, files=files), forwarded)
    return Result()


def peekable(stream: Iterator[Row]) -> Iterator[Row] | None:
    """Returns the stream, or None for one without a row."""
    first = next(stream, None)
    return None if first is None else chain((first,), stream)


def forward_slice(edges: Iterable[Row], urls: Iterable[Row], forwarded: SpoolWriter) -> None:
    """Copies the best fact of each target to the URLs that redirect there; inputs are sorted."""
    facts = (
        (key[: rows.KEY], key[rows.KEY :], value)
        for key, value in urls
        if key[rows.KEY : rows.KEY + 1] == rows.FACT
    )
    target, suffix, value = next(facts, (b"", b"", b""))
    for key, _ in edges:
        while target and target < key[: rows.KEY]:
            # Later facts of one URL are worse, so only the first one is compared.
            target, suffix, value = next(facts, (b"", b"", b""))
        if target == key[: rows.KEY]:
            source = key[rows.KEY :]
            forwarded.add(source[0], source + suffix, value)


def join_urls(job: Job, unit: Unit) -> Result:
    """Joins the facts of a URL with every page that refers to it; writes a spool by hosts.

    A URL that a million pages refer to is streamed like any other: its image comes first.
    """
    paths = [*job.spools("mined-urls", unit.slices), *job.join_spools("follow", "forwarded")]
    kept_out = job.excluded
    with (
        spool(job.joins / f"{unit.name}.matches.spool") as matches,
        spool(job.joins / f"{unit.name}.excluded.spool") as excluded,
    ):
        for _, stream in read_slices(paths, unit.slices):
            join_slice(record_excluded(stream, kept_out, excluded), matches)
    return Result()


def record_excluded(stream: Iterable[Row], excluded: Exclusions, ids: SpoolWriter) -> Iterator[Row]:
    """Passes rows on, and records the ids of images under excluded URLs.

    The same images may have other URLs, too.
    """
    for row in stream:
        key, value = row
        if key[rows.KEY : rows.KEY + 1] == rows.FACT and excluded.has_url(key[: rows.KEY]):
            image = rows.fact(value).image
            if image is not None:
                ids.add(0, image.image_id.encode())
        yield row


def join_slice(stream: Iterable[Row], matches: SpoolWriter) -> None:
    """Gives each page that refers to a URL the best fact of that URL; rows are sorted."""
    url_key, rank, value = b"", b"", b""
    for key, content in stream:
        if key[rows.KEY : rows.KEY + 1] == rows.FACT:
            if key[: rows.KEY] != url_key:  # the first fact of a URL is its best
                url_key, rank, value = key[: rows.KEY], key[rows.KEY + 1 :], content
        elif key[: rows.KEY] == url_key:
            request = key[rows.KEY + 1 :]
            # Among equals the URL that the page names first wins: its number follows the rank in
            # the key.
            page, order, number = request[: rows.PLACE], request[rows.PLACE : -1], request[-1:]
            matches.add(page[0], page + rows.MATCH + order + rank + number, value)


def choose_texts(job: Job, unit: Unit) -> Result:
    """Chooses images and texts, host by host: writes a spool of candidates by images.

    Each host's pages are read twice: to count the content of the site, then to choose. Memory: one
    page, and the rows of small hosts.
    """
    paths = [*job.spools("mined-pages", unit.slices), *job.join_spools("join", "matches")]
    with ExitStack() as stack:
        counts = stack.enter_context(open_counts(job, job.joins / f"{unit.name}.rejects.spool"))
        writer = stack.enter_context(spool(job.joins / f"{unit.name}.candidates.spool"))
        chooser = Chooser(job, counts, writer)
        for _, stream in read_slices(paths, unit.slices):
            for _, host in groupby(stream, key=lambda row: row[0][: rows.KEY]):
                choose_of_host(host, job.joins, chooser)
    return Result(tallies=counts.tallies)


def choose_of_host(stream: Iterable[Row], folder: Path, chooser: "Chooser") -> None:
    """Surveys the pages of one host and chooses from them; keeps large hosts on disk."""
    tape, repeats = Tape(folder), chooser.rules.max_repeats_on_page
    signals: list[tuple[str, bool]] = []
    try:
        site = count_site_content(join_pages(stream, tape.add, repeats, signals), chooser.rules)
        for joined in join_pages(tape, None, repeats, []):
            if chooser.is_forbidden(joined, signals):
                chooser.refuse(joined)
            else:
                chooser.take(joined, site)
    finally:
        tape.close()


def join_pages(
    stream: Iterable[Row],
    keep: Callable[[Row], None] | None,
    most_repeats: int,
    signals: list[tuple[str, bool]],
) -> Iterator[JoinedPage]:
    """Yields pages with the best available image for each image position.

    The training opt-outs of the host's robots.txt are added to ``signals``.
    """
    for _, group in groupby(stream, key=lambda row: row[0][: rows.PLACE]):
        page: Page | None = None
        outcomes: dict[int, list[ArchivedImage | Drop]] = {}
        for row in group:
            if keep is not None:
                keep(row)
            key, value = row
            if key[rows.PLACE : rows.PLACE + 1] == rows.PAGE:
                page = rows.page(value)
                continue
            if key[rows.PLACE : rows.PLACE + 1] == rows.ROBOTS:
                signals += rows.signals(value)
                continue
            order = int.from_bytes(key[rows.PLACE + 1 : rows.PLACE + 3], "big")
            outcomes.setdefault(order, []).append(rows.fact(value).outcome)
        if page is None:
            assert not outcomes, "a match without a page"
            continue
        yield JoinedPage(page=page, images=select_images(outcomes, most_repeats))


def select_images(
    outcomes: Mapping[int, Sequence[ArchivedImage | Drop]], most_repeats: int
) -> dict[int, ArchivedImage | Drop]:
    """Returns the image of each position: the first, and so the largest, image under its URLs.

    A placeholder that many positions have until a script loads them is skipped if another image is
    available.
    """
    counts = Counter(
        image_id
        for images in outcomes.values()
        for image_id in {p.image_id for p in images if not isinstance(p, Drop)}
    )
    return {
        order: min(images, key=lambda image: _stands_in(image, counts, most_repeats))
        for order, images in outcomes.items()
    }


def _stands_in(image: ArchivedImage | Drop, counts: Counter[str], most_repeats: int) -> int:
    """Returns 0 for a distinct image, 1 for one that too many positions have, 2 for a Drop."""
    return 2 if isinstance(image, Drop) else int(counts[image.image_id] > most_repeats)


class Chooser:
    """Chooses from pages one by one, and writes candidates."""

    def __init__(self, job: Job, counts: Counts, candidates: SpoolWriter) -> None:
        self.rules, self._lists = job.rules, job.lists
        self._detector = LanguageDetector(job.rules.language_detector)
        self._counts, self._candidates = counts, candidates

    def is_forbidden(self, joined: JoinedPage, signals: Sequence[tuple[str, bool]]) -> bool:
        """Returns whether the host's robots.txt forbids training on a page and is obeyed."""
        return not self.rules.ignore_opt_outs and signals_forbid(signals, page_address(joined.page))

    def refuse(self, joined: JoinedPage) -> None:
        """Drops the images of a page because its host's robots.txt forbids training."""
        drop = Drop(Reason.NO_AI, "by the site's robots.txt")
        for image in joined.page.images:
            self._drop(image_key(joined.page, image), drop)

    def take(self, joined: JoinedPage, site: Site) -> None:
        """Chooses from a page; each of its images becomes a candidate or a reject."""
        choices = choose(joined, site, self.rules, self._lists)
        for image, choice in zip(joined.page.images, choices, strict=True):
            if isinstance(choice, Drop):
                self._drop(image_key(joined.page, image), choice)
                continue
            archived = joined.images[image.order]
            assert isinstance(archived, ArchivedImage), "a choice without an image"
            for stage in (JOIN, DOMINANT, TEXTS):
                self._counts.passed(stage)
            texts = self._in_language(choice, joined.page.language)
            if isinstance(texts, Drop):
                self._drop(f"{joined.page.url} {image.src}".lstrip(), texts)
                continue
            pairs = [
                Pair(
                    image=archived,
                    text=text.text,
                    text_source=text.source,
                    score=text.score,
                    language=joined.page.language,
                    page_url=joined.page.url,
                    license=joined.page.license,
                    features=None if text.features is None else dict(text.features),
                )
                for text in texts
            ]
            others = (pair.as_other() for pair in pairs[1:])
            candidate = with_others(pairs[0], others, self.rules.keep_texts - 1)
            rank = rows.candidate_key(candidate)
            self._candidates.add(rank[0], rank, rows.encode(candidate))

    def _in_language(
        self, choice: Sequence[ScoredText], language: str
    ) -> Sequence[ScoredText] | Drop:
        """Returns the best texts in the page's language, best first, up to the number to keep.

        Without one, returns why the best text is in another language.
        """
        if not language:
            return choice[: self.rules.keep_texts]
        texts: list[ScoredText] = []
        drops: list[Drop] = []
        for text in choice:
            drop = caption_language(self._detector, text.text, language=language)
            if drop is None:
                texts.append(text)
            else:
                drops.append(drop)
            if len(texts) == self.rules.keep_texts:
                break
        return texts or drops[0]

    def _drop(self, key: str, drop: Drop) -> None:
        for stage in stages_before(drop.reason):
            self._counts.passed(stage)
        self._counts.dropped(get_stage(drop.reason), key, drop)


def page_address(page: Page) -> str:
    """Returns the page's URL, or the image's URL for an unknown page."""
    return page.url or page.images[0].urls[0]


def image_key(page: Page, image: PageImage) -> str:
    """Returns the key of a reject: the page's URL, if known, and the image's."""
    return f"{page.url} {image.urls[0] if image.urls else image.src}".lstrip()


def get_stage(reason: Reason) -> Stage:
    """Returns the stage that drops an image of a page for this reason."""
    return JOIN if reason in AT_JOIN else TEXTS if reason in AT_TEXTS else DOMINANT


def stages_before(reason: Reason) -> tuple[Stage, ...]:
    """Returns the stages that the image has already passed."""
    stages = (JOIN, DOMINANT, TEXTS)
    return stages[: stages.index(get_stage(reason))]
