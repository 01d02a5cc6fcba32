"""Chooses a page's content images and the texts that describe them.

A candidate text of an image has named features: position, wording, agreement. Their weighted sum
is its score.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web.choice.candidates import (
    NO_BOXES,
    SOURCES,
    Candidate,
    count_boxes,
    find_candidates,
    is_named_by,
)
from vlmill.pipelines.web.choice.dominance import judge_images
from vlmill.pipelines.web.choice.joined_page import JoinedPage, ScoredText
from vlmill.pipelines.web.choice.likeness import compute_overlap, name_subject, subject, text_size
from vlmill.pipelines.web.choice.site_content import Site, find_image_blocks, row_side, sides
from vlmill.pipelines.web.pages.context import HEADINGS
from vlmill.pipelines.web.pages.page import Page, PageImage
from vlmill.pipelines.web.texts.captions import extract_caption
from vlmill.pipelines.web.texts.lists import NO_LISTS, TextLists
from vlmill.pipelines.web.texts.phrases import Phrases
from vlmill.pipelines.web.texts.sentences import ends_sentence, leads
from vlmill.runtime.net.urls import resolve
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason

# Fitted by ``benchmarks/mining.py --fit`` on labelled sites: docs/web-pairs.md lists the data, and
# the results on unseen sites.
WEIGHTS: Mapping[str, float] = {
    "bias": -0.804,
    "kind_alt": 2.079,
    "name_overlap": 1.645,
    "kind_caption": 1.611,
    "points": 1.462,
    "spoken_overlap": 1.457,
    "leads": 1.116,
    "own_box": 0.989,
    "title_overlap": 0.869,
    "label_side": 0.562,
    "heading_beside": 0.54,
    "figure_number": 0.527,
    "many_images": 0.516,
    "head_title": 0.501,
    "unended_part": 0.266,
    "unended_whole": 0.209,
    "one_word": 0.135,
    "kind_title": 0.094,
    "heading_overlap": 0.072,
    "spoken_title": 0.066,
    "label": 0.051,
    "in_row": 0.042,
    "lone_image": -0.198,
    "linked": -0.206,
    "is_question": -0.477,
    "other_block": -0.507,
    "short": -0.513,
    "kind_heading": -0.556,
    "long": -0.619,
    "head_alone": -0.638,
    "byline": -0.646,
    "off_row": -0.81,
    "kind_beside": -0.827,
    "said_elsewhere": -0.858,
    "heading_between": -0.871,
    "on_many_pages": -0.873,
    "kind_metadata": -1.066,
    "has_spoken": -1.161,
    "second_heading": -1.283,
    "kind_page_title": -1.373,
    "distance": -1.82,
}


EXPLICIT = frozenset(("alt", "title", "label", "caption"))
_SIDES = ("before", "after")
_LABEL_SIZE = 25.0  # words: a longer block is not a caption
_USUAL_SIZE = 8.0
_READ_CHARS = 400

DEFAULT_RULES = WebPairRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Holds an image among the other images and candidates of its page."""

    page: Page
    image: PageImage
    site: Site
    phrases: Phrases
    side: float  # -1 if captions are below the images on this page and site, 1 above
    row: str  # "before" or "after" if images and short texts alternate, "" elsewhere
    num_pages_with: int  # of the site, which show the image
    num_images: int  # available content images on the page
    candidates: Sequence[Candidate]


def features(candidate: Candidate, scene: Scene) -> dict[str, float]:
    """Returns features in -1..1; zeros are omitted."""
    kind: str = "alt" if candidate.kind == "label" else candidate.kind  # an alt by another name
    if kind in _SIDES:
        kind = "beside"
    values = (
        {"bias": 1.0, f"kind_{kind}": 1.0}
        | ({"kind_alt": 1.0} if kind == "title" else {})  # kind_title is the difference to alt
        | _place(candidate, scene)
        | _wording(candidate, scene.phrases)
        | _agreement(candidate, scene)
    )
    return {key: float(value) for key, value in values.items() if value}


