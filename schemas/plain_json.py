"""Parses JSON from untrusted files and metadata, with a bound on its depth."""

import json
from pathlib import Path
from typing import Any

MAX_DEPTH = 100
MAX_BYTES = 1 << 30  # a manifest of a million shards has 300 MB


def parse_json(text: str | bytes) -> Any:
    """Returns the value of a JSON document.

    Raises ValueError for invalid JSON, and for arrays and objects nested more than ``MAX_DEPTH``
    deep: Python's parser and code that walks the value recurse once per level.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep") from None
    if not _is_flat(value) and _count_opening(text) > MAX_DEPTH:
        _check_depth(value)
    return value


def _is_flat(value: Any) -> bool:
    """Returns whether a value has few parts and none in these: large texts need no counting."""
    if not isinstance(value, dict | list):
        return True
    if len(value) > MAX_DEPTH:
        return False
    parts = value.values() if isinstance(value, dict) else value
    return not any(isinstance(part, dict | list) for part in parts)


def _count_opening(text: str | bytes) -> int:
    if isinstance(text, str):
        return text.count("[") + text.count("{")
    return text.count(b"[") + text.count(b"{")


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        containers = [v for v in level if isinstance(v, dict | list)]
        if not containers:
            return
        level = [
            inner
            for container in containers
            for inner in (container.values() if isinstance(container, dict) else container)
        ]
    raise ValueError(f"nested more than {MAX_DEPTH} levels deep")


def read_json(path: Path, *, max_bytes: int = MAX_BYTES) -> Any:
    """Returns the value of a JSON file in UTF-8.

    Raises ValueError for a file that is larger than ``max_bytes`` or no JSON, and OSError.
    """
    if (size := path.stat().st_size) > max_bytes:
        raise ValueError(f"it has {size} bytes, expected at most {max_bytes}")
    return parse_json(path.read_text(encoding="utf-8"))


def read_object(path: Path, *, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Returns the object in a JSON file. Raises ValueError as `read_json`, and for other values."""
    content = read_json(path, max_bytes=max_bytes)
    if not isinstance(content, dict):
        raise ValueError("no JSON object")
    return content
