"""JSON as published: no NaN, at most 64 deep; of a key that stands twice the last counts."""

import json
from typing import Any, NoReturn

from vlmill.pipelines.manifest.reading.sources import Remarks

MAX_DEPTH = 64  # of lists and objects in each other


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def json_decoder(remarks: Remarks) -> json.JSONDecoder:
    """A decoder that refuses NaN and infinities and notes keys that stand twice."""

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            remarks.repeat([name for name, _ in pairs])
        return made

    return json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=object_of)


def json_of(content: bytes, remarks: Remarks) -> Any:
    """A small file of JSON. Raises ValueError for what is none, or is nested too deeply."""
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
            for one in level
            for child in (one.values() if isinstance(one, dict) else one)
            if isinstance(child, list | dict)
        ]
