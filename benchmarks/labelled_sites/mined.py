"""Mines labelled sites, and compares the selected texts with the labels."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labelled_sites.labels import Label, verdict_of
from labelled_sites.reading import by_host, joined_pages
from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web.choice.choose import choose, features, scenes
from vlmill.pipelines.web.choice.dominance import judge_images
from vlmill.pipelines.web.choice.joined_page import JoinedPage, TextSource
from vlmill.pipelines.web.choice.site_content import Site, count_site_content
from vlmill.runtime.net.urls import join_key
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason


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
