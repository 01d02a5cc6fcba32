"""Splits texts into sentences, in every script that a page may have."""

import re
from collections.abc import Iterator

# In Latin, Cyrillic and Greek a sentence ends before a space that no lower-case letter follows, in
# Arabic before a space; in Chinese, Japanese and the scripts with a danda right after its full
# stop.
_END = re.compile(
    r"[.!?…]+[\"”’')\]»]*\s+(?=[^\sa-zß-öø-ÿа-яё])|[。！？।॥။។።]+[」』”’）)]*|[!?]+(?=[\u3040-\u9fff])"
    r"|[؟۔]+\s+"
)
_ABBREVIATION = re.compile(
    r"(?:^|[\s(.])(?:mr|mrs|ms|dr|prof|st|mt|sr|jr|vs|etc|ca|c|no|nr|vol|fig|abb|bzw|approx|inc|"
    r"ltd|co|gen|col|lt|sgt|rev|hon|gov|sen|rep|e\.g|i\.e|a\.m|p\.m|u\.s|u\.k|z\.b|d\.h|str|"
    r"г|д|ул|им|см|рис|т\.д|т\.п|[^\W\d_]|\d{1,2})\.$",
    re.IGNORECASE,
)


def sentences(text: str) -> Iterator[str]:
    """Splits ``text`` after sentences; abbreviations, initials and numbers do not end one."""
    start = 0
    for match in _END.finditer(text):
        head = text[start : match.end()].rstrip()
        if head and not _ABBREVIATION.search(head):
            yield head
            start = match.end()
    if remainder := text[start:].strip():
        yield remainder


_CLOSING = "\"'”’」』）)]»›"
_ENDERS = frozenset(".!?…。！？．｡؟۔।॥።፧។៕၊။᠃᠉՜՞։")


def ends_sentence(text: str) -> bool:
    """Returns whether a text ends as a sentence of its script does; captions mostly do not."""
    return text.rstrip(_CLOSING)[-1:] in _ENDERS


_LEADS = {"before": frozenset(":：︰﹕↓▼⇓👇→"), "after": frozenset("↑▲△⇑👆←")}


def leads(text: str, kind: str) -> bool:
    """Returns whether a text before or after an image points to it by a colon or an arrow."""
    marks = _LEADS[kind]
    return text[-1:] in marks or text[:1] in marks
