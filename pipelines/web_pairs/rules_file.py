"""Reads ``--rules FILE``: thresholds of web_pairs by name, and word lists by language."""

import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web.texts.phrases import OWN_LANGUAGES, LanguageFiles, read_language_files
from vlmill.runtime.settings.plain_fields import from_plain
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import parse_json

WORDS = "words"
MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True)
class RulesFile:
    """Holds a rules file: the thresholds that it sets, and its word lists by language."""

    values: dict[str, Any] = field(default_factory=dict)
    languages: LanguageFiles = OWN_LANGUAGES


def read_rules_file(path: str | None) -> RulesFile:
    """Returns the rules of a TOML or JSON file, empty without one.

    Paths in it are relative to its folder. Raises InputError for a file that cannot be read, an
    unknown name, and a value of the wrong type or out of range.
    """
    if path is None:
        return RulesFile()
    flag = f"--rules {path}"
    values = _read(Path(path), flag)
    words = values.pop(WORDS, {})
    if not isinstance(words, dict) or not all(isinstance(file, str) for file in words.values()):
        raise InputError(
            f'{flag}: {WORDS}: expected a file for each language, such as {WORDS}.de = "de.toml"'
        )
    try:
        rules = from_plain(WebPairRules, values)
    except InputError as error:
        raise InputError(f"{flag}: {error}") from None
    files = {language: Path(path).parent / file for language, file in words.items()}
    return RulesFile(
        {name: getattr(rules, name) for name in values}, read_language_files(files, flag)
    )


def _read(path: Path, flag: str) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"it has over {MAX_FILE_BYTES} bytes")
        text = path.read_text(encoding="utf-8-sig")
        values = parse_json(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise InputError(f"{flag} cannot be read: {error.strerror}; give a TOML file") from None
    except (ValueError, RecursionError) as error:  # of both formats and of UTF-8
        raise InputError(
            f"{flag} is not {'JSON' if path.suffix == '.json' else 'TOML'}: {error}; write lines "
            "such as min_score = 0.6"
        ) from None
    if not isinstance(values, dict):
        raise InputError(f"{flag}: expected names with values, such as min_score; got a list")
    return values


def changed_rules(rules: WebPairRules) -> dict[str, str]:
    """Returns the rules that are not at their defaults, as text with the default."""
    defaults = WebPairRules()
    return {
        f.name: f"{getattr(rules, f.name)} (default: {getattr(defaults, f.name)})"
        for f in fields(rules)
        if getattr(rules, f.name) != getattr(defaults, f.name)
    }