def _place(candidate: Candidate, scene: Scene) -> dict[str, float]:
    """Returns features of the text's position: next to the image, or above it as a heading."""
    kind, between = candidate.kind, candidate.images_between > 0
    if kind in ("heading", "page_title"):
        return {
            "heading_between": kind == "heading" and between,
            "second_heading": kind == "heading" and candidate.sentences_away == 2,
            "lone_image": scene.num_images == 1,
        }
    if kind not in _SIDES:
        return {}
    sign = 1.0 if kind == "before" else -1.0
    is_heading = candidate.tag in HEADINGS
    is_label = (
        candidate.is_whole
        and not is_heading
        and candidate.sentences_away == 1
        and text_size(candidate.text) <= _LABEL_SIZE
    )
    return {
        "distance": min(1.0, (candidate.sentences_away - 1) / 4),
        "other_block": candidate.blocks_away > 1,
        "heading_beside": is_heading,
        "label": is_label,
        "label_side": sign * scene.side if is_label else 0.0,
        "in_row": kind == scene.row and candidate.sentences_away == 1,
        "off_row": bool(scene.row) and kind != scene.row,
        "own_box": candidate.own_box,
        "linked": candidate.linked,
        "many_images": min(1.0, math.log2(max(1, scene.num_images)) / 4),
    }


def _wording(candidate: Candidate, phrases: Phrases) -> dict[str, float]:
    """Returns features of the text's length, ending and wording."""
    text = candidate.text[:_READ_CHARS]
    lower = text.lower()
    is_adjacent = candidate.kind in _SIDES
    size = math.log2(max(0.25, text_size(text)) / _USUAL_SIZE)
    ended = ends_sentence(text)
    return {
        "points": phrases.points.search(lower) is not None,
        "figure_number": phrases.figure.match(lower) is not None,
        "byline": phrases.bylines.search(lower) is not None,
        "leads": is_adjacent and leads(text, candidate.kind),
        "is_question": text[-1:] in "?？؟",
        "short": min(1.0, max(0.0, -size / 4)) if is_adjacent else 0.0,
        "long": min(1.0, max(0.0, size / 4)) if is_adjacent else 0.0,
        "unended_whole": is_adjacent and candidate.is_whole and not ended,
        "unended_part": is_adjacent and not candidate.is_whole and not ended,
    }


def _agreement(candidate: Candidate, scene: Scene) -> dict[str, float]:
    """Returns features of agreement with other texts, the file name and the rest of the site."""
    text, kind, image = candidate.text, candidate.kind, scene.image
    text_subject = subject(text)
    spoken = [c.text for c in scene.candidates if c.kind in EXPLICIT]
    heads = [c.text for c in scene.candidates if c.kind == "heading"]
    by_name = compute_overlap(text_subject, name_subject(image.urls[0]))
    by_spoken = compute_overlap(text_subject, _subjects(spoken, text))
    by_head = compute_overlap(text_subject, _subjects(heads, text))
    by_title = compute_overlap(text_subject, subject(scene.page.title))
    is_spoken, is_head = kind in EXPLICIT, candidate.tag in HEADINGS and kind in _SIDES
    return {
        "name_overlap": by_name,
        "spoken_overlap": by_spoken,
        # An alt text that repeats the page's title, and a title next to the image.
        "spoken_title": max(by_head, by_title) if is_spoken else 0.0,
        "head_title": by_title if is_head else 0.0,
        "heading_overlap": 0.0 if is_spoken else by_head,
        "title_overlap": 0.0 if is_spoken or is_head or kind == "page_title" else by_title,
        "one_word": is_spoken and text.isascii() and " " not in text,
        "said_elsewhere": min(1.0, 3 * scene.site.share_with(text)),
        "has_spoken": kind in _SIDES and bool(spoken),
        "head_alone": kind == "metadata" and not by_name and not by_spoken,
        "on_many_pages": min(1.0, (scene.num_pages_with - 1) / 5),
    }


