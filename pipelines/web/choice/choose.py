"""Chooses a page's content images and the texts that describe them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from vlmill.pipelines.web.choice.features import EXPLICIT, Scene, features, total
from vlmill.pipelines.web.choice.joined_page import Choice, JoinedPage, ScoredText
from vlmill.pipelines.web.choice.likeness import compute_overlap, name_subject, subject
from vlmill.pipelines.web.choice.site_content import Site, find_image_blocks, row_side, sides
from vlmill.pipelines.web.choice.weights import WEIGHTS
from vlmill.pipelines.web.pages.page import PageImage
from vlmill.pipelines.web.texts.captions import extract_caption
from vlmill.pipelines.web.texts.lists import NO_LISTS, TextLists
from vlmill.runtime.net.urls import resolve
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason

DEFAULT_RULES = WebPairRules()


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
) -> list[Choice | Drop]:
    """Returns each image's texts, best first, or why it has none; images are in page order.

    An image that is not content is dropped for that. An image without a text that scores at least
    ``rules.min_score`` and passes cleaning is dropped for its best text's fault. A block of text
    around images is assigned to one image only. ``weights`` are the weights of ``features``.
    """
    judged = judge_images(joined, site, rules)
    claims: dict[int, list[Claim]] = {}
    choices: list[float | Drop] = []
    for verdict, scene in zip(judged, scenes(joined, site, judged, rules, lists), strict=True):
        order = scene.image.order
        outcome: float | Drop = verdict
        if not isinstance(verdict, Drop):
            texts = _claims(scene, rules, lists, weights)
            if isinstance(texts, Drop):
                outcome = texts
            else:
                claims[order] = texts
        choices.append(outcome)
    owned = _owned(joined, claims)
    result: list[Choice | Drop] = []
    for image, choice in zip(joined.page.images, choices, strict=True):
        if isinstance(choice, Drop):
            result.append(choice)
        elif own := owned[image.order]:
            result.append(Choice(image.order, choice, own))
        else:
            lost = claims[image.order][0].text.text
            result.append(Drop(Reason.LOW_SCORE, f"nearer to another image: {lost}"))
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
    candidates = _own_texts(scene, rules, lists)
    measured = [(features(c, scene), c) for c in candidates]
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
    judged: list[float | Drop],
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
    contents = [
        image
        for image, verdict in zip(joined.page.images, judged, strict=True)
        if not isinstance(verdict, Drop)
    ]
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
            if isinstance(verdict, Drop)
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
        for image, verdict in zip(joined.page.images, judged, strict=True)
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
