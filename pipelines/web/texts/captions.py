"""Cleans texts, selects sentences, and applies the rules that a caption has to pass.

LAIT (ImageBERT, arXiv:2001.07966, section 3) removes bad spans and noisy words and keeps sentences
of normal length; the spans, words and numbers here are this project's.
"""

import html
import re
import unicodedata
from collections.abc import Iterator

from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web.texts.balance import remove_stray_mark, stray_marks, unwrap_quotes
from vlmill.pipelines.web.texts.lists import NO_LISTS, TextLists
from vlmill.pipelines.web.texts.personal import personal_data
from vlmill.pipelines.web.texts.sentences import sentences
from vlmill.pipelines.web.texts.words import (
    DENSE_LETTERS,
    JOINERS,
    is_designation,
    split_words,
    without_marks,
)
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason

_I = re.IGNORECASE
LONGEST_WORD = 40  # characters
MIN_CASED = 15  # words; in fewer, capitals may be a name or a headline's style
MAX_CAPITALS = 0.8  # of the letters
MAX_MARKS = 0.3  # of all characters except spaces
MAX_NAME_CHARS = 200
# Agencies with unambiguous names, and agencies whose names are also words: these are credits only
# next to a slash or a word for images.
_AGENCY = (
    r"(?:getty|reuters|shutterstock|istock|alamy|flickr|wikimedia|unsplash|pexels|corbis|afp|"
    r"associated press|ap photo|ap images|a\.?p\.?|epa|abc news|cbs|nbc|cnn|bbc|fox news)"
)
_NAMED_AGENCY = r"(?:bloomberg|splash|rex|instagram|twitter|facebook|youtube)"
_INSIDE = r"[^()\[\]]{0,60}"
_CREDIT = (
    r"(?:photo(?:graph(?:s|y|er)?|s)?(?: credit)?|images?(?: credit)?|picture(?: credit)?|credits?|"
    r"source|via)"
)
_OTHER_CREDIT = (
    r"(?:photo(?: credit)?|photo(?:graph|grapher|graphy|s)|(?:image|picture) credit|credits?|"
    r"fotos?|bildquelle|bildnachweis|crédits?(?: photo)?|photographe|fotografía|fotografia|"
    r"фото|写真|撮影|摄影|图片来源)"
)
# Spans without information about the image, in the order of their removal.
_SPANS = tuple(
    re.compile(pattern, flags)
    for pattern, flags in (
        (r"<[a-zA-Z/!][^<>]{0,300}>", 0),
        (r"\b(?:https?|ftp)://\S+|\bwww\.[^\s/]+\.\S+", _I),
        (r"\S*\.(?:jpe?g|png|gif|webp|svg|bmp|tiff?|pdf|html?)\b(?:\?\S*)?", _I),
        (r"\b(?:IMG|DSC|DSCN|DSCF|PICT|CIMG|P\d{3})[_-]?\d{3,}\b(?:[_-]\d+)*", _I),
        (r"\[(?:\d{1,3}|[a-z]|edit|note \d+|citation needed)\]", _I),
        (rf"[(\[]{_INSIDE}\b{_AGENCY}\b{_INSIDE}[)\]]", _I),
        (
            rf"[(\[](?={_INSIDE}(?:/|\b(?:via|photos?|images?)\b)){_INSIDE}\b{_NAMED_AGENCY}\b"
            rf"{_INSIDE}[)\]]",
            _I,
        ),
        (r"\((?:photo|image|picture|credit|source|via|courtesy|copyright|©)[^()]{0,80}\)", _I),
        (r"\((?:[\w-]+\.)+(?:com|org|net|it|co|uk|de|gov|edu|tv)\)", _I),
        (  # "in an image by a telescope" describes the image
            r"(?<!\bin an )(?<!\bin a )(?<!\bin the )(?<!\bin this )"
            r"\b(?:photo(?:graph)?|image|picture)s? (?:by|credit|courtesy|copyright)\b.*",
            _I,
        ),
        (rf"(?<=[.!?…)\"”]) ?{_CREDIT} ?:.*", _I),
        (rf"(?<=\w)\s[(\[]?{_OTHER_CREDIT} ?[:：]\s?[^.!?]{{0,80}}$", _I),
        (r"(?:©|\bcopyright\b).*", _I),
        (r"\b\d{3,5} ?[x×] ?\d{3,5}(?: ?(?:px|pixels))?\b", _I),
        (r"\s\|\s.*", 0),
    )
)
_PREFIX = re.compile(
    r"(?:(?:click|tap) (?:here |on (?:the |this )?(?:image|photo|picture) )?to "
    r"(?:enlarge|zoom|view)[:.]?\s*|enlarge (?:this )?(?:image|photo|picture)[:.]?\s*"
    r"|(?:image|photo|slide|picture) \d{1,3} (?:of|/) \d{1,3}[:.]?\s*"
    r"|(?:figure|fig)\.? ?\d{1,3}(?:[.-]\d{1,3}|[a-z])?[:.]?\s+"
    r"|(?:(?:an?|the|this) )?(?:stock )?(?:image|photo|photograph|picture|pic|file|thumbnail)s?"
    r"(?: (?:of|showing|shows)\b|:| -)\s*(?=\S))",
    _I,
)
_COPYRIGHT = re.compile(
    r"\(c\)\s*(?:(?:\d{4}|by|copyright)\b.*|(?-i:(?:[A-Z][\w.'’&-]*[,/ ]*){1,6})$)", _I
)
_PANEL = re.compile(r"\(b\)", _I)  # of a figure, whose third panel is (c)
_TITLE_TAIL = re.compile(r"\s»\s.*")
_EDGES = " \t*•·–—-|,;:/\\_~=+<>^`#、，；：\N{REPLACEMENT CHARACTER}"

