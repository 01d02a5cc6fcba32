"""Which pictures of a page are its content: rules that rule out, then a score of named features.

LAIT keeps the pictures that are "dominant" by HTML tags and DOM tree features (ImageBERT,
arXiv:2001.07966, section 3) without naming these. An article or a gallery has several: one for each
figure or post. The features and weights are ours.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from vlmill.pipelines.counting.funnel import Drop
from vlmill.pipelines.pages.page import Page, PageImage
from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.texts.words import word_set
from vlmill.schemas.rejects import Reason

_TOKENS = re.compile(r"[^a-z0-9]+")

_ICON_WORDS = word_set(
    "icon icons ico favicon logo logos logotype sprite sprites avatar avatars gravatar emoji "
    "emoticon smiley badge badges bullet spacer button buttons btn captcha userpic tracker beacon "
    "spinner loader magnify rss topicon"
)
# In names of files only: as parts of class names they say other things ("may-blank").
_ICON_FILE_WORDS = _ICON_WORDS | word_set(
    "pixel blank tracking transparent clear 1x1 counter arrow poweredby"
)
_AD_WORDS = word_set(
    "ad ads adv advert adverts advertisement advertising adsense adslot adbox adunit sponsor "
    "sponsors sponsored doubleclick taboola outbrain"
)
_AD_HOSTS = re.compile(
    r"(?:^|\.)(?:doubleclick\.net|googlesyndication\.com|googleadservices\.com|adnxs\.com|"
    r"amazon-adsystem\.com|scorecardresearch\.com|quantserve\.com|taboola\.com|outbrain\.com)$"
    r"|^(?:ads?|adserver|banners?|pixel|beacon|stats|track(?:er|ing)?)\d*\."
)
# Whole class names: "sidebar" is a side bar, "content-sidebar-wrap" wraps the page's content.
_FURNITURE_CLASSES = word_set(
    "nav navbar navigation menu main-menu topnav footer site-footer page-footer sidebar "
    "side-bar breadcrumb breadcrumbs widget widgets toolbar pagination share sharing social"
)
_HEADER_CLASSES = word_set("header site-header page-header masthead topbar top-bar")
_CONTENT_CLASSES = word_set(
    "article post entry story entry-content post-content article-content article-body "
    "post-body story-body hentry mw-content-text content-body main-content gallery"
)

WEIGHTS: Mapping[str, float] = {
    "named_by_page": 0.4,  # og:image, twitter:image, itemprop: the page's own choice
    "captioned": 0.3,
    "described": 0.3,  # alt or title of three words: nobody describes decoration
    "in_article": 0.3,
    "large": 0.3,
    "in_figure": 0.25,
    "near_largest": 0.2,  # at least half the area of the page's largest
    "size_unknown": 0.2,
    "links_to_picture": 0.2,
    "medium": 0.1,
}


@dataclass(frozen=True, slots=True)
class Dominant:
    """A picture that is part of its page's content; ``dominance`` is in 0..1."""

    image: PageImage
    dominance: float


def reason_against(image: PageImage, repeats: int, rules: WebPairRules) -> Drop | None:
    """Why a picture can be ruled out at once, or None. ``repeats``: how often the page shows it."""
    if not image.urls:
        return Drop(Reason.BAD_URL, image.src[:100])
    icon = _ICON_WORDS.intersection(_TOKENS.split(" ".join(image.marks[:2])))
    icon |= _ICON_FILE_WORDS & _name_tokens(image.urls[0])
    far = set(" ".join(image.marks).split())
    if not image.is_metadata:
        if icon:
            return Drop(Reason.ICON, _said(set(icon)))
        if not _AD_WORDS.isdisjoint(_TOKENS.split(" ".join(image.marks))):
            return Drop(Reason.ADVERTISEMENT, _said(set(image.marks)))
        if _is_furniture(image, far):
            return Drop(Reason.NAVIGATION, _said(far & _FURNITURE_CLASSES | set(image.ancestors)))
        if repeats > rules.max_repeats_on_page:
            return Drop(Reason.REPEATED, f"{repeats} times")
    if _AD_HOSTS.search(urlsplit(image.urls[0]).netloc):
        return Drop(Reason.ADVERTISEMENT, urlsplit(image.urls[0]).netloc)
    return _small_or_thin(image, rules)


