"""Computes named features of a pair's text alone, and of its source and addresses.

LAIT's scorer has "hundreds of features" in three groups (ImageBERT, arXiv:2001.07966, section 3),
which are not listed there; these are vlmill's. Unknown values are NaN.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from vlmill.pipelines.web.texts.balance import stray_marks
from vlmill.pipelines.web.texts.words import file_words, word_set

NAN = float("nan")
# Words by their role in a caption; features are the share and the presence of each role.
WORD_CLASSES: dict[str, frozenset[str]] = {
    "articles": word_set("a an the"),
    "places": word_set("in on at under over behind near beside between across along inside"),
    "prepositions": word_set("of with by from to for into during through against without about"),
    "conjunctions": word_set("and or but while as because if when than that"),
    "auxiliaries": word_set("is are was were be been being has have had do does did will can"),
    "modals": word_set("should could must may might shall need"),
    "first_person": word_set("i me my mine we us our ours myself let's i'm we're i've"),
    "second_person": word_set("you your yours yourself you're you'll"),
    "third_person": word_set("he him his she her hers they them their theirs it its"),
    "pointing": word_set("this that these those here there"),
    "questions": word_set("what who where when why how which whose"),
    "negations": word_set("not no never none nothing nobody without don't isn't can't"),
    "number_words": word_set("one two three four five six seven eight nine ten several many both"),
    "colours": word_set(
        "red orange yellow green blue purple pink brown black white grey gray golden silver"
    ),
    "people": word_set(
        "man woman boy girl child children people person men women baby family group crowd player "
        "couple kid kids team lady guy friends mother father actor actress president portrait"
    ),
    "animals": word_set("dog cat horse bird cow sheep bear elephant fish lion tiger monkey puppy"),
    "nature": word_set(
        "sea beach mountain river lake forest tree trees flower flowers sky sunset sun snow water "
        "garden field hill rock island park grass cloud clouds night day"
    ),
    "town": word_set(
        "street city building house church bridge road tower station castle square shop town room "
        "kitchen car bus train boat ship plane bike window door table chair wall"
    ),
    "seeing": word_set("view seen shows showing scene close-up aerial background front detail"),
    "actions": word_set(
        "sitting standing walking running playing holding looking wearing riding eating smiling "
        "sits stands walks runs plays holds looks wears rides eats smiles during performs"
    ),
    "calls": word_set(
        "click read buy shop order subscribe share download watch learn see more sign join free "
        "now sale get follow login register view"
    ),
    "page": word_set(
        "image photo image page post article blog site website home menu logo icon banner "
        "thumbnail gallery comment comments author admin copyright caption credit courtesy"
    ),
    "trade": word_set("price sale new free shipping size color pack set off buy cheap best offer"),
    "drawings": word_set(
        "chart graph diagram map plot table screenshot figure illustration logo drawing cartoon "
        "infographic poster cover flowchart schematic"
    ),
    "months": word_set(
        "january february march april may june july august september october november december"
    ),
    "weekdays": word_set("monday tuesday wednesday thursday friday saturday sunday"),
    "praise": word_set("amazing beautiful best great awesome perfect lovely stunning top good"),
}
ENDINGS = ("s", "ing", "ed", "ly", "er", "est", "tion", "ness", "al")
_ENDING_SIZES = sorted({len(ending) for ending in ENDINGS})
MARKS = {
    "commas": ",",
    "stops": ".",
    "exclamations": "!",
    "question_marks": "?",
    "colons": ":",
    "semicolons": ";",
    "hyphens": "-",
    "dashes": "–—",
    "slashes": "/\\",
    "bars": "|»•·",
    "quotes": '"“”„«',
    "brackets": "()[]",
    "apostrophes": "'’",
    "ampersands": "&",
    "tags": "#@",
    "signs": "%$€£",
    "ellipses": "…",
}
SCRIPTS = {
    "latin": re.compile(r"[A-Za-zÀ-ɏ]"),
    "cyrillic": re.compile(r"[Ѐ-ӿ]"),
    "han": re.compile(r"[\u3400-\u9fff]"),
    "kana": re.compile(r"[\u3040-\u30ff]"),
    "hangul": re.compile(r"[\uac00-\ud7af]"),
    "thai": re.compile(r"[\u0e00-\u0e7f]"),
    "arabic": re.compile(r"[\u0600-\u06ff]"),
}
LANGUAGES = ("en", "de", "fr", "es", "ru", "zh", "ja")
SOURCES = ("alt", "title", "figcaption", "surrounding", "metadata", "human")
FILE_ENDINGS = ("jpg", "jpeg", "png", "webp", "gif", "avif")
_YEAR = re.compile(r"\b(?:1[5-9]|20)\d\d\b")
_DATE = re.compile(r"\b\d{1,4}[./-]\d{1,2}[./-]\d{1,4}\b")
_SENTENCES = re.compile(r"[.!?。！？]+(?:\s|$)|[。！？]")
_PUNCTUATION = {mark: name for name, marks in MARKS.items() for mark in marks}
_CLASSES_OF: dict[str, list[str]] = {}
for _name, _words in WORD_CLASSES.items():
    for _word in _words:
        _CLASSES_OF.setdefault(_word, []).append(_name)

FORM = (
    *("chars", "words", "sentences", "mean_word_chars", "longest_word_chars", "chars_a_sentence"),
    *("letters_share", "digits_share", "spaces_share", "marks_share", "capitals_share"),
    *("capital_words_share", "all_capital_words_share", "short_words_share", "long_words_share"),
    *("words_with_digits_share", "first_is_capital", "first_is_digit", "ends_with_stop"),
    *("ends_with_letter", "distinct_words_share", "most_frequent_word_share", "years", "dates"),
    *("stray_marks", "listing_share", "capital_names_share", "longest_name"),
    *("common_words_mean", "common_words_least", "unknown_words_share"),
)
WORDS = (
    *(f"{name}_share" for name in WORD_CLASSES),
    *(f"has_{name}" for name in WORD_CLASSES),
    *(f"ending_{ending}_share" for ending in ENDINGS),
    *(f"first_is_of_{name}" for name in ("articles", "calls", "page", "people", "first_person")),
)
SIGNS = (*(f"{name}_each_word" for name in MARKS), *(f"{name}_share" for name in SCRIPTS))
PLACE = (
    *(f"language_{code}" for code in (*LANGUAGES, "other")),
    *(f"source_{name}" for name in (*SOURCES, "other")),
    *("file_name_words", "file_name_words_in_text", "text_words_in_file_name", "file_name_digits"),
    *("file_name_chars", "page_url_words_in_text", "same_host", "page_depth", "image_depth"),
    *("page_has_query", "image_has_query", "image_url_names_a_size"),
    *(f"file_ends_{ending}" for ending in (*FILE_ENDINGS, "other")),
)
_SIZE = re.compile(r"\d{2,4}x\d{2,4}|[_-](?:thumb|small|large|medium)\b|/\d{2,4}px-")


def text_features(
    text: str, words: Sequence[str], frequency: Mapping[str, float] | None
) -> list[float]:
    """Returns the features of FORM, WORDS and SIGNS, in this order.

    ``words`` are the text's words, ``frequency`` their shares in a corpus by lower-case form.
    """
    lowered = [word.lower() for word in words]
    return [
        *_form(text, words, lowered, frequency),
        *_word_features(lowered),
        *_signs(text, len(words)),
    ]


def _form(
    text: str, words: Sequence[str], lowered: Sequence[str], frequency: Mapping[str, float] | None
) -> list[float]:
    size, count = max(1, len(text)), max(1, len(words))
    letters = [c for c in text if c.isalpha()]
    capitals = sum(map(str.isupper, letters))
    digits, spaces = sum(map(str.isdigit, text)), text.count(" ")
    lengths = [len(word) for word in words] or [0]
    upper = [word[:1].isupper() for word in words]
    sentences = max(1, len(_SENTENCES.findall(text)))
    names = sum(upper[1:])
    run = longest = 0
    for capital in upper[1:]:
        run = run + 1 if capital else 0
        longest = max(longest, run)
    counts = Counter(lowered)
    shares = [] if frequency is None else [frequency[word] for word in lowered]
    return [
        len(text),
        len(words),
        sentences,
        sum(lengths) / count,
        max(lengths),
        len(text) / sentences,
        len(letters) / size,
        digits / size,
        spaces / size,
        (size - len(letters) - digits - spaces) / size,
        capitals / max(1, len(letters)),
        sum(upper) / count,
        sum(word.isupper() and len(word) > 1 for word in words) / count,
        sum(length <= 3 for length in lengths) / count,
        sum(length >= 9 for length in lengths) / count,
        sum(any(map(str.isdigit, word)) for word in words) / count if digits else 0.0,
        float(text[:1].isupper()),
        float(text[:1].isdigit()),
        float(text[-1:] in ".!?。！？"),
        float(text[-1:].isalpha()),
        len(counts) / count,
        max(counts.values(), default=0) / count,
        len(_YEAR.findall(text)) if digits else 0,
        len(_DATE.findall(text)) if digits else 0,
        len(stray_marks(text)),
        sum(map(text.count, (",", "|", "•", " - "))) / count,
        names / count,
        longest,
        *_commonness(shares),
    ]


def _commonness(shares: Sequence[float]) -> list[float]:
    if not shares:
        return [NAN, NAN, NAN]
    return [
        sum(shares) / len(shares),
        min(shares),
        sum(not share for share in shares) / len(shares),
    ]


def _word_features(lowered: Sequence[str]) -> list[float]:
    count = max(1, len(lowered))
    classes = Counter(name for word in lowered for name in _CLASSES_OF.get(word, ()))
    endings = Counter(word[-size:] for word in lowered for size in _ENDING_SIZES)
    first = _CLASSES_OF.get(lowered[0], ()) if lowered else ()
    return [
        *(classes[name] / count for name in WORD_CLASSES),
        *(float(name in classes) for name in WORD_CLASSES),
        *(endings[ending] / count for ending in ENDINGS),
        *(float(n in first) for n in ("articles", "calls", "page", "people", "first_person")),
    ]


def _signs(text: str, words: int) -> list[float]:
    marks = Counter(_PUNCTUATION[c] for c in text if c in _PUNCTUATION)
    size = max(1, len(text))
    if text.isascii():
        latin = sum(map(str.isalpha, text)) / size
        scripts = [latin, *[0.0] * (len(SCRIPTS) - 1)]
    else:
        scripts = [len(pattern.findall(text)) / size for pattern in SCRIPTS.values()]
    return [*(marks[name] / max(1, words) for name in MARKS), *scripts]


def place_features(pair: Mapping[str, Any], words_said: Sequence[str]) -> list[float]:
    """Returns the features of PLACE: a pair's language, source and addresses, with its words."""
    language, source = pair.get("language"), pair.get("text_source")
    page_url, image_url = pair.get("page_url"), pair.get("image_url")
    words = {word.lower() for word in words_said}
    values = [*_one_hot(language, LANGUAGES), *_one_hot(source, SOURCES)]
    if not image_url:
        return [*values, *[NAN] * (len(PLACE) - len(values))]
    image, page = _parts(image_url), _parts(page_url or "")
    name = set(file_words(image_url))
    file_name = image[1].rsplit("/", 1)[-1]
    page_words = set(re.findall(r"[a-z]{3,}", page[1].lower()))
    return [
        *values,
        len(name),
        len(name & words) / max(1, len(name)),
        len(name & words) / max(1, len(words)),
        sum(map(str.isdigit, file_name)) / max(1, len(file_name)),
        len(file_name),
        len(page_words & words) / max(1, len(words)) if page_url else NAN,
        float(image[0] == page[0]) if page_url else NAN,
        page[1].count("/") if page_url else NAN,
        image[1].count("/"),
        float(bool(page[2])) if page_url else NAN,
        float(bool(image[2])),
        float(bool(_SIZE.search(image_url))),
        *_one_hot(file_name.rpartition(".")[2].lower(), FILE_ENDINGS),
    ]


def _one_hot(value: str | None, known: Sequence[str]) -> list[float]:
    """Returns 1 at the matching known value, or at the end for another; all NaN for None."""
    if value is None:
        return [NAN] * (len(known) + 1)
    return [*(float(value == option) for option in known), float(value not in known)]


def _parts(url: str) -> tuple[str, str, str]:
    try:
        parts = urlsplit(url)
    except ValueError:  # a bracket outside an IPv6 address
        return "", url, ""
    return parts.netloc, parts.path, parts.query
