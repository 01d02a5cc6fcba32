"""Computes named features of a candidate text for an image: position, wording, agreement."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vlmill.pipelines.web.choice.candidates import Candidate
from vlmill.pipelines.web.choice.likeness import compute_overlap, name_subject, num_words, subject
from vlmill.pipelines.web.choice.survey import Site
from vlmill.pipelines.web.pages.context import HEADINGS
from vlmill.pipelines.web.pages.page import Page, PageImage
from vlmill.pipelines.web.texts.phrases import Phrases

_DATE = re.compile(r"\b\d{1,2}[./]\d{1,2}[./]\d{2,4}\b|\b\d{4}[-/.年]\s?\d{1,2}|\b(?:19|20)\d\d\b")


EXPLICIT = frozenset(("alt", "title", "label", "caption"))
_CAPTION_WORDS = 25
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
    words = num_words(candidate.text)
    kind = "alt" if candidate.kind == "label" else candidate.kind  # an alt text by another name
    values = (
        {"bias": 1.0, f"kind_{kind}": 1.0}
        | _place(candidate, scene, words)
        | _wording(candidate, words, scene.phrases)
        | _agreement(candidate, scene)
    )
    return {key: float(value) for key, value in values.items() if value}


def _place(candidate: Candidate, scene: Scene, words: float) -> dict[str, float]:
    """Returns features of the text's position: next to the image, or above it as a heading."""
    kind, between = candidate.kind, candidate.images_between > 0
    if kind in ("heading", "page_title"):
        is_heading = kind == "heading"
        return {
            "own_heading": is_heading and not between,
            "heading_right_above": is_heading and candidate.blocks_away == 1,
            "second_heading": is_heading and candidate.sentences_away == 2,
            "heading_only_picture": scene.num_images == 1,
        }
    if kind not in ("before", "after"):
        return {}
    is_next, is_heading = candidate.sentences_away == 1, candidate.tag in HEADINGS
    side = scene.side if kind == "before" else -scene.side
    is_short = candidate.is_whole and not is_heading
    is_caption = is_short and is_next and words <= _CAPTION_WORDS and not between
    return {
        "distance": min(1.0, (candidate.sentences_away - 1) / 4),
        "next_to_it": is_next,
        "other_block": candidate.blocks_away > 1,
        "picture_between": between,
        "side": side,
        "caption_on_side": max(0.0, side) if is_caption else 0.0,
        "caption_block": is_short and words <= 15,
        "in_row": kind == scene.row and is_next,
        "off_row": bool(scene.row) and kind != scene.row,
        "far_part": candidate.common >= 5,
        "heading_beside": is_heading,
        "first_of_block": kind == "after" and candidate.position == 0,
        "long_block": candidate.block_words > 60,
    }


def _wording(candidate: Candidate, words: float, phrases: Phrases) -> dict[str, float]:
    """Returns features of the text's wording."""
    text = candidate.text[:_READ_CHARS]
    lower = text.lower()
    points = phrases.points.search(lower) is not None
    is_explicit = candidate.kind in EXPLICIT
    says_little = not is_explicit and not points  # points, as in "Here is the beach."
    return {
        "points": points,
        "points_beside": points
        and candidate.kind in ("before", "after")
        and candidate.sentences_away == 1,
        "figure_number": phrases.figure.match(lower) is not None,
        "byline": phrases.bylines.search(lower) is not None,
        "date": _DATE.search(lower) is not None,
        "speaks": phrases.speaks.search(lower) is not None,
        "ends_colon": candidate.text[-1:] in ":：",
        "is_question": candidate.text[-1:] in "?？",
        "one_word": words < 2,
        "few_words": 2 <= words < 4,
        "one_word_beside": words < 2 and says_little,
        "few_words_beside": 2 <= words < 4 and says_little,
        "fit_words": 6 <= words <= _CAPTION_WORDS,
        "many_words": words > 30,
        "capitals": sum(map(str.isupper, text)) > 0.6 * max(1, sum(map(str.isalpha, text))),
        "digits": sum(map(str.isdigit, text)) / max(1, len(text)),
    }


def _agreement(candidate: Candidate, scene: Scene) -> dict[str, float]:
    """Returns features of agreement with other texts, the file name and the rest of the site."""
    text, kind, image = candidate.text, candidate.kind, scene.image
    text_subject = subject(text)
    spoken = [c.text for c in scene.candidates if c.kind in EXPLICIT]
    heads = [c.text for c in scene.candidates if c.kind == "heading"]
    by_name = compute_overlap(text_subject, name_subject(image.urls[0]))
    by_spoken = compute_overlap(text_subject, _subjects(spoken, text))
    return {
        "name_overlap": by_name,
        "spoken_overlap": by_spoken,
        "heading_overlap": compute_overlap(text_subject, _subjects(heads, text)),
        "title_overlap": compute_overlap(text_subject, subject(scene.page.title))
        if kind != "page_title"
        else 0.0,
        "said_elsewhere": min(1.0, 3 * scene.site.share_with(text)),
        "has_spoken": kind in ("before", "after") and bool(spoken),
        "head_alone": kind == "metadata" and not by_name and not by_spoken,
        "has_caption": kind != "caption" and bool(image.caption),
        "on_many_pages": min(1.0, (scene.num_pages_with - 1) / 5),
    }


def _subjects(texts: Sequence[str], besides: str) -> frozenset[str]:
    return frozenset().union(*(subject(text) for text in texts if text != besides))


def total(values: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Returns the weighted sum of the features; a feature without a weight counts 0."""
    return sum(weights.get(name, 0.0) * value for name, value in values.items())
