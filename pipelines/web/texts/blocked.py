"""Reads lists of words and phrases that no caption may have; vlmill ships some for each language.

``word_lists/KIND/LANGUAGE.txt`` have one word or phrase per line, in the format of
``--blocked-words``. A text is compared with the lists of its language and with the English ones,
since English spam is on pages of all languages and a word may be harmless in another language.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

from vlmill.pipelines.web.texts.words import UNSPACED_LETTERS
from vlmill.schemas.errors import InputError

SHIPPED: Mapping[str, str] = {
    "adult": "words of pornography and prostitution",
    "spam": "words of spam (gambling, loans, medicines, pirated software)",
}
WORD_LISTS = Path(__file__).with_name("word_lists")
EVERYWHERE = "en"  # its lists count in texts of all languages
MAX_LIST_BYTES = 64 << 20
MAX_ENTRY_CHARS = 200
_DENSE_SCRIPT = re.compile(f"[{UNSPACED_LETTERS}\uac00-\ud7af]")


def fold_case(text: str) -> str:
    """Returns a text as it is compared with lists: NFKC, ignoring case."""
    return unicodedata.normalize("NFKC", text).casefold()


def read_entries(path: str | Path, flag: str) -> list[str]:
    """Returns the words and phrases of a file: one per line, without empty lines and text after #.

    Raises InputError for a file that cannot be read, has no word, or has lines that are not words.
    """
    try:
        if (size := Path(path).stat().st_size) > MAX_LIST_BYTES:
            raise ValueError(f"it has {size} bytes")
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise InputError(
            f"{flag} {path}: {error}; give a text file with one word per line"
        ) from None
    entries = [fold_case(line.partition("#")[0]).strip() for line in text.splitlines()]
    entries = [entry for entry in entries if entry]
    if not entries:
        raise InputError(f"{flag} {path} has no words; give one per line, or remove the flag")
    if longest := next((entry for entry in entries if len(entry) > MAX_ENTRY_CHARS), None):
        raise InputError(f"{flag} {path}: {longest[:40]}... is not a word; give one per line")
    return entries


def compile_entries(entries: Sequence[str]) -> "re.Pattern[str]":
    """Returns one pattern of all entries, longest first; whole words if the script has spaces.

    Entries are grouped by their ends, so that a text is searched at the starts of words only.
    """
    words, prefixes, anywhere = list[str](), list[str](), list[str]()
    for entry in sorted(set(entries), key=lambda entry: (-len(entry), entry)):
        stem = entry.rstrip("*").strip()
        if not stem:
            continue
        dense = _DENSE_SCRIPT.search(stem)
        group = anywhere if dense else prefixes if entry.endswith("*") else words
        group.append(r"\s+".join(map(re.escape, stem.split())))
    parts = [
        rf"(?<!\w)(?:{'|'.join(prefixes)})\w*" if prefixes else "",
        rf"(?<!\w)(?:{'|'.join(words)})(?!\w)" if words else "",
        *anywhere,
    ]
    return re.compile("|".join(filter(None, parts)) or r"(?!)")


@cache
def shipped_pattern(kinds: tuple[str, ...], language: str) -> "re.Pattern[str] | None":
    """Returns the pattern of the shipped lists of some kinds for texts in a language."""
    paths = [
        WORD_LISTS / kind / f"{name}.txt"
        for kind in kinds
        for name in dict.fromkeys((EVERYWHERE, language))
    ]
    entries = [entry for path in paths if path.is_file() for entry in read_entries(path, "")]
    return compile_entries(entries) if entries else None


def shipped_languages(kind: str) -> list[str]:
    """Returns the codes of the languages that have a list of this kind."""
    return sorted(path.stem for path in (WORD_LISTS / kind).glob("*.txt"))


def describe_shipped(kind: str) -> str:
    """Returns the languages of a kind's lists, and the beginning of the digest of their texts."""
    languages = shipped_languages(kind)
    digest = sha256()
    for language in languages:
        digest.update((WORD_LISTS / kind / f"{language}.txt").read_bytes())
    return f"vlmill's lists {digest.hexdigest()[:12]} ({', '.join(languages)})"