# A single token that is a file name, or that a machine made from one.
_FILE_NAME = re.compile(
    r"\S+\.(?:jpe?g|png|gif|webp|avif|svg|bmp|tiff?|heic|pdf)(?:\?\S*)?"
    r"|(?=\S*[_\d])(?=\S*[_-])[\w.-]+|(?:IMG|DSC|DSCN|DSCF|PICT|CIMG|MVI|SAM|WP)_?\d{3,}\S*"
    r"|[0-9a-f]{12,}",
    _I,
)
_REPEATED_MARKS = re.compile(r"([!?*~$^])\s?\1\s?\1|[#@]\w+\s[^#@]{0,20}[#@]\w+\s[^#@]{0,20}[#@]\w")
_MARKS = re.compile(r"[^\w\s]")
_DENSE = re.compile(f"[{DENSE_LETTERS}]")

# Labels of buttons and links: a verb directly followed by its object. "View from the top of the
# tower" and "Shop window full of eggs" only begin like them.
_VERB = (
    r"(?:read|see|view|show|learn|find out|load|skip|go|back|next|previous|share|follow|register|"
    r"download|buy|shop|get|watch)(?: (?:to|the|our|your|my|a|on|in|for|it|at|us))*"
)
_TARGET = (
    r"(?:us|links?|page|cart|menu|content|adjacent|full|this|list|images?|photos?|videos?|"
    r"articles?|free|today|newsletter|app|account|top|home|gallery|posts?|story)"
)
_BOILERPLATE = re.compile(
    r"^(?:click|tap|subscribe|sign (?:in|up)|log ?in|add to (?:cart|bag|basket|wish))\b"
    rf"|^{_VERB} (?:here|more|all|now|larger)\b(?:\W+\w+){{0,4}}\W*$"
    rf"|^{_VERB} {_TARGET}\b(?:\W+\w+)?\W*$"
    rf"|^{_VERB}(?:\W+\w+){{0,3}} (?:here|now|today|online)\W*$"
    r"|^(?:advertisement|sponsored|image|photo|picture|untitled|thumbnail|placeholder|loading|"
    r"no (?:image|photo|description|caption)|caption|default|slide|banner|logo|icon|home ?page)"
    r"(?:\W*\d*$|(?: \w+){0,2} (?:available|here|goes|text|image|content|link)\W*$)"
    r"|^(?:(?:posted|published|updated|written|filed|last modified)(?: by| on|:)"
    r"|(?:posted|filed) (?:in|under)\b|courtesy(?: of|:)|credits?(?: to|:)|permalink\b"
    r"|(?:source|via|tags?|categor\w+|main articles?|see also|further information)\s?:)"
    r"|\ball rights reserved\b|\bterms of (?:use|service)\b|\bprivacy policy\b"
    r"|\bcookies?\b.*\bsite\b"
    r"|\b(?:enable|activate|requires?|needs?|turn on|without)\b.{0,30}\bjavascript\b"
    r"|\bjavascript\b.{0,30}\b(?:enabled?|disabled?|required|turned o\w+|switched o\w+|browser)\b"
    r"|\blorem ipsum\b|\bjpe?g\b|^powered by\b|\bmay be an? \w+ of\b"
    r"|(?:^|\b(?:image|photo|picture|video) )may contain\b|\bmay contain:"
    r"|^\d+ (?:comments?|likes?|views?|shares?|replies|reviews?)\b(?! of\b)",
    _I,
)


