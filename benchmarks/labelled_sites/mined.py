"""What mining keeps of labelled sites, and what a person would say of it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labelled_sites.labels import Label, read_labels, verdict_of
from labelled_sites.reading import by_host, joined_pages
from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web.choice.choose import choose, scenes
from vlmill.pipelines.web.choice.dominance import judge_images
from vlmill.pipelines.web.choice.features import features
from vlmill.pipelines.web.choice.joined_page import JoinedPage, TextSource
from vlmill.pipelines.web.choice.survey import Site, survey_site
from vlmill.runtime.net.urls import join_key
from vlmill.runtime.units.funnel import Drop


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A candidate text of a labelled image: its features, and whether it describes it."""

    archive: str
    features: Mapping[str, float]
    verdict: str


def read_sites(folder: Path, rules: WebPairRules) -> list[LabelledSite]:
    """Reads every labelled archive of a folder with ``labels.jsonl``."""
    labels = read_labels(folder / "labels.jsonl")
    sites = []
    for archive in sorted({label.archive for label in labels}):
        hosts = by_host(joined_pages(folder / archive, rules)).values()
        sites.append(
            LabelledSite(
                archive=archive,
                hosts=[(survey_site(pages, rules), pages) for pages in hosts],
                labels=[label for label in labels if label.archive == archive],
            )
        )
    return sites


def mine(
    site: LabelledSite, rules: WebPairRules, weights: Mapping[str, float]
) -> list[tuple[Label, Kept | None]]:
    """Each label with what is kept of its image, None for nothing.

    An image has one text, the best of all pages that show it; a text of more images than
    ``rules.max_images_per_text`` is dropped.
    """
    best: dict[str, Kept] = {}
    for surveyed, pages in site.hosts:
        for joined in pages:
            for image_id, kept in _kept(joined, surveyed, rules, weights):
                if image_id not in best or kept.score > best[image_id].score:
                    best[image_id] = kept
    uses = Counter(kept.text.casefold() for kept in best.values())
    outcomes: list[tuple[Label, Kept | None]] = []
    for label in site.labels:
        pairs = [best[i] for i in _image_ids(site, label) if i in best]
        pair = max(pairs, key=lambda one: one.score, default=None)
        if pair is not None and uses[pair.text.casefold()] > rules.max_images_per_text:
            pair = None
        outcomes.append((label, pair))
    return outcomes


def _kept(
    joined: JoinedPage, site: Site, rules: WebPairRules, weights: Mapping[str, float]
) -> list[tuple[str, Kept]]:
    """(image id, its best text on this page)."""
    pairs = []
    for choice in choose(joined, site, rules, weights=weights):
        if isinstance(choice, Drop):
            continue
        image = joined.images[choice.order]
        assert not isinstance(image, Drop)
        best = choice.texts[0]
        pairs.append((image.image_id, Kept(best.score, best.text, best.source)))
    return pairs


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
