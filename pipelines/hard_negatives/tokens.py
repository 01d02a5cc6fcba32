"""Texts become words here, and are refused where the tokenizer would find none in their script."""

import re
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from vlmill.pipelines.hard_negatives.rules import NegativeRules
from vlmill.schemas.errors import InputError

MOST_UNSPACED = 0.01  # share of captions: a few names in other scripts harm nobody
HAN = r"\p{Han}"
OTHERS = r"\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_LONGEST = 10_000  # characters that a segmenter gets at once


def tokenizer_of(rules: NegativeRules) -> Callable[[str], list[str]]:
    """The function that cuts a text into words, in lower case as scikit-learn does."""
    if rules.tokenizer == "whitespace":
        return lambda text: text.lower().split()
    if rules.tokenizer == "jieba":
        return _jieba_words
    findall = re.compile(rules.pattern).findall
    return lambda text: findall(text.lower())


def _jieba_words(text: str) -> list[str]:
    return [word for word in _jieba_pieces(text.lower()) if any(map(str.isalnum, word))]


def _jieba_pieces(text: str) -> Iterator[str]:
    import rjieba  # its dictionary takes a moment

    for start in range(0, len(text), _LONGEST):
        yield from rjieba.cut(text[start : start + _LONGEST])


def count_unspaced(texts: pa.Array, rules: NegativeRules) -> int:
    """Counts captions of scripts without spaces that the tokenizer does not cut.

    Such a caption has a run of four of their letters, or one and no Latin letter.
    """
    if rules.tokenizer == "whitespace":
        return 0  # white space is what the user says cuts them
    letters = OTHERS if rules.tokenizer == "jieba" else HAN + OTHERS
    runs = pc.match_substring_regex(texts, rf"[{letters}]{{4}}")
    alone = pc.match_substring_regex(texts, rf"^\P{{Latin}}*[{letters}]\P{{Latin}}*$")
    return int(pc.sum(pc.or_(runs, alone)).as_py() or 0)


def refuse_unspaced(count: int, captions: int, rules: NegativeRules, said: str) -> None:
    """Raises InputError where too many captions are of scripts that the tokenizer does not cut."""
    if count <= MOST_UNSPACED * captions:
        return
    chinese = "" if rules.tokenizer == "jieba" else "--tokenizer jieba for Chinese, "
    raise InputError(
        f"{said}: {count} of {captions} captions are of a script without spaces between words, "
        f"which --tokenizer {rules.tokenizer} does not cut; give {chinese}"
        "--tokenizer whitespace for text with spaces between its words"
    )
