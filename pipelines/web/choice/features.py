"""Computes named features of a candidate text for an image: position, wording, agreement."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vlmill.pipelines.web.choice.candidates import Candidate
from vlmill.pipelines.web.choice.likeness import compute_overlap, name_subject, subject, text_size
from vlmill.pipelines.web.choice.site_content import Site
from vlmill.pipelines.web.pages.context import HEADINGS
from vlmill.pipelines.web.pages.page import Page, PageImage
from vlmill.pipelines.web.texts.phrases import Phrases
from vlmill.pipelines.web.texts.sentences import ends_sentence, leads

EXPLICIT = frozenset(("alt", "title", "label", "caption"))
_SIDES = ("before", "after")
_LABEL_SIZE = 25.0  # words: a longer block is not a caption
_USUAL_SIZE = 8.0
_READ_CHARS = 400


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
