"""Reads and writes lists of labels: the classes of a checkpoint's classifier, in its order."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import parse_json

LABELS_FILE = "labels.json"  # numbers the labels of the examples in its folder
MAX_LABELS_BYTES = 64 << 20


def read_labels(path: Path) -> list[str]:
    """Reads ``--labels``: a JSON list, a JSON object label -> number, or text with one label per
    line.

    Raises InputError for any other content, and for a repeated label.
    """
    try:
        if path.stat().st_size > MAX_LABELS_BYTES:
            raise InputError(f"--labels {path}: more than {MAX_LABELS_BYTES} bytes")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--labels {path}: {error}; give a text file of labels") from None
    labels = parse_labels(path, text)
    repeated = [label for label, count in Counter(labels).items() if count > 1]
    if repeated or not labels:
        what = f"the label {repeated[0]!r} twice" if repeated else "no labels"
        raise InputError(f"--labels {path} has {what}; give one label per line or entry")
    return labels


def _number_fault(content: Mapping[str, Any]) -> str:
    """Returns the rule for the numbers of labels and the first label that breaks it, or None."""
    last, earlier = len(content) - 1, dict[int, str]()
    for label, number in content.items():
        fits = type(number) is int and 0 <= number <= last
        other = earlier.setdefault(number, label) if fits else None
        if other != label:
            why = f"that of {other[:80]!r}, too" if other is not None else "not one of them"
            detail = f"the number of {label[:80]!r} is {str(number)[:80]}, {why}"
            return f"its {last + 1} numbers must be 0 to {last}, each once; {detail}"
    return "it has no labels"


def parse_labels(path: Path, text: str) -> list[str]:
    """Reads the text of a file of labels. Raises InputError."""
    if text.lstrip()[:1] not in ("[", "{"):
        return text.removesuffix("\n").split("\n") if text else []
    try:
        content = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"--labels {path}: not JSON ({error}); fix it") from None
    if isinstance(content, dict):
        by_number = {number: label for label, number in content.items() if type(number) is int}
        if sorted(by_number) != list(range(len(content))):
            raise InputError(f"--labels {path}: {_number_fault(content)}")
        return [by_number[number] for number in range(len(content))]
    if not all(isinstance(label, str) for label in content):
        raise InputError(f"--labels {path}: every entry of the list must be text")
    return [str(label) for label in content]
