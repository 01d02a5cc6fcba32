"""Judges texts by lists of words: words that no caption may have, and a vocabulary."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vlmill.pipelines.web.texts import wordfreq
from vlmill.pipelines.web.texts.blocked import (
    SHIPPED,
    compile_entries,
    describe_shipped,
    fold_case,
    read_entries,
    shipped_pattern,
)
from vlmill.pipelines.web.texts.phrases import OWN_LANGUAGES, LanguageFiles, Phrases
from vlmill.pipelines.web.texts.words import split_words
from vlmill.runtime.extras import require_extra
from vlmill.runtime.files.digests import file_input, path_input
from vlmill.runtime.files.reading import iter_batches
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import PAIRS

NONE, OFF = "none", "off"
LEAST_COUNT = 3  # of a word in a table's texts; a misspelling occurs once or twice
MOST_WORDS = 5_000_000  # about 500 MB


@dataclass(frozen=True)
class TextLists:
    """Holds a pattern of the user's blocked words, the vocabulary, the files of phrases by
    language, and the kinds of blocked words of vlmill that count.

    ``vocabulary`` is a set of words, ``wordfreq`` for tables by language, or None.
    """

    blocked: "re.Pattern[str] | None" = None
    vocabulary: frozenset[str] | Literal["wordfreq"] | None = None
    languages: LanguageFiles = OWN_LANGUAGES
    shipped: tuple[str, ...] = tuple(SHIPPED)

    @property
    def phrases(self) -> Phrases:
        """Returns the phrases of all languages."""
        return self.languages.compile()

    def blocks(self, text: str, language: str | None = None) -> str | None:
        """Returns the first blocked word or phrase of a text in a language (ISO 639-1)."""
        folded = fold_case(text)
        for pattern in (self.blocked, shipped_pattern(self.shipped, primary_code(language))):
            if pattern is not None and (match := pattern.search(folded)):
                return match[0]
        return None

    def unknown_share(self, words: Sequence[str], language: str | None = None) -> float:
        """Returns the share of words that the vocabulary lacks, without numbers and names.

        A name is a word with a capital letter that is not the first of its text. 0 without a
        vocabulary of the language.
        """
        code = primary_code(language)
        known = self._known_words(code)
        if known is None:
            return 0.0
        plain_words = [
            word
            for index, word in enumerate(words)
            if word[0].isalpha() and not (index and word[0].isupper())
        ]
        unknown = sum(not knows(known, word, code) for word in plain_words)
        return unknown / len(plain_words) if plain_words else 0.0

    def _known_words(self, language: str) -> frozenset[str] | None:
        if self.vocabulary is None or isinstance(self.vocabulary, frozenset):
            return self.vocabulary
        return wordfreq.known_words(language)


def primary_code(language: str | None) -> str:
    """Returns the language of a tag such as zh-TW; empty for an unknown language."""
    return (language or "").partition("-")[0].lower()


def knows(known: frozenset[str], word: str, language: str) -> bool:
    """Returns whether a word, or each of its parts, is among the case-folded known words."""
    word = wordfreq.table_form(fold_case(word), language)
    if word in known:
        return True
    return all(part in known for part in re.split(r"['’.-]", word) if part)


NO_LISTS = TextLists()


def read_lists(
    blocked: Sequence[str],
    vocabulary: str | None,
    languages: LanguageFiles = OWN_LANGUAGES,
    *,
    kinds: Mapping[str, str | None] | None = None,
) -> TextLists:
    """Reads files of one word or phrase a line; ignores empty lines and text after #.

    In ``blocked`` a final * matches any ending. ``vocabulary`` may also be a table of pairs,
    whose words are counted, or ``wordfreq``; None and ``none`` switch this off. ``kinds`` has the
    values of --adult-words and --spam-words: a file that replaces vlmill's lists, ``none``, or None
    for vlmill's. Raises InputError for a file that cannot be read or has no word.
    """
    kinds = {} if kinds is None else kinds
    word_files = {
        f"--{kind}-words": path for kind, path in kinds.items() if path not in (None, NONE)
    }
    files = [*(("--blocked-words", path) for path in blocked), *word_files.items()]
    entries = [entry for flag, path in files for entry in read_entries(str(path), flag)]
    return TextLists(
        blocked=compile_entries(entries) if entries else None,
        vocabulary=None if vocabulary in (None, NONE) else _vocabulary(vocabulary),
        languages=languages,
        shipped=tuple(kind for kind in SHIPPED if kinds.get(kind) is None),
    )


def describe_lists(vocabulary: str | None, kinds: Mapping[str, str | None]) -> dict[str, str]:
    """Returns descriptions of the filters of words by their names, for plans and reports."""
    described = {
        "vocabulary_filter": OFF
        if vocabulary in (None, NONE)
        else wordfreq.describe()
        if vocabulary == wordfreq.NAME
        else f"list {path_input('--vocabulary', vocabulary).digest}"
    }
    for kind in SHIPPED:
        value = kinds.get(kind)
        described[f"{kind}_words_filter"] = (
            describe_shipped(kind)
            if value is None
            else OFF
            if value == NONE
            else f"list {file_input(f'--{kind}-words', value).digest}"
        )
    return described


def _vocabulary(path: str) -> frozenset[str] | Literal["wordfreq"]:
    if path == wordfreq.NAME:
        require_extra("mining", wordfreq.NAME)
        return "wordfreq"
    if Path(path).is_dir() or path.endswith(".parquet"):
        return _counted_words(path)
    # A count may follow the word, as in frequency lists.
    return frozenset(word.split("\t")[0] for word in read_entries(path, "--vocabulary"))


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
