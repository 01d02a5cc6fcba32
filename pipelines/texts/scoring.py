"""Does the text describe the picture? A transparent score in 0..1 from named features.

LAIT scores pairs with a model fitted on labelled data (ImageBERT, arXiv:2001.07966, section 3);
the weights here are set by hand and keep its place: features in, score out.
"""

import math
from collections.abc import Mapping
from typing import Literal

from vlmill.pipelines.texts.words import file_words, word_set, words_of

TextSource = Literal["figcaption", "alt", "title", "metadata", "surrounding"]

WEIGHTS: Mapping[str, float] = {
    "bias": -1.0,
    # How often such a text is about the picture at all.
    "source_figcaption": 1.9,
    "source_alt": 1.8,
    "source_title": 1.2,
    "source_metadata": 0.2,
    "source_surrounding": -0.7,
    # 5 to 20 words is what captions have; LAIT's mean is 13.
    "length_fit": 0.9,
    "starts_like_a_sentence": 0.3,
    "has_function_words": 0.4,
    "file_name_overlap": 1.0,
    "other_text_overlap": 0.8,
    "dominance": 0.5,
    # The page's title stands for the page and not for one of its pictures.
    "is_page_title": -1.0,
    "is_question": -0.6,
    "speaks_to_reader": -0.9,
    "capitals": -0.8,
    "numbers": -1.0,
}

_FUNCTION_WORDS = word_set(
    "a an the of in on at with by from to and or for near under over behind between into over "
    "his her its their as is are was while during through"
)
_READER = word_set("you your yours we our ours us i my me let's click")


def features(
    text: str,
    source: TextSource,
    *,
    image_url: str,
    page_title: str,
    others: tuple[str, ...],
    dominance: float,
) -> dict[str, float]:
    """Computes named features of a text for a picture, each in 0..1.

    ``others`` are the picture's other texts on the same page, ``dominance`` that of the picture.
    """
    words = [word.lower() for word in words_of(text)]
    distinct = {word for word in words if word not in _FUNCTION_WORDS and len(word) > 2}
    name = set(file_words(image_url))
    other = {word.lower() for line in others for word in words_of(line)}
    letters = [c for c in text if c.isalpha()]
    return {
        "bias": 1.0,
        f"source_{source}": 1.0,
        "length_fit": _length_fit(len(words)),
        "starts_like_a_sentence": float(text[:1].isupper() or text[:1].isdigit()),
        "has_function_words": float(not _FUNCTION_WORDS.isdisjoint(words)),
        "file_name_overlap": min(1.0, len(distinct & name) / 2),
        "other_text_overlap": len(distinct & other) / max(1, len(distinct)),
        "dominance": dominance,
        "is_page_title": float(_same(text, page_title)),
        "is_question": float(text.endswith("?")),
        "speaks_to_reader": float(not _READER.isdisjoint(words)),
        "capitals": float(sum(c.isupper() for c in letters) > 0.6 * max(1, len(letters))),
        "numbers": sum(c.isdigit() for c in text) / max(1, len(text)),
    }


def _length_fit(words: int) -> float:
    """Gives 1 from 5 to 20 words, falling to 0 at 1 and at 40."""
    return max(0.0, min(1.0, (words - 1) / 4, (40 - words) / 20))


def _same(text: str, title: str) -> bool:
    """Whether the text is the page's title, or the title the text and the site's name."""
    plain, head = " ".join(words_of(text.lower())), " ".join(words_of(title.lower()))
    return bool(plain) and (
        plain == head or (head.startswith(plain) and len(plain) > 0.6 * len(head))
    )


def score(values: Mapping[str, float]) -> float:
    """Returns the logistic function of the weighted features, rounded to 6 digits.

    Rounded so that platforms whose exp differs in the last bit order pairs alike. Raises KeyError
    for a feature without a weight.
    """
    total = math.fsum(WEIGHTS[name] * value for name, value in values.items())
    return round(1 / (1 + math.exp(-total)), 6)
