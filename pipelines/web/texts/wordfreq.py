"""Knows the words of a language by the tables of the package wordfreq.

Only its tables are read. Texts are split by :mod:`~vlmill.pipelines.web.texts.words`, so no other
segmenter is needed. A table lists words with at least one in a hundred million words of its
language, or one in a million for languages with a small table.
"""

import gzip
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

NAME = "wordfreq"
# vlmill splits Korean texts into words with endings, which the tables split off.
UNLIKE = frozenset({"ko"})
TABLES = {"no": "nb", "iw": "he", "tl": "fil"}  # by the codes of language detectors


def is_installed() -> bool:
    """Returns whether the package is installed. Does not import it."""
    return find_spec(NAME) is not None


def describe() -> str:
    """Returns the name and the version of the tables."""
    return f"{NAME} {version(NAME)}"


def _folder() -> Path | None:
    spec = find_spec(NAME)
    return Path(spec.origin).with_name("data") if spec and spec.origin else None


@cache
def known_words(language: str) -> frozenset[str] | None:
    """Returns the words of a language (ISO 639-1), case-folded; None without a usable table.

    Memory: 20 to 40 MB for a large table.
    """
    folder = _folder()
    if folder is None or not language.isalpha() or language in UNLIKE:
        return None
    for size in ("large", "small"):
        path = folder / f"{size}_{TABLES.get(language, language)}.msgpack.gz"
        if path.is_file():
            # A header, then lists of words by falling frequency.
            header, *groups = _unpack(path)
            if header.get("format") != "cB":
                raise OSError(f"{path} has the format {header.get('format')!r}, expected 'cB'")
            return frozenset(word for group in groups for word in group)
    return None


@cache
def _simplified() -> dict[int, str]:
    """Returns the simplified form of each traditional Chinese character, as in the tables."""
    folder = _folder()
    path = folder and folder / "_chinese_mapping.msgpack.gz"
    return dict(_unpack(path)) if path and path.is_file() else {}


def _unpack(path: Path) -> Any:
    import msgspec  # of the extra that has the tables, too

    with gzip.open(path) as file:
        return msgspec.msgpack.decode(file.read(), strict=False)


def table_form(word: str, language: str) -> str:
    """Returns a case-folded word in the form of its table."""
    return word.translate(_simplified()) if language == "zh" else word
