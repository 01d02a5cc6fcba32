"""Mines labelled sites, and compares the selected texts with the labels."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from msgspec.structs import replace
from sklearn.linear_model import LogisticRegression

from labelled_sites.labels import Label, verdict_of
from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web.archives.reading import Record, read_archive
from vlmill.pipelines.web.choice.choose import choose, features, scenes
from vlmill.pipelines.web.choice.dominance import judge_images
from vlmill.pipelines.web.choice.joined_page import JoinedPage, Measured, TextSource
from vlmill.pipelines.web.choice.site_content import Site, count_site_content
from vlmill.pipelines.web.pages.images import examine_image
from vlmill.pipelines.web.pages.page import Page
from vlmill.pipelines.web.texts.language import LanguageDetector, parse_languages
from vlmill.pipelines.web_pairs.page_reader import decode_source, detect_language, read_page
from vlmill.runtime.net.urls import join_key
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledSite:
    """An archive, surveyed host by host, and the labels of its images."""

    archive: str
    hosts: Sequence[tuple[Site, Sequence[JoinedPage]]]
    labels: Sequence[Label]


@dataclass(frozen=True, slots=True)
class Kept:
    """An image's best text over all pages of its site."""

    score: float
    text: str
    source: TextSource


@dataclass(frozen=True, slots=True)
class Outcome:
    """A label, what is kept of its image, and why nothing is."""

    label: Label
    kept: Kept | None
    reason: str = ""  # of a reject, or ``absent``: the page does not show the image

    @property
    def text(self) -> str | None:
        """The kept text."""
        return self.kept.text if self.kept else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A candidate text of a labelled image: its features, and whether it describes it."""

    archive: str
    features: Mapping[str, float]
    verdict: str


def read_sites(
    labels: Sequence[Label], folders: Sequence[Path], rules: WebPairRules
) -> list[LabelledSite]:
    """Reads the labelled archives, each from the first folder that has it.

    An archive that no folder has is left out, with its labels.
    """
    sites = []
    for archive in sorted({label.archive for label in labels}):
        path = next((p for folder in folders if (p := folder / archive).is_file()), None)
        if path is None:
            continue
        hosts = by_host(joined_pages(path, rules)).values()
        sites.append(
            LabelledSite(
                archive=archive,
                hosts=[(count_site_content(pages, rules), pages) for pages in hosts],
                labels=[label for label in labels if label.archive == archive],
            )
        )
    return sites


def mine(site: LabelledSite, rules: WebPairRules, weights: Mapping[str, float]) -> list[Outcome]:
    """Each label with what is kept of its image, or why nothing is.

    An image has one text, the best of all pages that show it; a text of more images than
    ``rules.max_images_per_text`` is dropped.
    """
    best: dict[str, Kept] = {}
    drops: dict[tuple[str, str], str] = {}
    for surveyed, pages in site.hosts:
        for joined in pages:
            choices = choose(joined, surveyed, rules, weights=weights)
            for image, choice in zip(joined.page.images, choices, strict=True):
                if isinstance(choice, Drop):
                    drops |= {(joined.page.url, join_key(u)): choice.reason for u in image.urls}
                    continue
                archived, text = joined.images[image.order], choice[0]
                assert not isinstance(archived, Drop)
                kept = best.get(archived.image_id)
                if kept is None or text.score > kept.score:
                    best[archived.image_id] = Kept(text.score, text.text, text.source)
    uses = Counter(kept.text.casefold() for kept in best.values())
    outcomes = []
    for label in site.labels:
        pairs = [best[i] for i in _image_ids(site, label) if i in best]
        pair = max(pairs, key=lambda one: one.score, default=None)
        if pair is None:
            key = (label.page_url, join_key(label.image_url))
            outcomes.append(Outcome(label, None, drops.get(key, "absent")))
        elif uses[pair.text.casefold()] > rules.max_images_per_text:
            outcomes.append(Outcome(label, None, Reason.SHARED_TEXT))
        else:
            outcomes.append(Outcome(label, pair))
    return outcomes


def _image_ids(site: LabelledSite, label: Label) -> set[str]:
    """Ids of what the labelled page shows under the label's address."""
    key = join_key(label.image_url)
    return {
        archived.image_id
        for _, pages in site.hosts
        for joined in pages
        if joined.page.url == label.page_url
        for image in joined.page.images
        if key in map(join_key, image.urls)
        and (archived := joined.images.get(image.order)) is not None
        and not isinstance(archived, Drop)
    }


def examples(site: LabelledSite, rules: WebPairRules) -> list[Example]:
    """The candidates of the site's labelled images, of each on its labelled page."""
    made = []
    for surveyed, pages in site.hosts:
        for joined in pages:
            labels = [label for label in site.labels if label.page_url == joined.page.url]
            if not labels:
                continue
            judged = judge_images(joined, surveyed, rules)
            seen = scenes(joined, surveyed, judged)
            for label in labels:
                key = join_key(label.image_url)
                scene = next(
                    (s for s in seen if s.candidates and key in map(join_key, s.image.urls)), None
                )
                for candidate in scene.candidates if scene else ():
                    made.append(
                        Example(
                            archive=site.archive,
                            features=features(candidate, scene) if scene else {},
                            verdict=verdict_of(candidate.text, label),
                        )
                    )
    return made


STRENGTH = 0.3  # inverse of the L2 penalty, as scikit-learn counts it
# A text that nobody judged stood farther away than those that were: mostly it does not describe.
SAMPLE_WEIGHTS = {"right": 1.0, "wrong": 1.0, "not_judged": 0.7}


def fit_weights(examples: Sequence[Example]) -> dict[str, float]:
    """Weights by feature, rounded to 3 digits; what a person was unsure of is left out."""
    judged = [example for example in examples if example.verdict in SAMPLE_WEIGHTS]
    names = sorted({name for example in judged for name in example.features} - {"bias"})
    rows = np.array([[example.features.get(name, 0.0) for name in names] for example in judged])
    model = LogisticRegression(C=STRENGTH, max_iter=5_000)
    model.fit(
        rows,
        [example.verdict == "right" for example in judged],
        sample_weight=[SAMPLE_WEIGHTS[example.verdict] for example in judged],
    )
    pairs = zip(names, model.coef_[0], strict=True)
    weights = {name: round(float(value), 3) for name, value in pairs}
    return {"bias": round(float(model.intercept_[0]), 3)} | weights


def weights_source(weights: Mapping[str, float]) -> str:
    """The weights as ``pipelines/web/choice/choose.py`` has them, the largest first."""
    ordered = sorted(weights.items(), key=lambda item: (item[0] != "bias", -item[1], item[0]))
    lines = "".join(f'    "{name}": {value},\n' for name, value in ordered)
    return f"WEIGHTS: Mapping[str, float] = {{\n{lines}}}\n"
