"""Which captions are hard negatives: thresholds, and what counts as a word."""

from dataclasses import dataclass
from fractions import Fraction

from vlmill.schemas.errors import InputError

TOKEN_PATTERNS = {"words": r"(?u)\b\w\w+\b", "space": r"\S+"}


@dataclass(frozen=True, kw_only=True)
class NegativeRules:
    """Which captions are hard negatives; defaults from InterBERT's paper, sec. 3.3."""

    top: int = 30
    below: Fraction = Fraction(1, 2)  # cosine strictly below: above are near duplicates
    tokenizer: str = "words"  # scikit-learn's default words; "space" for segmented text

    def __post_init__(self) -> None:
        if self.top < 1:
            raise ValueError(f"top is {self.top}, must be at least 1")
        if not 0 < self.below <= 1:
            raise ValueError(f"below is {self.below}, must be in (0, 1]")
        if self.tokenizer not in TOKEN_PATTERNS:
            raise ValueError(f"tokenizer {self.tokenizer}: one of {', '.join(TOKEN_PATTERNS)}")


def rules_of(top: int, below: str, tokenizer: str) -> NegativeRules:
    """Rules from the flags; InputError for values that make none."""
    try:
        return NegativeRules(top=top, below=Fraction(below), tokenizer=tokenizer)
    except (ValueError, ZeroDivisionError) as error:
        raise InputError(f"--top {top} --below {below} --tokenizer {tokenizer}: {error}") from None