def _subjects(texts: Sequence[str], besides: str) -> frozenset[str]:
    return frozenset().union(*(subject(text) for text in texts if text != besides))


def total(values: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Returns the weighted sum of the features; a feature without a weight counts 0."""
    return sum(weights.get(name, 0.0) * value for name, value in values.items())


class Claim(NamedTuple):
    """Holds a cleaned text that an image may take, with the block that contains it."""

    text: ScoredText
    block: int  # index of a block that only one image may use; -1: any number of images


def choose(
    joined: JoinedPage,
    site: Site,
    rules: WebPairRules,
    lists: TextLists = NO_LISTS,
    *,
    weights: Mapping[str, float] = WEIGHTS,
) -> list[tuple[ScoredText, ...] | Drop]:
    """Returns each image's texts, best first, or why it has none; images are in page order.

    An image that is not content is dropped for that. An image without a text that scores at least
    ``rules.min_score`` and passes cleaning is dropped for its best text's fault. A block of text
    around images is assigned to one image only. ``weights`` are the weights of ``features``.
    """
    judged = judge_images(joined, site, rules)
    claims: dict[int, list[Claim]] = {}
    drops: list[Drop | None] = []
    for verdict, scene in zip(judged, scenes(joined, site, judged, rules, lists), strict=True):
        texts = verdict or _claims(scene, rules, lists, weights)
        drops.append(texts if isinstance(texts, Drop) else None)
        if not isinstance(texts, Drop):
            claims[scene.image.order] = texts
    owned = _owned(joined, claims)
    result: list[tuple[ScoredText, ...] | Drop] = []
    for image, drop in zip(joined.page.images, drops, strict=True):
        if drop is None and not owned[image.order]:
            lost = claims[image.order][0].text.text
            drop = Drop(Reason.LOW_SCORE, f"nearer to another image: {lost}")
        result.append(drop or owned[image.order])
    return result


def _owned(
    joined: JoinedPage, claims: Mapping[int, Sequence[Claim]]
) -> dict[int, tuple[ScoredText, ...]]:
    """Returns each image's texts without the texts that suit another image of the page better.

    Images take their best free text in the order of scores; copies of one image share theirs.
    """
    ids = {order: _image_id(joined, order) for order in claims}
    ranked = sorted(
        (-claim.text.score, order, claim.block) for order, some in claims.items() for claim in some
    )
    owners: dict[int, str] = {}
    served: set[int] = set()
    for _, order, block in ranked:
        if order in served or owners.get(block, ids[order]) != ids[order]:
            continue
        served.add(order)
        if block >= 0:
            owners[block] = ids[order]
    return {
        order: tuple(
            claim.text for claim in some if owners.get(claim.block, ids[order]) == ids[order]
        )
        for order, some in claims.items()
    }


def _image_id(joined: JoinedPage, order: int) -> str:
    image = joined.images[order]
    return "" if isinstance(image, Drop) else image.image_id


def _claims(
    scene: Scene, rules: WebPairRules, lists: TextLists, weights: Mapping[str, float]
) -> list[Claim] | Drop:
    """Returns the image's distinct texts, or the fault of the text that scores best."""
    caption = scene.image.caption
    if scene.site.is_generic(caption) and not any(c.kind in EXPLICIT for c in scene.candidates):
        return Drop(Reason.SHARED_TEXT, caption)
    measured = [(features(c, scene), c) for c in _own_texts(scene, rules, lists)]
    scored = [(probability(total(values, weights)), c, values) for values, c in measured]
    scored.sort(key=lambda one: (-one[0], one[1].text))
    short_rules = _for_surrounding(rules)
    texts: dict[str, Claim] = {}
    faults: list[Drop] = []
    for score, candidate, values in scored:
        source = SOURCES[candidate.kind]
        if score < rules.min_score:
            faults.append(Drop(Reason.LOW_SCORE, f"{score:.3f} {source}: {candidate.text}"))
            break
        text = extract_caption(
            candidate.text,
            rules if candidate.kind in EXPLICIT else short_rules,
            scene.page.language or None,
            lists,
        )
        if isinstance(text, Drop):
            faults.append(text)
        else:
            # A text that names several images may be used by each of them.
            block = -1 if is_named_by(candidate.text, scene.image) else candidate.block
            kept = values if rules.keep_texts > 1 else None
            texts.setdefault(text, Claim(ScoredText(source, text, score, kept), block))
    if not texts:
        return faults[0] if faults else Drop(Reason.NO_TEXT)
    return list(texts.values())


def _own_texts(scene: Scene, rules: WebPairRules, lists: TextLists) -> Sequence[Candidate]:
    """Returns only the image's own texts if it has a caption that passes, else all candidates.

    Other texts around an image with a caption are less precise, unless they share more words with
    the file name.
    """
    captions = [c for c in scene.candidates if c.kind == "caption"]
    language = scene.page.language or None
    if not captions or isinstance(extract_caption(captions[0].text, rules, language, lists), Drop):
        return scene.candidates
    name = name_subject(scene.image.urls[0])
    overlap = compute_overlap(subject(captions[0].text), name)
    return [
        c
        for c in scene.candidates
        if c.kind in EXPLICIT or compute_overlap(subject(c.text), name) > overlap
    ]


@cache
def _for_surrounding(rules: WebPairRules) -> WebPairRules:
    """Returns the rules for texts that are not marked as an image's own."""
    most = min(rules.max_words, max(rules.max_surrounding_words, rules.min_words))
    return replace(rules, max_words=most)


def scenes(
    joined: JoinedPage,
    site: Site,
    judged: Sequence[Drop | None],
    rules: WebPairRules = DEFAULT_RULES,
    lists: TextLists = NO_LISTS,
) -> list[Scene]:
    """Returns a scene with candidates for each image; images that are not content have none."""
    image_blocks = find_image_blocks(joined)
    above, below = sides(joined)
    above, below = above + site.above, below + site.below
    side = (above - below) / (above + below + 2)
    row = row_side(joined, side)
    phrases = lists.phrases
    judged_images = list(zip(joined.page.images, judged, strict=True))
    contents = [image for image, drop in judged_images if drop is None]
    boxes = count_boxes(joined.page, [image.path for image in contents]) if contents else NO_BOXES
    return [
        Scene(
            page=joined.page,
            image=image,
            site=site,
            phrases=phrases,
            side=side,
            row=row,
            num_pages_with=_pages_with(joined, image.order, site),
            num_images=len(contents),
            candidates=()
            if drop is not None
            else [
                candidate
                for candidate in find_candidates(
                    joined.page,
                    image,
                    image_blocks,
                    phrases,
                    is_card=_is_card(joined, image, site),
                    max_in_row=rules.max_images_in_row,
                    boxes=boxes,
                )
                if candidate.kind not in EXPLICIT or not site.is_generic(candidate.text)
            ],
        )
        for image, drop in judged_images
    ]


def _pages_with(joined: JoinedPage, order: int, site: Site) -> int:
    image = joined.images.get(order)
    return 1 if image is None or isinstance(image, Drop) else site.pages_with(image.image_id)


def _is_card(joined: JoinedPage, image: PageImage, site: Site) -> bool:
    """Returns whether the image only links to another page here, and other pages show it, too."""
    if not image.link or image.links_to_picture or _pages_with(joined, image.order, site) < 2:
        return False
    return resolve(joined.page.url, image.link) not in (None, joined.page.url)


def probability(value: float) -> float:
    """Returns the logistic function, rounded to 6 digits.

    Rounding gives the same order of texts on platforms whose exp differs in the last bit.
    """
    return round(1 / (1 + math.exp(-max(-500.0, min(500.0, value)))), 6)
