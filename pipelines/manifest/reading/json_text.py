"""Parses published JSON: no NaN, at most 64 levels, and the last of repeated keys counts."""

import json
from typing import Any, NoReturn

from vlmill.pipelines.manifest.reading.sources import Remarks

MAX_DEPTH = 64  # of nested lists and objects


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def json_decoder(remarks: Remarks, *, nan_is_null: bool = False) -> json.JSONDecoder:
    """Returns a decoder that records repeated keys; NaN and infinities are refused, or null."""
    constant = (lambda _: None) if nan_is_null else _refuse

    def make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            remarks.repeat([name for name, _ in pairs])
        return members

    return json.JSONDecoder(parse_constant=constant, object_pairs_hook=make_object)


def parse_json(content: bytes, remarks: Remarks) -> Any:
    """Parses a small JSON file. Raises ValueError for invalid JSON, and for too deep nesting."""
    text = content.decode("utf-8-sig")
    try:
        value = json_decoder(remarks).decode(text)
    except RecursionError:
        raise ValueError(f"nested more than {MAX_DEPTH} deep") from None
    check_depth(value, text, 0, len(text))
    return value


def check_depth(value: Any, text: str, start: int, end: int) -> None:
    """Raises ValueError for a value, written as ``text[start:end]``, that is nested too deeply."""
    if text.count("{", start, end) + text.count("[", start, end) <= MAX_DEPTH:
        return
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} deep")
        level = [
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else container)
            if isinstance(child, list | dict)
        ]
