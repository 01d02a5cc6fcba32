"""Reads the table of published detectors and models in ``published.toml``.

Its facts come from public pages and threads, which each row names. An address may no longer
respond.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

Kind = Literal["detector", "model"]
TABLE = Path(__file__).with_name("published.toml")


@dataclass(frozen=True, kw_only=True)
class Published:
    """Describes one published file of weights.

    ``url`` is a direct download address; empty if none is known. ``mirrors`` and ``gone`` are
    further addresses, with their source and date. ``sha256`` is the digest of the file at ``url``,
    as stated by ``sha256_source``. ``selection`` states the regions of known features, or those
    that a model was trained on.
    """

    kind: Kind
    name: str
    family: str
    url: str
    command: str
    source: str
    licence: str
    file: str = ""
    mirrors: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    size: str = ""
    sha256: str = ""
    sha256_source: str = ""
    sha256_note: str = ""
    classes: str = ""
    selection: str = ""
    note: str = ""

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Returns the known facts as pairs of a label and a text."""
        digest = f"{self.sha256} ({self.sha256_source})" if self.sha256 else self.sha256_note
        facts = [
            ("family", self.family),
            ("file", self.file),
            ("address", self.url or "unknown; download the file by hand"),
            *(("mirror", mirror) for mirror in self.mirrors),
            *(("gone", gone) for gone in self.gone),
            ("licence", self.licence),
            ("size", self.size),
            ("SHA-256", digest or "not stated"),
            ("classes", self.classes),
            ("selection", self.selection),
            ("note", self.note),
            ("source", self.source),
        ]
        return [(label, text) for label, text in facts if text]


@cache
def published() -> tuple[Published, ...]:
    """Returns all rows of the table."""
    rows: list[dict[str, Any]] = tomllib.loads(TABLE.read_text(encoding="utf-8"))["weights"]
    for row in rows:
        row |= {name: tuple(value) for name, value in row.items() if isinstance(value, list)}
    return tuple(Published(**row) for row in rows)


def known_digest(url: str) -> str | None:
    """Returns the SHA-256 that the table has for an address; None if it has none."""
    return next((row.sha256 for row in published() if row.url == url and row.sha256), None)
