"""Defines which captions are hard negatives: the thresholds and the tokenizer."""

import re
from dataclasses import dataclass
from fractions import Fraction

from vlmill.schemas.errors import InputError

SEGMENTERS = {"jieba": "zh", "sudachi": "ja", "newmm": "th"}  # and the language of each
TOKENIZERS = ("words", "whitespace", *SEGMENTERS)
WORDS = r"(?u)\b\w\w+\b"  # scikit-learn's


@dataclass(frozen=True, kw_only=True)
class NegativeRules:
    """Holds the thresholds for hard negatives; defaults are from InterBERT's paper, sec. 3.3."""

    top: int = 30
    below: Fraction = Fraction(1, 2)  # cosines must be below it: others are near duplicates
    tokenizer: str = "words"  # matches of `pattern`; or segmented text, or a segmenter
    pattern: str = WORDS

    def __post_init__(self) -> None:
        if self.top < 1:
            raise ValueError(f"top is {self.top}, must be at least 1")
        if not 0 < self.below <= 1:
            raise ValueError(f"below is {self.below}, must be in (0, 1]")
        if self.below.denominator > 10**6:  # its square times a squared norm must fit 126 bits
            raise ValueError(f"below is {self.below}, must have at most 6 digits")
        if self.tokenizer not in TOKENIZERS:
            raise ValueError(f"tokenizer {self.tokenizer}: one of {', '.join(TOKENIZERS)}")
        if self.pattern != WORDS and self.tokenizer != "words":
            raise ValueError(f"a token pattern and the tokenizer {self.tokenizer}: give one")
        try:
            groups = re.compile(self.pattern).groups
        except re.error as error:
            raise ValueError(f"token pattern {self.pattern}: {error}") from None
        if groups > 1:
            raise ValueError(
                f"token pattern {self.pattern} has {groups} groups, at most one counts"
            )

    @property
    def most_norm2(self) -> int:
        """Returns the squared length below which products with ``below`` fit 63 bits."""
        return (1 << 62) // self.below.denominator


def build_rules(top: int, below: str, tokenizer: str, pattern: str | None) -> NegativeRules:
    """Builds the rules of the flags. Raises InputError for invalid values."""
    try:
        return NegativeRules(
            top=top, below=Fraction(below), tokenizer=tokenizer, pattern=pattern or WORDS
        )
    except (ValueError, ZeroDivisionError) as error:
        flags = f"--top {top} --below {below} --tokenizer {tokenizer}"
        flags += "" if pattern is None else f" --token-pattern {pattern}"
        raise InputError(f"{flags}: {error}") from None