def _small_or_thin(image: PageImage, rules: WebPairRules) -> Drop | None:
    sides = [side for side in (image.width, image.height) if side is not None]
    if not sides:
        return None
    # A thumbnail that leads to its picture is shown small on purpose.
    least = rules.min_declared_px // (4 if image.links_to_picture else 2 if image.caption else 1)
    if min(sides) < least:
        return Drop(Reason.DECLARED_SMALL, "x".join(map(str, sides)))
    if len(sides) == 2 and max(sides) > rules.max_declared_aspect * min(sides):
        return Drop(Reason.DECLARED_SMALL, f"{sides[0]}x{sides[1]}, a banner or a rule")
    return None


def _name_tokens(url: str) -> set[str]:
    return set(_TOKENS.split(urlsplit(url).path.rsplit("/", 1)[-1].lower()))


def _said(words: set[str]) -> str:
    return " ".join(sorted(words))[:100]


def _is_furniture(image: PageImage, classes: set[str]) -> bool:
    content = not {"article", "main", "figure"}.isdisjoint(image.ancestors)
    if not {"nav", "footer", "button"}.isdisjoint(image.ancestors):
        return True
    if not _FURNITURE_CLASSES.isdisjoint(classes) and "figure" not in image.ancestors:
        return True
    # The header of an article holds its first picture, the header of a page its banner.
    header = not {"header", "aside"}.isdisjoint(image.ancestors)
    return (header or not _HEADER_CLASSES.isdisjoint(classes)) and not content


def features(image: PageImage, largest: int) -> dict[str, float]:
    """Named features in 0..1; ``largest`` is the largest declared area on the page in pixels."""
    area = (image.width or 0) * (image.height or 0)
    side = min((s for s in (image.width, image.height) if s is not None), default=0)
    classes = set(" ".join(image.marks).split())
    values = {
        "named_by_page": image.is_metadata,
        "captioned": bool(image.caption),
        "described": max(len(image.alt.split()), len(image.title.split())) >= 3,
        "in_article": not {"article", "main"}.isdisjoint(image.ancestors)
        or not _CONTENT_CLASSES.isdisjoint(classes),
        "in_figure": not {"figure", "picture"}.isdisjoint(image.ancestors),
        "large": side >= 200,
        "medium": 120 <= side < 200,
        "near_largest": area > 0 and 2 * area >= largest,
        "size_unknown": image.width is None and image.height is None,
        "links_to_picture": image.links_to_picture,
    }
    return {name: float(value) for name, value in values.items()}


def dominance(values: Mapping[str, float]) -> float:
    """Returns the weighted sum of :func:`features`, at most 1."""
    return min(1.0, sum(WEIGHTS[name] * value for name, value in values.items()))


def judge_images(page: Page, rules: WebPairRules) -> list[Dominant | Drop]:
    """For each picture of the page, in order, how dominant it is, or why it is not."""
    areas = [(image.width or 0) * (image.height or 0) for image in page.images]
    largest = max(areas, default=0)
    repeats = Counter(image.urls[0] for image in page.images if image.urls)
    return [
        _judge(image, repeats[image.urls[0]] if image.urls else 0, largest, rules)
        for image in page.images
    ]


def _judge(image: PageImage, repeats: int, largest: int, rules: WebPairRules) -> Dominant | Drop:
    drop = reason_against(image, repeats, rules)
    if drop is not None:
        return drop
    values = features(image, largest)
    score = dominance(values)
    if score < rules.min_dominance:
        names = ", ".join(sorted(name for name, value in values.items() if value))
        return Drop(Reason.NOT_DOMINANT, f"{score:.2f}: {names}")
    return Dominant(image, score)