def clean(text: str, max_chars: int = 2_000) -> str:
    """Removes markup, addresses, file names, credits and "image of"; folds spaces.

    The first ``max_chars`` characters count. Idempotent, never longer than :func:`plain` of the
    text, and free of control characters and surrogates.
    """
    text = plain(text, max_chars)
    while (shorter := _clean_once(text, max_chars)) != text:
        text = shorter
    return text


def plain(text: str, max_chars: int = 2_000) -> str:
    """Resolves entities, normalises to NFKC, removes control and invisible characters.

    Joiners between letters and inside emoji stay, and the tags of a flag's emoji.
    """
    text = text[:max_chars]
    while "&" in text and (resolved := html.unescape(text)) != text:
        text = resolved
    text = unicodedata.normalize("NFKC", text)
    if text.isprintable():  # no characters of category C; most texts end here
        return text[:max_chars]
    characters: list[str] = []
    for character in text:
        if not unicodedata.category(character).startswith("C"):
            characters.append(character)
        elif character.isspace() or character in "\x1c\x1d\x1e\x1f":
            characters.append(" ")
        elif _joins(characters[-1] if characters else "", character):
            characters.append(character)
    return unicodedata.normalize("NFKC", "".join(characters)[:max_chars])[:max_chars]


def _joins(before: str, character: str) -> bool:
    """Returns whether a joiner or an emoji's tag belongs to the character before it."""
    if character in JOINERS:
        return before > "\x7f" and not before.isspace() and before not in JOINERS
    return "\U000e0020" <= character <= "\U000e007f" and (
        before == "\U0001f3f4" or "\U000e0020" <= before <= "\U000e007f"
    )


def _clean_once(text: str, max_chars: int) -> str:
    text = plain(text, max_chars)  # a removed span may have completed an entity
    for span in _SPANS:
        text = span.sub(" ", text)
    if not _PANEL.search(text):
        text = _COPYRIGHT.sub(" ", text)
    if "«" not in text:  # otherwise it is the end of a quotation
        text = _TITLE_TAIL.sub(" ", text)
    text = re.sub(r"\(\s*[;,/]?\s*\)|\[\s*\]", " ", text)
    text = re.sub(r"\s+([,.;:!?])", r"\1", " ".join(text.split()))
    text = text.strip(_EDGES)
    prefix = _PREFIX.match(text)
    remainder = text[prefix.end() :] if prefix else text
    if prefix and remainder:
        # The remainder was the middle of a sentence; it becomes the beginning of one.
        text = remainder[0].upper() + remainder[1:] if len(remainder[0].upper()) == 1 else remainder
    return text


def fault(
    sentence: str, rules: WebPairRules, language: str | None = None, lists: TextLists = NO_LISTS
) -> Reason | None:
    """Returns why a sentence is not a caption, or None."""
    words = split_words(sentence, language)
    if not words:
        return Reason.NO_TEXT
    is_name = is_designation(sentence)
    if not is_name and _FILE_NAME.fullmatch(sentence):
        return Reason.FILE_NAME
    if lists.blocks(sentence, language):
        return Reason.BLOCKED_WORD
    if not rules.keep_personal_data and personal_data(sentence):
        return Reason.PERSONAL_DATA
    if _BOILERPLATE.search(sentence):
        return Reason.BOILERPLATE
    if len(words) < rules.min_words:
        return Reason.TOO_SHORT
    if len(words) > rules.max_words:
        return Reason.TOO_LONG
    return None if is_name else _form_fault(sentence, words, rules, lists, language)


