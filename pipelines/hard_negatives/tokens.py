"""Splits texts into words, and refuses texts in scripts that the tokenizer cannot split."""

import re
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from vlmill.pipelines.hard_negatives.rules import SEGMENTERS, WORDS, NegativeRules
from vlmill.pipelines.web.texts.words import JOINERS, mark_ranges, split_words
from vlmill.schemas.errors import InputError

# scikit-learn's words, two letters or more, with the marks that belong to their letters: without
# them its expression breaks words of Indic scripts and of pointed Arabic and Hebrew.
_LETTER = rf"\w[{mark_ranges()}{JOINERS}]*"
MARKED = rf"{_LETTER}(?:{_LETTER})+"

MOST_UNSPACED = 0.01  # share of captions: a few names in other scripts do no harm
HAN, KANA, THAI = r"\p{Han}", r"\p{Hiragana}\p{Katakana}", r"\p{Thai}"
OTHERS = r"\p{Lao}\p{Khmer}\p{Myanmar}"
UNCUT = {"words": HAN + KANA + THAI, "jieba": KANA + THAI, "sudachi": THAI, "newmm": HAN + KANA}
"""Letters that a tokenizer does not segment, in addition to those of ``OTHERS``, which none does"""


def make_tokenizer(rules: NegativeRules) -> Callable[[str], list[str]]:
    """Returns the function that splits a text into words, in lower case like scikit-learn."""
    if rules.tokenizer == "whitespace":
        return lambda text: text.lower().split()
    if rules.tokenizer in SEGMENTERS:
        language = SEGMENTERS[rules.tokenizer]
        return lambda text: split_words(text.lower(), language)
    findall = re.compile(rules.pattern).findall
    if rules.pattern != WORDS:
        return lambda text: findall(text.lower())
    find_marked = re.compile(MARKED).findall  # slower, with the same result for texts without marks
    return lambda text: (findall if text.isascii() else find_marked)(text.lower())


def count_unspaced(texts: pa.Array, rules: NegativeRules) -> int:
    """Counts captions in scripts without spaces that the tokenizer does not split.

    Such a caption has four consecutive letters of these scripts, or one and no Latin letter.
    """
    if rules.tokenizer == "whitespace":
        return 0  # the user states that white space separates words
    letters = UNCUT[rules.tokenizer] + OTHERS
    runs = pc.match_substring_regex(texts, rf"[{letters}]{{4}}")
    alone = pc.match_substring_regex(texts, rf"^\P{{Latin}}*[{letters}]\P{{Latin}}*$")
    return int(pc.sum(pc.or_(runs, alone)).as_py() or 0)


def refuse_unspaced(count: int, captions: int, rules: NegativeRules, argument: str) -> None:
    """Raises InputError if too many captions are in scripts that the tokenizer does not split."""
    if count <= MOST_UNSPACED * captions:
        return
    raise InputError(
        f"{argument}: {count} of {captions} captions are in a script without spaces "
        f"between words, which --tokenizer {rules.tokenizer} does not segment; give "
        "--tokenizer jieba for Chinese, sudachi for Japanese, newmm for Thai, "
        "whitespace for text with spaces between its words"
    )
