"""Selects the content images of a page: exclusion rules, then a score of named features.

LAIT keeps the images that are "dominant" by HTML tags and DOM tree features (ImageBERT,
arXiv:2001.07966, section 3) without naming these. Images are judged by their true sizes, so only
available images are. The features and weights are this project's.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web.choice.joined_page import JoinedPage, Measured
from vlmill.pipelines.web.choice.likeness import text_size
from vlmill.pipelines.web.choice.site_content import Site
from vlmill.pipelines.web.pages.page import PageImage
from vlmill.pipelines.web.texts.words import word_set
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason

_TOKENS = re.compile(r"[^a-z0-9]+")

# Icon words in the class of an image or of its parent. Size, caption and figure outweigh them.
_ICON_WORDS = word_set(
    "icon icons ico favicon logo logos logotype sprite sprites avatar avatars gravatar emoji "
    "emoticon smiley badge badges bullet spacer captcha userpic tracker beacon "
    "spinner loader rss topicon qrcode"
)
# Words for images that are not content at any size.
_SURE_ICON_WORDS = word_set(
    "icon icons ico favicon logo logos logotype sprite sprites avatar avatars gravatar captcha "
    "userpic spinner qrcode placeholder noimage"
)
# In file names only: in class names these words have other meanings ("may-blank").
_ICON_FILE_WORDS = _ICON_WORDS | word_set(
    "pixel blank tracking transparent clear 1x1 counter arrow poweredby placeholder noimage "
    "button buttons btn"
)
_AD_WORDS = word_set(
    "ad ads adv advert adverts advertisement advertising adsense adslot adbox adunit sponsor "
    "sponsors sponsored doubleclick taboola outbrain"
)
# With these words a class states whether a page has advertising: "ad-free", "ads-loaded".
_NO_AD_WORDS = word_set(
    "free no non without off disabled enabled loaded hide hidden less block blocker blocked is has "
    "with supports support layout page site body root app main content"
)
_AD_HOSTS = re.compile(
    r"(?:^|\.)(?:doubleclick\.net|googlesyndication\.com|googleadservices\.com|adnxs\.com|"
    r"amazon-adsystem\.com|scorecardresearch\.com|quantserve\.com|taboola\.com|outbrain\.com)$"
)
# Host names that usually serve tracking pixels, and sometimes a magazine's images.
_AD_HOST_NAMES = re.compile(r"^(?:ads?|adserver|banners?|pixel|beacon|stats|track(?:er|ing)?)\d*\.")
_CONTENT_CLASSES = word_set(
    "article post entry story entry-content post-content article-content article-body "
    "post-body story-body hentry mw-content-text mw-body-content content-body main-content gallery "
    "wp-block-image wp-caption e-content markdown-body postcontent content main"
)
_STRIP_PX = 400  # a lower strip is a banner, a higher one a panorama
_NEAR_MARKS = 4  # elements around an image that may be an advertisement
# Sizes of alt texts, in words of English: icons have shorter ones than _SPOKEN.
_SPOKEN, _DESCRIBED, _SEVERAL = 3.0, 2.5, 1.2

WEIGHTS: Mapping[str, float] = {
    "shown": 0.3,  # available, of the minimum size, and not ruled out
    "area_share": 0.3,  # of the page's largest available image
    "named_by_page": 0.3,  # og:image, twitter:image, itemprop: the page's own choice
    "captioned": 0.3,
    "described": 0.2,  # alt or title of about three words: decoration has no description
    "in_content": 0.3,
    "in_figure": 0.2,
    "links_to_picture": 0.2,
    "background": -0.2,  # a background image: mostly decoration
    "links_elsewhere": -0.1,  # a card, a thumbnail of another page
    "of_one_page": 0.2,  # no other page of the site shows it
}


@dataclass(frozen=True, slots=True)
class _PageStats:
    """Counts a page's available images: positions and alt texts of each, and the largest area.

    The area is in pixels.
    """

    times: Counter[str]
    largest: int
    texts: Mapping[str, set[str]]

    def is_one_image(self, image_id: str) -> bool:
        """Returns whether all positions of a repeated image have the same alt text.

        A gallery, its thumbnails and its dialog show one image; bullets and placeholders have no
        alt text, or different ones.
        """
        texts = self.texts.get(image_id, set())
        return len(texts) == 1 and text_size(next(iter(texts))) > _SEVERAL


def judge_images(joined: JoinedPage, site: Site, rules: WebPairRules) -> list[Drop | None]:
    """Returns why each image of a page is not content, None for one that is; in order."""
    available_images = [p for p in joined.images.values() if not isinstance(p, Drop)]
    texts: dict[str, set[str]] = {}
    for image in joined.page.images:
        archived = joined.images.get(image.order)
        if image.alt and archived is not None and not isinstance(archived, Drop):
            texts.setdefault(archived.image_id, set()).add(image.alt)
    page_stats = _PageStats(
        Counter(archived.image_id for archived in available_images),
        max((archived.width * archived.height for archived in available_images), default=0),
        texts,
    )
    return [_judge(joined, image, page_stats, site, rules) for image in joined.page.images]


def _judge(
    joined: JoinedPage, image: PageImage, page_stats: _PageStats, site: Site, rules: WebPairRules
) -> Drop | None:
    if not image.urls:
        return Drop(Reason.BAD_URL, image.src[:100])
    archived = joined.images.get(image.order)
    if archived is None:
        return Drop(Reason.MISSING_IMAGE)
    if isinstance(archived, Drop):
        return Drop(Reason.REJECTED_IMAGE, f"{archived.reason}: {archived.detail}")
    drop = _reason_against(image, archived, page_stats, site, rules)
    if drop is not None:
        return drop
    values = dominance_features(image, archived, page_stats.largest, site)
    score = min(1.0, sum(WEIGHTS[name] * value for name, value in values.items()))
    if score < rules.min_dominance:
        names = ", ".join(sorted(name for name, value in values.items() if value))
        return Drop(Reason.NOT_DOMINANT, f"{score:.2f}: {names}")
    return None


def _reason_against(
    image: PageImage, archived: Measured, page_stats: _PageStats, site: Site, rules: WebPairRules
) -> Drop | None:
    host = urlsplit(image.urls[0]).netloc
    if _AD_HOSTS.search(host):
        return Drop(Reason.ADVERTISEMENT, host)
    if not image.is_metadata and not _is_shown_on_purpose(image, rules):
        if _AD_HOST_NAMES.search(host):
            return Drop(Reason.ADVERTISEMENT, host)
        if icon := _icon_words(image, archived, rules):
            return Drop(Reason.ICON, " ".join(sorted(icon))[:100])
        if words := _ad_words(image):
            return Drop(Reason.ADVERTISEMENT, " ".join(sorted(words)))
    if _is_furniture(image, archived, site):
        return Drop(Reason.NAVIGATION, " ".join(image.ancestors)[:100])
    repeats = page_stats.times[archived.image_id]
    if repeats > rules.max_repeats_on_page and not page_stats.is_one_image(archived.image_id):
        return Drop(Reason.REPEATED, f"{repeats} times")
    if site.is_repeated(archived.image_id):
        return Drop(Reason.REPEATED, f"on {site.pages_with(archived.image_id)} pages of the site")
    return _small_or_thin(image, archived, rules)


def _is_shown_on_purpose(image: PageImage, rules: WebPairRules) -> bool:
    """Returns whether a caption, or a figure of content size, outweighs words in names."""
    if image.caption:
        return True
    sides = [side for side in (image.width, image.height) if side is not None]
    return "figure" in image.ancestors and (not sides or min(sides) >= rules.min_declared_px)


def _ad_words(image: PageImage) -> set[str]:
    """Returns the words for advertising in the classes around an image, unless they deny it."""
    words: set[str] = set()
    for name in " ".join(image.marks[:_NEAR_MARKS]).split():
        parts = set(_TOKENS.split(name))
        if parts.isdisjoint(_NO_AD_WORDS):
            words |= parts & _AD_WORDS
    return words


def _icon_words(image: PageImage, archived: Measured, rules: WebPairRules) -> set[str]:
    """Returns the words that mark an image as an icon, unless size or alt text outweighs them."""
    is_spoken = text_size(image.alt) >= _SPOKEN
    if is_spoken and not _SURE_ICON_WORDS.intersection(_TOKENS.split(image.alt.lower())):
        return set()
    words = set(_ICON_WORDS.intersection(_TOKENS.split(" ".join(image.marks[:2]))))
    if not is_spoken:
        name = urlsplit(image.urls[0]).path.rsplit("/", 1)[-1].lower()
        words |= _ICON_FILE_WORDS.intersection(_TOKENS.split(name))
    is_large = min(archived.width, archived.height) >= rules.min_large_px
    return words & _SURE_ICON_WORDS if is_large else words


def _is_furniture(image: PageImage, archived: Measured, site: Site) -> bool:
    if not image.is_furniture:
        return False
    if not {"nav", "footer"}.isdisjoint(image.ancestors):
        return True
    if image.caption and "figure" in image.ancestors:
        return False  # an article's box with a captioned figure
    if "aside" in image.ancestors:
        return True
    # A page's header holds its banner, which every page shows, or its own first image.
    in_header = "header" in image.ancestors and site.num_pages >= 4
    return not (in_header and site.pages_with(archived.image_id) == 1)


def _small_or_thin(image: PageImage, archived: Measured, rules: WebPairRules) -> Drop | None:
    sides = [side for side in (image.width, image.height) if side is not None]
    # A thumbnail that links to its full image is small on purpose.
    min_side_px = rules.min_declared_px // (
        4 if image.links_to_picture else 2 if image.caption else 1
    )
    if sides and min(sides) < min_side_px:
        return Drop(Reason.DECLARED_SMALL, "x".join(map(str, sides)))
    short, long = sorted((archived.width, archived.height))
    if short < _STRIP_PX and long > rules.max_declared_aspect * short:
        return Drop(Reason.DECLARED_SMALL, f"{archived.width}x{archived.height}, a banner")
    return None


def dominance_features(
    image: PageImage, archived: Measured, largest: int, site: Site
) -> dict[str, float]:
    """Returns named features in 0..1 of an image; ``largest`` is the page's largest pixel area."""
    classes = set(" ".join(image.marks).split())
    values = {
        "shown": True,
        "area_share": archived.width * archived.height / largest,
        "named_by_page": image.is_metadata,
        "captioned": bool(image.caption),
        "described": max(text_size(image.alt), text_size(image.title)) >= _DESCRIBED,
        "in_content": not {"article", "main"}.isdisjoint(image.ancestors)
        or not _CONTENT_CLASSES.isdisjoint(classes),
        "in_figure": not {"figure", "picture"}.isdisjoint(image.ancestors),
        "links_to_picture": image.links_to_picture,
        "background": image.is_background,
        "links_elsewhere": bool(image.link) and not image.links_to_picture,
        "of_one_page": site.pages_with(archived.image_id) == 1,
    }
    return {name: float(value) for name, value in values.items()}