def _form_fault(
    sentence: str, words: list[str], rules: WebPairRules, lists: TextLists, language: str | None
) -> Reason | None:
    """Returns the fault in the letters, marks or words of a sentence with acceptable content."""
    plain_letters = without_marks(sentence)  # vowel signs and accents belong to their letters
    letters = [c for c in plain_letters if c.isalpha()]
    dense = len(_DENSE.findall(plain_letters))
    size = len(plain_letters.replace(" ", ""))
    # A year of four digits may be next to two or three characters that mean as much as ten letters.
    if len(letters) + dense < rules.min_alphabetic * (size + dense):
        return Reason.NOT_WORDS
    if max(map(len, words)) > LONGEST_WORD and not dense:
        return Reason.NOT_WORDS
    # The share of words that repeat an earlier one.
    if 1 - len({word.lower() for word in words}) / len(words) > rules.max_repetition:
        return Reason.REPETITIVE
    if _is_list(sentence, words):
        return Reason.NOT_A_SENTENCE
    if len(words) >= MIN_CASED and sum(map(str.isupper, letters)) > MAX_CAPITALS * len(letters):
        return Reason.CAPITALS
    if _REPEATED_MARKS.search(sentence) or len(_MARKS.findall(plain_letters)) > MAX_MARKS * size:
        return Reason.PUNCTUATION
    if stray_marks(sentence):
        return Reason.UNBALANCED
    if lists.unknown_share(words, language) > rules.max_unknown_words:
        return Reason.UNKNOWN_WORDS
    return None


def _is_list(sentence: str, words: list[str]) -> bool:
    """Returns whether separators are between nearly all words: keywords, a menu, a path."""
    separators = len(re.findall(r"[,;|/>•·]|\s[-–—]\s", sentence))
    return separators >= 3 and separators >= 0.4 * len(words)


def extract_caption(
    text: str, rules: WebPairRules, language: str | None = None, lists: TextLists = NO_LISTS
) -> str | Drop:
    """Returns the caption in ``text``: the first sentence that passes, and the next that fit.

    A text without a passing sentence is dropped for the fault of its first one. ``language``
    (ISO 639-1) selects how words are split. A caption's quotation marks and brackets are
    balanced: no pair is cut, and a single stray mark is removed.
    """
    name = plain(text, rules.max_text_chars).strip()
    if _FILE_NAME.fullmatch(name) and not is_designation(name):
        return Drop(Reason.FILE_NAME, text[:MAX_NAME_CHARS])
    cleaned = clean(text, rules.max_text_chars)
    passing: list[str] = []
    faults: list[Reason] = []
    length = 0
    for sentence in whole_sentences(cleaned):
        wrong = fault(sentence, rules, language, lists)
        length += len(split_words(sentence, language)) if wrong is None else 0
        if wrong is None and length <= rules.max_words:
            passing.append(sentence)
        elif passing:
            break
        elif wrong is not None:
            faults.append(wrong)
    if passing:
        caption = _joined(passing)
        return caption if fault(caption, rules, language, lists) is None else passing[0]
    return Drop(faults[0] if faults else Reason.NO_TEXT, cleaned or None)


def whole_sentences(text: str) -> Iterator[str]:
    """Yields sentences; sentences inside a quotation or brackets stay with the enclosing sentence.

    A single stray mark is removed; a text with more is cut into sentences unchanged.
    """
    parts: list[str] = []
    for sentence in sentences(text):
        parts.append(sentence)
        passage = _joined(parts)
        if not stray_marks(passage):
            yield unwrap_quotes(passage)
            parts = []
    for sentence in parts:  # a mark that opens in the first of them never closes
        yield unwrap_quotes(remove_stray_mark(sentence) or sentence)


def _joined(parts: list[str]) -> str:
    """Joins sentences, with a space between if the script has spaces."""
    text = ""
    for part in parts:
        space = "" if not text or (text[-1] in "。！？」』”）" and _DENSE.match(part)) else " "
        text += f"{space}{part}"
    return text
