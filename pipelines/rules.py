"""Defines every threshold of the web-pairs job, with the source of each default.

"LAIT" is the pipeline of ImageBERT (Qi et al., arXiv:2001.07966, section 3), which names the stages
and few numbers; "ours" marks a number that it leaves open.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

MIB = 1 << 20
DETECTORS = ("cld2", "langdetect")
SHARE = (0, 1)
# The least and the greatest value of each number; of the others: 0 or more.
RANGES: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(
        (
            *("min_language_probability", "min_dominance", "min_alphabetic", "max_repetition"),
            *("max_unknown_words", "min_score", "hold_out"),
            *("safety_threshold", "realism_threshold"),
        ),
        SHARE,
    ),
    "max_distance": (0, 16),  # bits
    # A job with less than this reads nothing, or needs more memory than a worker has.
    "max_record_bytes": (1 << 10, 2048 * MIB),
    "max_page_bytes": (1 << 10, 256 * MIB),
    "max_nesting": (10, 100_000),
    "max_pixels": (1, 1_000_000_000),
    **dict.fromkeys(
        (
            *("max_images_per_page", "max_text_chars", "max_language_chars", "max_words"),
            *("max_surrounding_words", "max_repeats_on_page"),
        ),
        (1, math.inf),
    ),
    "max_declared_aspect": (1, math.inf),
}


@dataclass(frozen=True, kw_only=True)
class WebPairRules:
    """Holds the thresholds of the job that converts web archives to image-text pairs."""

    # Limits against hostile input; all ours.
    max_record_bytes: int = 32 * MIB
    max_page_bytes: int = 8 * MIB  # search engines read 2 to 15 MB of a page's HTML
    max_nesting: int = 1_000  # the parser's time grows with the square of the depth: 1,000 is 1 ms
    max_pixels: int = 50_000_000  # 150 MB decoded
    max_images_per_page: int = 2_000
    max_text_chars: int = 2_000  # of an attribute or a block of text

    # Language of the page.
    language: str = "en"  # LAIT: non-English pages are discarded; several (en,de) or any
    language_detector: str = "cld2"  # or langdetect: docs/web-pairs.md has their accuracies
    min_language_probability: float = 0.4  # ours; for CLD2 a share: pages on software quote English
    min_language_chars: int = 60  # ours; on shorter text the detector guesses
    max_language_chars: int = 1_000  # ours; more text takes longer and does not change the result

    # Dominant images.
    min_dominance: float = 0.5  # ours
    min_declared_px: int = 120  # ours; a thumbnail's file may be larger than it is shown
    max_declared_aspect: float = 4.0  # ours; banners and rules
    max_repeats_on_page: int = 2  # ours; bullets and spacers are repeated
    min_large_px: int = 500  # ours; so large an image is not a bullet, regardless of its name
    max_images_in_row: int = 2  # ours; a text next to a longer row of images describes none

    # Images.
    min_side_px: int = 300  # LAIT: width and height above 300, both strict
    safety_threshold: float | None = None  # lowest probability of a racy image; None: the model's
    realism_threshold: float | None = None  # below it an image is unrealistic; None: the model's

    # Texts; the numbers of words are ours ("sentences of normal length" in LAIT).
    min_words: int = 1  # a single word with a high score is nearly always the name of the object
    max_words: int = 80  # alt texts written by models have 60
    max_surrounding_words: int = 40  # of a text that the page does not mark as an image's
    min_alphabetic: float = 0.6
    max_repetition: float = 0.5  # share of words that repeat earlier ones
    max_unknown_words: float = 0.3  # ours: share of words that --vocabulary lacks
    keep_personal_data: bool = False  # e-mail addresses, telephone and card numbers

    # Pairs.
    min_score: float = 0.5  # ours
    keep_texts: int = 1  # per image, in the table of candidates; the best is its pair
    max_images_per_text: int = 10  # ours; LAIT drops texts with "too many" images

    # Near duplicates, and excluded images.
    drop_near_duplicates: bool = False
    hold_out: float = 0.0  # fraction of the groups of similar images that get the split "val"
    ignore_opt_outs: bool = False  # opt-outs of sites are honoured by default
    max_distance: int = 4  # in bits of the perceptual hash, to excluded images

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float):
                low, high = RANGES.get(field.name, (0, math.inf))
                if not low <= value <= high:
                    limits = f"{low} or more" if high == math.inf else f"in {low}..{high}"
                    raise ValueError(f"{field.name} is {value}; it must be {limits}")
        if self.language_detector not in DETECTORS:
            raise ValueError(
                f"language_detector is {self.language_detector!r}; expected one of "
                f"{', '.join(DETECTORS)}"
            )
        if self.min_words > self.max_words:
            raise ValueError(f"min_words {self.min_words} is above max_words {self.max_words}")
        if self.keep_texts < 1:
            raise ValueError("keep_texts is 0: every image has a text; give 1 or more")
        if self.max_images_per_text < 1:
            raise ValueError("max_images_per_text is 0: it would drop every pair; give 1 or more")

    def as_settings(self) -> dict[str, Any]:
        """Returns names and values, for plans, manifests and reports."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
