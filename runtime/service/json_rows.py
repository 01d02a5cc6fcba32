"""Converts rows of tables to JSON."""

import base64
from collections.abc import Mapping
from typing import Any


def plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row of JSON values: bytes in base64, nulls omitted."""
    return {
        name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for name, value in row.items()
        if value is not None
    }
