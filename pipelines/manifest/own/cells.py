"""Converts the values of cells: texts, lists, images, conversations and names of classes.

A cell of CSV and Excel is a text, number or boolean; of JSON and Parquet also a list or an object.
A list may be written as a text, as pandas and Python write it: ``["a", "b"]`` or ``['a', 'b']``.
"""

import ast
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from vlmill.pipelines.manifest.cleaning import MAX_TEXT, clean_text
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.ids import compute_image_id
from vlmill.schemas.plain_json import parse_json
from vlmill.schemas.rejects import Reason

PATH_KEYS = ("path", "file_name", "filename", "file", "name", "url", "image_id", "id")
TEXT_KEYS = ("answer", "caption", "raw", "text", "label", "name", "value")
MAX_LIST_TEXT = 1 << 16  # characters of a list that is written as a text
VOTES = 20  # of a score of 1, when scores are written as answers
HUMAN, MODEL = ("human", "user"), ("gpt", "assistant")
_LIST_STARTS = ("[", " ", "\t", "\n", "\r", "")  # also of an empty text
_IMAGE_TOKEN = re.compile(r"<image>")
_WHOLE = re.compile(r"(-?\d+)\.0+", re.ASCII)
_KNOWN = {name.lower(): name for name in ("False", "True", "entailment", "neutral")}
_KNOWN["contradiction"] = "contradiction"


def is_plain(value: Any) -> bool:
    """Returns whether a cell is a text that is not a list: nearly all cells of captions are."""
    return type(value) is str and value[:1] not in _LIST_STARTS


def read_text(value: Any, column: str) -> str | Drop:
    """Returns a cell as a cleaned text ("": empty), or a Drop if it is no text or number."""
    if isinstance(value, dict):
        value = next((value[key] for key in TEXT_KEYS if value.get(key) is not None), value)
    if value is None or value != value:  # NaN is how pandas writes an empty cell
        return ""
    if not isinstance(value, str | int | float):
        kind = type(value).__name__
        return Drop(Reason.BAD_RECORD, f"{column!a:.80} is {kind}, expected text or a number")
    text = clean_text(value) if isinstance(value, str) else str(value)
    if len(text) > MAX_TEXT:
        return Drop(Reason.TOO_LONG, f"{len(text)} characters, at most {MAX_TEXT}")
    return text


def read_list(value: Any, separator: str | None = None) -> list[Any]:
    """Returns the items of a cell: of a list, of a list written as a text, or of a text with
    ``separator`` between the items. Any other value is one item; an empty cell has none.

    An object of lists, as the hub stores a list of objects, has the items of its text's list. An
    object of scores (LXMERT's ``{"yes": 1, "no": 0.3}``) has each name in proportion to its score.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return []
    if isinstance(value, list):
        return value
    if isinstance(value, dict):
        texts = next((value[key] for key in TEXT_KEYS if isinstance(value.get(key), list)), None)
        if texts is not None:
            return list(texts)
        scores = [score for score in value.values() if type(score) in (int, float)]
        if len(scores) == len(value):
            return [n for n, score in value.items() for _ in range(_repetitions(score))]
    if not isinstance(value, str):
        return [value]
    items = parse_list(value)
    if items is not None:
        return items
    if separator is None:
        return [value]
    return [item for item in value.split(separator) if item.strip()]


def _repetitions(score: float) -> int:
    return round(VOTES * min(max(score, 0.0), 1.0)) if score == score else 0


def parse_list(text: str) -> list[Any] | None:
    """Returns the list that a text is, in JSON or Python's notation, else None."""
    stripped = text.strip()
    if not (stripped.startswith("[") and stripped.endswith("]") and len(text) <= MAX_LIST_TEXT):
        return None
    for parse in (parse_json, ast.literal_eval):
        try:
            value = parse(stripped)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(value, list) and all(isinstance(v, str | int | float | dict) for v in value):
            return value
    return None


def read_image(value: Any) -> tuple[str, bytes | None]:
    """Returns the name of a cell's image, "" if it has none, and its bytes if the cell has them.

    An image without a name is named by the SHA-256 of its bytes.
    """
    content = value.get("bytes") if isinstance(value, dict) else value
    if isinstance(content, bytes) and content:
        path = value.get("path") if isinstance(value, dict) else None
        return (path if isinstance(path, str) and path else compute_image_id(content)), content
    if isinstance(value, dict):
        value = next((value[key] for key in PATH_KEYS if value.get(key)), None)
    if isinstance(value, str | int) and not isinstance(value, bool):
        return str(value), None
    return "", None


def is_conversation(value: Any) -> bool:
    """Returns whether a cell is a conversation: a list of turns, as in LLaVA's files."""
    return (
        isinstance(value, list) and bool(value) and all(_turn(turn) is not None for turn in value)
    )


def read_turns(value: Sequence[Any]) -> list[tuple[str, str]]:
    """Returns the questions and answers of a conversation: each pair of neighbouring turns.

    The mark ``<image>`` is removed.
    """
    turns = [turn for turn in map(_turn, value) if turn is not None]
    return [
        (clean_text(_IMAGE_TOKEN.sub(" ", asked)), clean_text(answered))
        for (role, asked), (next_role, answered) in pairwise(turns)
        if role in HUMAN and next_role in MODEL
    ]


def _turn(turn: Any) -> tuple[str, str] | None:
    if not isinstance(turn, dict):
        return None
    role = turn.get("from", turn.get("role"))
    text = turn.get("value", turn.get("content"))
    return (role, text) if isinstance(role, str) and isinstance(text, str) else None


def read_label(value: Any, names: Sequence[str], column: str) -> str | Drop:
    """Returns the name of a cell's class, "" if it is empty.

    ``names`` belong to a numbered class of Parquet, where -1 is empty. ``1.0`` is ``1``. The
    spellings of true, false and the classes of entailment become ``True``, ``entailment``, ...
    """
    if names and isinstance(value, int) and not isinstance(value, bool):
        if 0 <= value < len(names):
            return names[value]
        return "" if value == -1 else Drop(Reason.LABEL_UNKNOWN, f"{column} {value} has no name")
    text = read_text(value, column)
    if isinstance(text, Drop):
        return text
    if (match := _WHOLE.fullmatch(text)) is not None:
        text = match[1]
    return _KNOWN.get(text.lower(), text)


def read_flag(value: Any) -> bool | None:
    """Returns a cell of a column per class: 1 or true, 0, false or empty; None for others."""
    if value is None or value != value:
        return False
    text = str(value).strip().lower()
    if text in ("", "0", "0.0", "false"):
        return False
    return True if text in ("1", "1.0", "true") else None
