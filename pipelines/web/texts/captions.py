"""Texts: cleaning, sentence detection, and the rules that a caption has to pass.

LAIT (ImageBERT, arXiv:2001.07966, section 3) removes bad spans and noisy words and keeps sentences
of normal length; the spans, words and numbers here are ours.
"""

import html
import re
import unicodedata
from collections.abc import Iterator

from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web.texts.balance import remove_stray_mark, stray_marks, unwrapped
from vlmill.pipelines.web.texts.lists import NO_LISTS, TextLists
from vlmill.pipelines.web.texts.personal import personal_data
from vlmill.pipelines.web.texts.sentences import sentences
from vlmill.pipelines.web.texts.words import split_words
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason

_I = re.IGNORECASE
LONGEST_WORD = 40  # characters
MIN_CASED = 15  # words; of fewer, capitals may be a name or a headline's style
MAX_CAPITALS = 0.8  # of the letters
MAX_MARKS = 0.3  # of what is no space
MAX_NAME_CHARS = 200
_AGENCY = (
    r"(?:getty|reuters|shutterstock|istock|alamy|flickr|wikimedia|unsplash|pexels|corbis|afp|"
    r"associated press|ap photo|ap images|a\.?p\.?|epa|bloomberg|splash|rex|instagram|twitter|"
    r"facebook|youtube|abc news|cbs|nbc|cnn|bbc|fox news)"
)
# Spans that say nothing about the image, in the order in which they go.
_SPANS = tuple(
    re.compile(pattern, flags)
    for pattern, flags in (
        (r"<[a-zA-Z/!][^<>]{0,300}>", 0),
        (r"\b(?:https?|ftp)://\S+|\bwww\.[^\s/]+\.\S+", _I),
        (r"\S*\.(?:jpe?g|png|gif|webp|svg|bmp|tiff?|pdf|html?)\b(?:\?\S*)?", _I),
        (r"\b(?:IMG|DSC|DSCN|DSCF|PICT|CIMG|P\d{3})[_-]?\d{3,}\b(?:[_-]\d+)*", _I),
        (r"\[(?:\d{1,3}|[a-z]|edit|note \d+|citation needed)\]", _I),
        (r"[(\[][^()\[\]]{0,60}\b" + _AGENCY + r"\b[^()\[\]]{0,60}[)\]]", _I),
        (r"\((?:photo|image|picture|credit|source|via|courtesy|copyright|©)[^()]{0,80}\)", _I),
        (r"\((?:[\w-]+\.)+(?:com|org|net|it|co|uk|de|gov|edu|tv)\)", _I),
        (  # "in an image by a telescope" is said of the image
            r"(?<!\bin an )(?<!\bin a )(?<!\bin the )(?<!\bin this )"
            r"\b(?:photo(?:graph)?|image|picture)s? (?:by|credit|courtesy|copyright)\b.*",
            _I,
        ),
        (r"(?<=[.!?…)\"”]) ?(?:photo(?:graph|s)?|image|picture|credits?|source|via) ?:.*", _I),
        (r"(?:©|\(c\)|\bcopyright\b).*", _I),
        (r"\b\d{2,5} ?[x×] ?\d{2,5}(?: ?(?:px|pixels))?\b", _I),
        (r"\s[|»]\s.*", 0),
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
_EDGES = " \t*•·–—-|,;:/\\_~=+<>^`#、，；："

# One token that is a file's name, or was made by a machine out of one.
_FILE_NAME = re.compile(
    r"\S+\.(?:jpe?g|png|gif|webp|avif|svg|bmp|tiff?|heic|pdf)(?:\?\S*)?"
    r"|(?=\S*[_\d])(?=\S*[_-])[\w.-]+|(?:IMG|DSC|DSCN|DSCF|PICT|CIMG|MVI|SAM|WP)_?\d{3,}\S*"
    r"|[0-9a-f]{12,}",
    _I,
)
_REPEATED_MARKS = re.compile(r"([!?*~$^])\s?\1\s?\1|[#@]\w+\s[^#@]{0,20}[#@]\w+\s[^#@]{0,20}[#@]\w")
_MARKS = re.compile(r"[^\w\s]")
# Letters that stand for syllables or more: of Chinese, Japanese, Korean and Thai.
_DENSE = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]")

_BOILERPLATE = re.compile(
    r"^(?:click|tap|read|see|view|show|learn|find out|load|skip|go|back|next|previous|share|"
    r"follow|subscribe|sign (?:in|up)|log ?in|register|download|buy|shop|add to|get the|watch)\b"
    r"(?=.{0,30}\b(?:here|more|all|now|us|link|page|cart|menu|content|adjacent|larger|full|this|"
    r"list|image|photo|video|article|free|today|newsletter|app|account|list|top|home)\b)"
    r"|^(?:advertisement|sponsored|image|photo|picture|untitled|thumbnail|placeholder|loading|"
    r"no (?:image|photo|description|caption)|caption|default|slide|banner|logo|icon|home ?page)"
    r"(?:\W*\d*$|\b.{0,20}\b(?:available|here|goes|text|image|content|link)\b)"
    r"|^(?:courtesy|credit|source|via|posted|published|updated|written|filed|tags?|categor\w+|"
    r"last modified|permalink|main articles?|see also|further information)\b(?: of| by| in| on|:)"
    r"|\ball rights reserved\b|\bterms of (?:use|service)\b|\bprivacy policy\b"
    r"|\bcookies?\b.*\bsite\b"
    r"|\b(?:enable|activate|requires?|needs?|turn on|without)\b.{0,30}\bjavascript\b"
    r"|\bjavascript\b.{0,30}\b(?:enabled?|disabled?|required|turned o\w+|switched o\w+|browser)\b"
    r"|\blorem ipsum\b|\bmay contain\b|\bjpe?g\b|\bpowered by\b"
    r"|^\d+ (?:comments?|likes?|views?|shares?|replies|reviews?)\b",
    _I,
)
# Short and blunt on purpose: words that in a caption mean pornography or spam and little else.
_BLOCKED = re.compile(
    r"\b(?:porn\w*|xxx|hentai|milfs?|blowjobs?|cumshots?|camgirls?|gangbang|deepthroat|"
    r"nude teens?|sex (?:cams?|chat|tapes?|videos?)|escorts?|viagra|cialis|levitra|payday loans?|"
    r"casino bonus\w*|online casinos?|replica watches|cheap (?:nike|nfl|jerseys|viagra|essays?)|"
    r"essay writing service|free download(?:s|ing)?|full crack|keygens?|torrents?|"
    r"weight loss pills?|forex signals?)\b",
    _I,
)


def clean(text: str, max_chars: int = 2_000) -> str:
    """Takes markup, addresses, file names, credits and "image of" away; folds spaces.

    The first ``max_chars`` characters count. Idempotent, never longer than :func:`plain` of the
    text, and free of control characters and surrogates.
    """
    text = plain(text, max_chars)
    while (shorter := _clean_once(text, max_chars)) != text:
        text = shorter
    return text


def plain(text: str, max_chars: int = 2_000) -> str:
    """Resolves entities, brings to NFKC, takes control and invisible characters away."""
    text = text[:max_chars]
    while "&" in text and (resolved := html.unescape(text)) != text:
        text = resolved
    text = unicodedata.normalize("NFKC", text)
    if text.isprintable():  # nothing of category C is; most texts end here
        return text[:max_chars]
    characters = (c if not unicodedata.category(c).startswith("C") else _replace(c) for c in text)
    return unicodedata.normalize("NFKC", "".join(characters)[:max_chars])[:max_chars]


def _replace(control: str) -> str:
    return " " if control.isspace() or control in "\x1c\x1d\x1e\x1f" else ""


def _clean_once(text: str, max_chars: int) -> str:
    text = plain(text, max_chars)  # a span that went may have brought an entity together
    for span in _SPANS:
        text = span.sub(" ", text)
    text = re.sub(r"\(\s*[;,/]?\s*\)|\[\s*\]", " ", text)
    text = re.sub(r"\s+([,.;:!?])", r"\1", " ".join(text.split()))
    text = _strip_edges(text)
    prefix = _PREFIX.match(text)
    remainder = text[prefix.end() :] if prefix else text
    if prefix and remainder:
        # What follows was the middle of a sentence; now it starts one.
        text = remainder[0].upper() + remainder[1:] if len(remainder[0].upper()) == 1 else remainder
    return text


def _strip_edges(text: str) -> str:
    return text.strip(_EDGES + "\N{REPLACEMENT CHARACTER}")


def fault(
    sentence: str,
    rules: WebPairRules,
    language: str | None = None,
    lists: TextLists = NO_LISTS,
) -> Reason | None:
    """Says why a sentence is no caption, or returns None."""
    words = split_words(sentence, language)
    if not words:
        return Reason.NO_TEXT
    if _FILE_NAME.fullmatch(sentence):
        return Reason.FILE_NAME
    if _BLOCKED.search(sentence) or lists.blocks(sentence):
        return Reason.BLOCKED_WORD
    if not rules.keep_personal_data and personal_data(sentence):
        return Reason.PERSONAL_DATA
    if _BOILERPLATE.search(sentence):
        return Reason.BOILERPLATE
    if len(words) < rules.min_words:
        return Reason.TOO_SHORT
    if len(words) > rules.max_words:
        return Reason.TOO_LONG
    return _form_fault(sentence, words, rules, lists)


def _form_fault(
    sentence: str, words: list[str], rules: WebPairRules, lists: TextLists
) -> Reason | None:
    """What is wrong with letters, marks and words of a sentence that says the right things."""
    letters = [c for c in sentence if c.isalpha()]
    dense = len(_DENSE.findall(sentence))
    size = len(sentence.replace(" ", ""))
    # A year of four digits stands beside two or three characters that say as much as ten letters.
    if len(letters) + dense < rules.min_alphabetic * (size + dense):
        return Reason.NOT_WORDS
    if max(map(len, words)) > LONGEST_WORD and not dense:
        return Reason.NOT_WORDS
    if _repetition(words) > rules.max_repetition:
        return Reason.REPETITIVE
    if _is_list(sentence, words):
        return Reason.NOT_A_SENTENCE
    if len(words) >= MIN_CASED and sum(map(str.isupper, letters)) > MAX_CAPITALS * len(letters):
        return Reason.CAPITALS
    if _REPEATED_MARKS.search(sentence) or len(_MARKS.findall(sentence)) > MAX_MARKS * size:
        return Reason.PUNCTUATION
    if stray_marks(sentence):
        return Reason.UNBALANCED
    if lists.unknown_share(words) > rules.max_unknown_words:
        return Reason.UNKNOWN_WORDS
    return None


def _repetition(words: list[str]) -> float:
    """Returns the share of words that came before in the text."""
    return 1 - len({word.lower() for word in words}) / len(words)


def _is_list(sentence: str, words: list[str]) -> bool:
    """Keywords in a row, a menu, a path: separators between nearly all words."""
    separators = len(re.findall(r"[,;|/>•·]|\s[-–—]\s", sentence))
    return separators >= 3 and separators >= 0.4 * len(words)


def extract_caption(
    text: str, rules: WebPairRules, language: str | None = None, lists: TextLists = NO_LISTS
) -> str | Drop:
    """Returns the caption in ``text``: the first sentence that passes, and the next that fit.

    A text of which no sentence passes is dropped for the fault of its first one. ``language``
    (ISO 639-1) says how words are told apart. A caption's quotation marks and brackets are
    balanced: none is cut inside, and a single stray one is taken away.
    """
    if _FILE_NAME.fullmatch(plain(text, rules.max_text_chars).strip()):
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
        caption_fault = fault(caption, rules, language, lists)
        return caption if caption_fault is None else passing[0]
    return Drop(faults[0] if faults else Reason.NO_TEXT, cleaned or None)


def whole_sentences(text: str) -> Iterator[str]:
    """Yields sentences, those inside of a quotation or of brackets with what they stand in.

    A single stray mark is taken away; of a text with more its sentences come as they are.
    """
    parts: list[str] = []
    for sentence in sentences(text):
        parts.append(sentence)
        passage = _joined(parts)
        if not stray_marks(passage):
            yield unwrapped(passage)
            parts = []
    for sentence in parts:  # what opens in the first of them never closes
        yield unwrapped(remove_stray_mark(sentence) or sentence)


def _joined(parts: list[str]) -> str:
    """Sentences in a row, with a space between where the script has spaces."""
    text = ""
    for part in parts:
        space = "" if not text or (text[-1] in "。！？」』”）" and _DENSE.match(part)) else " "
        text += f"{space}{part}"
    return text
