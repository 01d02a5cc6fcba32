"""Reads the words and phrases of each language by which texts around images are judged."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from vlmill.schemas.errors import InputError

LANGUAGES = Path(__file__).with_name("languages")
LISTS = ("generic", "credited", "credit", "points", "figure", "bylines")
SPACES = "spaces"
MAX_FILE_BYTES = 1 << 20
MAX_ENTRY_CHARS = 400
ALIGNED = r"(?:left|right|cent(?:er|re))?\W*"  # after a figure's number
CREDIT_MARKS = (":", "：", "©", r"\(c\)")
# Sites of free photographs, which credits name last: "Foto de Ana Ruiz en Unsplash".
STOCK = (
    r"\b.{0,60}\b(?:unsplash|pexels|pixabay|shutterstock|freepik|istock|getty ?images)\b.{0,12}$"
)


@dataclass(frozen=True)
class Phrases:
    """Holds the compiled lists of all languages.

    ``generic`` and ``credit`` match a text that names no image from its start, ``figure`` a
    figure's number; the others are searched in texts in lower case.
    """

    generic: re.Pattern[str]
    credit: re.Pattern[str]
    figure: re.Pattern[str]
    points: re.Pattern[str]
    bylines: re.Pattern[str]


@dataclass(frozen=True)
class LanguageFiles:
    """Names the files by language that replace or add to the project's own, with their texts."""

    texts: Mapping[str, str] = field(default_factory=dict)

    def compile(self) -> Phrases:
        """Returns the lists of all languages, compiled once per process."""
        return _compile(tuple(sorted(self.texts.items())))

    def as_settings(self) -> dict[str, dict[str, str]]:
        """Returns the SHA-256 of each file by language, for plans; nothing without files."""
        digests = {name: sha256(text.encode()).hexdigest() for name, text in self.texts.items()}
        return {"words": digests} if digests else {}


OWN_LANGUAGES = LanguageFiles()


def read_language_files(paths: Mapping[str, Path], flag: str) -> LanguageFiles:
    """Reads the files of lists by language. Raises InputError for a file that is invalid."""
    texts: dict[str, str] = {}
    for language, path in paths.items():
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                raise ValueError(f"it has over {MAX_FILE_BYTES} bytes")
            texts[language] = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise InputError(
                f"{flag}: words.{language} = {path} cannot be read: {reason}; copy {language}.toml "
                "of the project, and name that"
            ) from None
        try:
            _parse(texts[language])
        except ValueError as error:
            raise InputError(f"{flag}: words.{language} = {path}: {error}") from None
    files = LanguageFiles(texts)
    files.compile()
    return files


@cache
def _compile(texts: tuple[tuple[str, str], ...]) -> Phrases:
    own = {path.stem: path.read_text(encoding="utf-8") for path in LANGUAGES.glob("*.toml")}
    languages = [_parse(text) for _, text in sorted((own | dict(texts)).items())]

    def entries(name: str, *, spaces: bool | None = None) -> list[str]:
        chosen = [one for one in languages if spaces in (None, one[SPACES])]
        return [entry for language in chosen for entry in language.get(name, ())]

    def anywhere(name: str) -> re.Pattern[str]:
        """Matches whole words of languages with spaces, and any part of a text of the others."""
        words = rf"\b(?:{_any(entries(name, spaces=True))})\b"
        return re.compile("|".join([words, *entries(name, spaces=False)]))

    names = _any([*entries("credit"), *CREDIT_MARKS])
    credit = rf"^\W*(?:{_any(entries('credited'))})(?:\s*(?:{names})|{STOCK})"
    return Phrases(
        generic=re.compile(
            rf"^\W*(?:(?:{_any(entries('generic'))})\W*\d*|(?:{_any(entries('figure'))})\s*\d+)\W*{ALIGNED}$",
            re.IGNORECASE,
        ),
        credit=re.compile(credit, re.IGNORECASE),
        figure=re.compile(rf"^(?:{_any(entries('figure'))})\s*\d"),
        points=anywhere("points"),
        bylines=anywhere("bylines"),
    )


def _any(entries: list[str]) -> str:
    return "|".join(entries) or r"(?!)"


def _parse(text: str) -> dict[str, Any]:
    """Returns a file's lists. Raises ValueError with the list, the entry and the remedy."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"it is not TOML ({error}); fix it") from None
    for name, value in values.items():
        if name == SPACES:
            if not isinstance(value, bool):
                raise ValueError(f"{SPACES}: expected true or false, got {value!r}")
        elif name not in LISTS:
            raise ValueError(f"{name}: unknown list; expected one of {', '.join((*LISTS, SPACES))}")
        else:
            _check_entries(name, value)
    return {SPACES: True, **values}


def _check_entries(name: str, entries: Any) -> None:
    if not isinstance(entries, list):
        raise ValueError(f"{name}: expected a list of texts, got {entries!r}")
    for entry in entries:
        if not isinstance(entry, str) or not 0 < len(entry) <= MAX_ENTRY_CHARS:
            raise ValueError(
                f"{name}: {entry!r}: expected a text of 1 to {MAX_ENTRY_CHARS} letters"
            )
        try:
            if re.compile(entry).match(""):
                raise ValueError(f"{name}: {entry!r} matches an empty text; remove it")
        except re.error as error:
            raise ValueError(
                f"{name}: {entry!r} is not a regular expression ({error}); put a backslash before "
                "signs such as ( ) . + * ?"
            ) from None
