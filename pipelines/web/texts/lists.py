"""Reads lists of words from a user's files: words that no caption may have, and a vocabulary."""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vlmill.pipelines.web.texts.phrases import OWN_LANGUAGES, LanguageFiles, Phrases
from vlmill.pipelines.web.texts.words import UNSPACED_LETTERS, split_words
from vlmill.runtime.files.reading import iter_batches
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import PAIRS

MAX_LIST_BYTES = 64 << 20
MAX_ENTRY_CHARS = 200
LEAST_COUNT = 3  # of a word in a table's texts; a misspelling occurs once or twice
MOST_WORDS = 5_000_000  # about 500 MB
_SPACELESS = re.compile(f"[{UNSPACED_LETTERS}]")


@dataclass(frozen=True)
class TextLists:
    """Holds a user's lists: a pattern of blocked words, the vocabulary, or None, and the files of
    phrases by language.
    """

    blocked: "re.Pattern[str] | None" = None
    vocabulary: frozenset[str] | None = None
    languages: LanguageFiles = OWN_LANGUAGES

    @property
    def phrases(self) -> Phrases:
        """Returns the phrases of all languages."""
        return self.languages.compile()

    def blocks(self, text: str) -> str | None:
        """Returns the first blocked word or phrase of a text."""
        match = self.blocked and self.blocked.search(fold_case(text))
        return match[0] if match else None

    def unknown_share(self, words: Sequence[str]) -> float:
        """Returns the share of words that the vocabulary lacks, without numbers and names.

        A name is a word with a capital letter that is not the first of its text. 0 without a
        vocabulary.
        """
        if self.vocabulary is None:
            return 0.0
        plain_words = [
            word
            for index, word in enumerate(words)
            if word[0].isalpha() and not (index and word[0].isupper())
        ]
        unknown = sum(not self._knows(word) for word in plain_words)
        return unknown / len(plain_words) if plain_words else 0.0

    def _knows(self, word: str) -> bool:
        assert self.vocabulary is not None
        word = fold_case(word)
        if word in self.vocabulary:
            return True
        return all(part in self.vocabulary for part in re.split(r"['’.-]", word) if part)


NO_LISTS = TextLists()


def fold_case(text: str) -> str:
    """Returns a text as it is compared with lists: NFKC, ignoring case."""
    return unicodedata.normalize("NFKC", text).casefold()


def read_lists(
    blocked: Sequence[str],
    vocabulary: str | None,
    languages: LanguageFiles = OWN_LANGUAGES,
) -> TextLists:
    """Reads files of one word or phrase a line; ignores empty lines and text after #.

    In ``blocked`` a final * matches any ending. ``vocabulary`` may also be a table of pairs,
    whose words are counted. Raises InputError for a file that cannot be read or has no word.
    """
    entries = [entry for path in blocked for entry in _entries(path, "--blocked-words")]
    return TextLists(
        blocked=_pattern(entries) if entries else None,
        vocabulary=None if vocabulary is None else _vocabulary(vocabulary),
        languages=languages,
    )


def _vocabulary(path: str) -> frozenset[str]:
    if Path(path).is_dir() or path.endswith(".parquet"):
        return _counted_words(path)
    # A count may follow the word, as in frequency lists.
    return frozenset(word.split("\t")[0] for word in _entries(path, "--vocabulary"))


def _counted_words(pairs: str) -> frozenset[str]:
    """Returns the words that occur at least LEAST_COUNT times in a table's texts.

    Above MOST_WORDS different words, words that have occurred once are dropped: a word of many
    texts occurs again.
    """
    counts: Counter[str] = Counter()
    columns = ["text", "language"]
    for batch in iter_batches(pairs, PAIRS, columns=columns, flag="--vocabulary"):
        for text, language in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            counts.update(fold_case(word) for word in split_words(text, language))
        if len(counts) > MOST_WORDS:
            counts = Counter({word: count for word, count in counts.items() if count > 1})
    words = frozenset(word for word, count in counts.items() if count >= LEAST_COUNT)
    if not words:
        raise InputError(
            f"--vocabulary {pairs}: no word occurs {LEAST_COUNT} times in its texts; "
            "give a larger table, or a file with one word per line"
        )
    return words


def _entries(path: str, flag: str) -> list[str]:
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


def _pattern(entries: Sequence[str]) -> "re.Pattern[str]":
    """Returns one pattern of all entries, longest first; whole words if the script has spaces."""
    parts = []
    for entry in sorted(set(entries), key=lambda one: (-len(one), one)):
        stem = entry.rstrip("*").strip()
        if not stem:
            continue
        words = r"\s+".join(map(re.escape, stem.split()))
        if _SPACELESS.search(stem):
            parts.append(words)
        else:
            parts.append(rf"(?<!\w){words}" + (r"\w*" if entry.endswith("*") else r"(?!\w)"))
    return re.compile("|".join(parts))
