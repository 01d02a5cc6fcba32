"""Finds words that two texts share, in scripts with and without spaces between words."""

import re
import unicodedata
from functools import lru_cache
from urllib.parse import unquote, urlsplit

from vlmill.pipelines.web.texts.words import DENSE_LETTERS, split_words, word_set

_DENSE = re.compile(f"[{DENSE_LETTERS}]+")
# Words without a subject, in the languages of the pages that were examined.
_EMPTY = word_set(
    "a an the of in on at with by from to and or for near as is are was were be this that these "
    "it its his her their my your our we you i he she they not but so if into over up out all "
    "der die das den dem des ein eine einer eines einem und oder in im auf mit von zu zum zur für "
    "ist sind war nicht ich wir sie es als auch an bei aus nach "
    "и в во на с со по из у к от до за для не что как это мы я он она они но или о об при же "
    "le la les un une des de du et ou dans sur avec pour par est au aux en que qui "
    "el los las una unos y o con por para es su al del se lo "
    "image images img photo photos image pic foto bild file thumb thumbnail small large"
)


# File names transliterate other scripts; an ambiguous letter ("х": h, kh, x) gets one spelling.
_LATIN = str.maketrans(
    dict(zip("абвгдезийклмнопрстуфхцыэёєіїґъь", "abvgdeziyklmnoprstufhcyeeeiig\0\0", strict=True))
    | {"ж": "zh", "ч": "ch", "ш": "sh", "щ": "sch", "ю": "yu", "я": "ya"}
    | {"ß": "ss", "æ": "ae", "ø": "o", "ł": "l", "đ": "d", "œ": "oe"}
)
_STEM = 6  # letters that are compared: endings differ


@lru_cache(maxsize=4_096)
def subject(text: str) -> frozenset[str]:
    """Returns the subject words of a text, in Latin letters without accents, cut to stems.

    In scripts without spaces between words, every two adjacent characters are a word.
    """
    units: set[str] = set()
    if not text.isascii():
        for run in _DENSE.findall(text):
            units.update(run[i : i + 2] for i in range(len(run) - 1))
        text = _DENSE.sub(" ", text)
    for word in split_words(text.lower().replace("-", " ")):
        if len(word) > 2 and word not in _EMPTY and not word.isdigit():
            units.add(_latin(word)[:_STEM])
    return frozenset(units)


def _latin(word: str) -> str:
    if word.isascii():
        return word
    split = unicodedata.normalize("NFKD", word.translate(_LATIN).replace("\0", ""))
    return "".join(c for c in split if not unicodedata.combining(c))


@lru_cache(maxsize=4_096)
def name_subject(url: str) -> frozenset[str]:
    """Returns the subject words of a URL's file name: ``/a/Mona_Lisa-2.jpg`` gives mona, lisa."""
    name = _NUMBERED.sub(r"\1", _HUMP.sub(r"\1 \2", file_stem(url)[:300]))
    return frozenset(unit for unit in subject(APART.sub(" ", name)) if not _CODE.search(unit))


def file_stem(url: str) -> str:
    """Returns the name of a URL's file without its ending: ``/a/Mona%20Lisa.jpg``, Mona Lisa."""
    return unquote(urlsplit(url).path.rsplit("/", 1)[-1]).rsplit(".", 1)[0]


_HUMP = re.compile(r"([a-z])([A-Z])")
_NUMBERED = re.compile(r"([^\W\d_]{4,})\d{1,2}(?![^\W_])")  # the third of several images
APART = re.compile(r"[\W_]+")
_CODE = re.compile(r"\d")


def compute_overlap(words: frozenset[str], other: frozenset[str]) -> float:
    """Returns the share of the smaller set that is in the other; 0 if one is empty."""
    if not words or not other:
        return 0.0
    return len(words & other) / min(len(words), len(other))


_IDEOGRAPHS = re.compile("[\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
_SYLLABLES = re.compile("[\u3040-\u30ff\uac00-\ud7af]")
_LETTERS_A_WORD, _IDEOGRAPH, _SYLLABLE = 6, 0.6, 0.4  # a space included; words a character


def text_size(text: str) -> float:
    """Returns the number of English words that would express a text of any script.

    Six characters of an alphabet are a word, space included. An ideograph is 0.6 words, a kana or
    a Korean syllable 0.4: translations between these scripts and English have these ratios.
    """
    if text.isascii():
        return len(text) / _LETTERS_A_WORD
    ideographs = len(text) - len(_IDEOGRAPHS.sub("", text))
    syllables = len(text) - len(_SYLLABLES.sub("", text))
    letters = len(text) - ideographs - syllables
    return letters / _LETTERS_A_WORD + ideographs * _IDEOGRAPH + syllables * _SYLLABLE
