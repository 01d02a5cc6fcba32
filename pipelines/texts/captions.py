"""Texts: cleaning, sentence detection, and the rules that a caption has to pass.

LAIT (ImageBERT, arXiv:2001.07966, section 3) removes bad spans and noisy words and keeps sentences
of normal length; the spans, words and numbers here are ours.
"""

import html
import re
import unicodedata
from collections.abc import Iterator

from vlmill.pipelines.counting.funnel import Drop
from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.texts.words import words_of
from vlmill.schemas.rejects import Reason

_I = re.IGNORECASE
_AGENCY = (
    r"(?:getty|reuters|shutterstock|istock|alamy|flickr|wikimedia|unsplash|pexels|corbis|afp|"
    r"associated press|ap photo|ap images|a\.?p\.?|epa|bloomberg|splash|rex|instagram|twitter|"
    r"facebook|youtube|abc news|cbs|nbc|cnn|bbc|fox news)"
)
# Spans that say nothing about the picture, in the order in which they go.
_SPANS = tuple(
    re.compile(pattern, flags)
    for pattern, flags in (
        (r"<[a-zA-Z/!][^<>]{0,300}>", 0),
        (r"\b(?:https?|ftp)://\S+|\bwww\.[^\s/]+\.\S+", _I),
        (r"[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64})+", 0),
        (r"\S*\.(?:jpe?g|png|gif|webp|svg|bmp|tiff?|pdf|html?)\b(?:\?\S*)?", _I),
        (r"\b(?:IMG|DSC|DSCN|DSCF|PICT|CIMG|P\d{3})[_-]?\d{3,}\b(?:[_-]\d+)*", _I),
        (r"\[(?:\d{1,3}|[a-z]|edit|note \d+|citation needed)\]", _I),
        (r"[(\[][^()\[\]]{0,60}\b" + _AGENCY + r"\b[^()\[\]]{0,60}[)\]]", _I),
        (r"\((?:photo|image|picture|credit|source|via|courtesy)\b[^()]{0,80}\)", _I),
        (r"\((?:[\w-]+\.)+(?:com|org|net|it|co|uk|de|gov|edu|tv)\)", _I),
        (r"\b(?:photo(?:graph)?|image|picture)s? (?:by|credit|courtesy|copyright)\b.*", _I),
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
_EDGES = ' \t"“”„«»*•·–—-|,;:/\\_~=+<>^`#'

_ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:mr|mrs|ms|dr|prof|st|mt|sr|jr|vs|etc|ca|c|no|vol|fig|approx|inc|ltd|co|gen|"
    r"col|lt|sgt|rev|hon|gov|sen|rep|e\.g|i\.e|a\.m|p\.m|u\.s|u\.k|[a-z])\.$",
    _I,
)
_SENTENCE_END = re.compile(r"[.!?…]+[\"”’')\]]*\s+(?=[\"“‘'(\[]?[A-Z0-9À-ÖØ-Þ])")

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
    r"|\bjavascript\b|\blorem ipsum\b|\bmay contain\b|\bjpe?g\b|\bpowered by\b"
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
    rest = text[prefix.end() :] if prefix else text
    if prefix and rest:
        # What follows was the middle of a sentence; now it starts one.
        text = rest[0].upper() + rest[1:] if len(rest[0].upper()) == 1 else rest
    return text


def _strip_edges(text: str) -> str:
    return text.strip(_EDGES + "\N{REPLACEMENT CHARACTER}")


def sentences(text: str) -> Iterator[str]:
    """Cuts ``text`` after sentences; abbreviations and initials do not end one."""
    start = 0
    for match in _SENTENCE_END.finditer(text):
        head = text[start : match.end()].rstrip()
        if not _ABBREVIATION.search(head):
            yield head
            start = match.end()
    if text[start:].strip():
        yield text[start:].strip()


def fault(sentence: str, rules: WebPairRules) -> Reason | None:
    """Says why a sentence is no caption, or returns None."""
    words = words_of(sentence)
    if not words:
        return Reason.NO_TEXT
    if _BLOCKED.search(sentence):
        return Reason.BLOCKED_WORD
    if _BOILERPLATE.search(sentence):
        return Reason.BOILERPLATE
    if len(words) < rules.min_words:
        return Reason.TOO_SHORT
    if len(words) > rules.max_words:
        return Reason.TOO_LONG
    letters = sum(c.isalpha() for c in sentence)
    if letters < rules.min_alphabetic * len(sentence.replace(" ", "")) or max(map(len, words)) > 40:
        return Reason.NOT_WORDS
    if _repetition(words) > rules.max_repetition:
        return Reason.REPETITIVE
    return Reason.NOT_A_SENTENCE if _is_list(sentence, words) else None


def _repetition(words: list[str]) -> float:
    """Returns the share of words that came before in the text."""
    return 1 - len({word.lower() for word in words}) / len(words)


def _is_list(sentence: str, words: list[str]) -> bool:
    """Keywords in a row, a menu, a path: separators between nearly all words."""
    separators = len(re.findall(r"[,;|/>•·]|\s[-–—]\s", sentence))
    return separators >= 3 and separators >= 0.4 * len(words)


def caption_of(text: str, rules: WebPairRules) -> str | Drop:
    """Returns the caption in ``text``: the first sentence that passes, and the next that fit.

    A text of which no sentence passes is dropped for the fault of its first one.
    """
    cleaned = clean(text, rules.max_text_chars)
    passing: list[str] = []
    faults: list[Reason] = []
    length = 0
    for sentence in sentences(cleaned):
        wrong = fault(sentence, rules)
        length += len(words_of(sentence)) if wrong is None else 0
        if wrong is None and length <= rules.max_words:
            passing.append(sentence)
        elif passing:
            break
        elif wrong is not None:
            faults.append(wrong)
    if passing:
        caption = " ".join(passing)
        whole = fault(caption, rules)
        return caption if whole is None else passing[0]
    return Drop(faults[0] if faults else Reason.NO_TEXT, cleaned or None)
