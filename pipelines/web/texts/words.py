"""Splits texts and file names into words; holds lists of words as the code writes them.

Chinese, Japanese and Thai have no spaces between words. Their segmenters are loaded at the first
text of their language: jieba's dictionary (by rjieba, 40 times as fast as jieba, the same words),
SudachiPy with its small dictionary in its shortest units, and PyThaiNLP's newmm.
"""

import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable
from functools import cache
from itertools import chain, pairwise
from urllib.parse import urlsplit

from vlmill.runtime.net.urls import ESCAPED

_WORD = re.compile(r"[^\W_]+(?:['’.-][^\W_]+)*")
JOINERS = "\u200c\u200d"
"""They join or separate letters of a word (Persian, Indic scripts) and join parts of an emoji."""
# Inside a character class: scripts whose writers put no spaces between words. A letter of these
# scripts is a syllable or more, as is one of Korean.
UNSPACED_LETTERS = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf"
    "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\ua9e0-\ua9ff\uaa60-\uaa7f\uf900-\ufaff"
)
DENSE_LETTERS = UNSPACED_LETTERS + "\uac00-\ud7af"
# Letters that a segmenter cuts, and the marks that belong to them.
_UNSPACED = re.compile("([\u0e00-\u0e7f\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+)")
_LONGEST = 10_000  # characters that a segmenter receives per call

Segment = Callable[[str], Iterable[str]]


def split_words(text: str, language: str | None = None) -> list[str]:
    """Returns a text's words: runs of letters and digits, with inner apostrophes, dots, hyphens.

    With ``language`` zh, ja or th, runs of their scripts are cut into words; else such a run is
    one word.
    """
    if text.isascii():
        return _WORD.findall(text)
    load, spaced = _SEGMENTERS.get(language or ""), _marked_word()
    if load is None or not _UNSPACED.search(text):
        return spaced.findall(text)
    segment, words = load(), list[str]()
    for number, run in enumerate(_UNSPACED.split(text)):
        if number % 2 == 0:
            words += spaced.findall(run)
            continue
        for start in range(0, len(run), _LONGEST):
            words += (w for w in segment(run[start : start + _LONGEST]) if any(map(str.isalnum, w)))
    return words


@cache
def word_pattern() -> str:
    """Returns a regular expression of one word, with the marks and joiners after its letters.

    Vowel signs, tone marks, points and accents are not matched by ``\\w``.
    """
    letters = rf"[^\W_][{mark_ranges()}{JOINERS}]*"
    return rf"(?:{letters})+(?:['’.-](?:{letters})+)*"


# Blocks of Unicode 17 that contain marks; searching all of Unicode takes 0.1 s.
_MARK_BLOCKS = (
    *((0x300, 0x3100), (0xA600, 0xAC00), (0xFB1E, 0xFB1F), (0xFE00, 0xFE30), (0x10000, 0x12000)),
    *((0x13400, 0x13480), (0x16100, 0x17000), (0x1BC00, 0x1BD00), (0x1CF00, 0x1D300)),
    *((0x1DA00, 0x1EA00), (0xE0100, 0xE01F0)),
)


@cache
def mark_ranges() -> str:
    """Returns all combining marks of Unicode as the inside of a character class."""
    codes = chain(*(range(*block) for block in _MARK_BLOCKS))
    marks = [code for code in codes if unicodedata.category(chr(code))[0] == "M"]
    starts = [code for before, code in pairwise([-1, *marks]) if code - before > 1]
    ends = [code for code, after in pairwise([*marks, sys.maxunicode + 2]) if after - code > 1]
    return "".join(f"{chr(a)}-{chr(b)}" for a, b in zip(starts, ends, strict=True))


@cache
def _marked_word() -> re.Pattern[str]:
    return re.compile(word_pattern())


@cache
def _attached() -> re.Pattern[str]:
    return re.compile(f"[{mark_ranges()}{JOINERS}\U000e0020-\U000e007f]")


def without_marks(text: str) -> str:
    """Returns a text without its combining marks, joiners and emoji tags."""
    return text if text.isascii() else _attached().sub("", text)


# Matches "F-16", "A380", "Boeing 747-400", "R2-D2" and "COVID-19", but not "IMG-1234".
_DESIGNATION = re.compile(
    r"(?!(?:img|image|dsc\w?|pict?|cimg|mvi|sam|wp|photo|picture|file|slide|fig|figure|abb|"
    r"page|screen|screenshot|bild|foto|thumb|banner|header|icon|logo|untitled|scan|p)[ -]?\d)"
    r"(?:(?:(?-i:[A-Z])[a-z]{1,20} )?(?-i:[A-Z])[a-z]{0,7}-?\d{1,4}[a-z]{0,2}(?:-\w{1,4})?"
    r"|(?-i:[A-Z]{2,5}) \d{1,4}[a-z]?|(?-i:[A-Z])[a-z]{1,20} \d{1,4}-\w{1,4})",
    re.IGNORECASE | re.ASCII,
)


def is_designation(text: str) -> bool:
    """Returns whether a text is the name of a model or a type: letters and a short number."""
    return _DESIGNATION.fullmatch(text) is not None and "_" not in text


def chinese_words(text: str) -> list[str]:
    """Returns the words of a Chinese text as jieba cuts it, including punctuation and spaces."""
    return list(_chinese()(text))


@cache
def _chinese() -> Segment:
    import rjieba

    cut: Segment = rjieba.cut
    return cut


@cache
def _japanese() -> Segment:
    from sudachipy import Dictionary, SplitMode

    tokenizer = Dictionary(dict="small").tokenizer(mode=SplitMode.A)
    return lambda text: [morpheme.surface() for morpheme in tokenizer.tokenize(text)]


@cache
def _thai() -> Segment:
    # It would create a folder in the user's home; its word list is in the package.
    os.environ.setdefault("PYTHAINLP_READ_ONLY", "1")
    from pythainlp.tokenize import word_tokenize

    # "safe": the plain engine is very slow on long runs with many possible cuts.
    return lambda text: word_tokenize(text, engine="newmm-safe", keep_whitespace=False)


_SEGMENTERS: dict[str, Callable[[], Segment]] = {"zh": _chinese, "ja": _japanese, "th": _thai}


def word_set(text: str) -> frozenset[str]:
    """Returns the set of words separated by spaces: long lists stay readable in the source."""
    return frozenset(text.split())


def file_words(url: str) -> tuple[str, ...]:
    """Returns a URL's file name as lower-case words: ``/a/Mona_Lisa-2.jpg`` gives mona, lisa."""
    name = urlsplit(url).path.rsplit("/", 1)[-1]
    stem = ESCAPED.sub(" ", name).rsplit(".", 1)[0]
    stem = re.sub(r"([a-z])([A-Z])", r"\1 \2", stem)
    return tuple(word.lower() for word in re.findall(r"[A-Za-z]{2,}", stem))
