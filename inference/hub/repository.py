"""Names a repository of the Hugging Face hub: ``hf://owner/name`` or ``hf://owner/name@revision``."""

import re
from dataclasses import dataclass

from vlmill.schemas.errors import InputError

SCHEME = "hf://"
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?"
_LOCATION = re.compile(rf"hf://({_NAME}/{_NAME})(?:@([A-Za-z0-9][A-Za-z0-9._/-]{{0,254}}))?")


@dataclass(frozen=True, kw_only=True)
class HubLocation:
    """Names a repository of the hub, and which ``revision`` of it: a commit, a tag or a branch."""

    repo: str
    revision: str = "main"

    def __str__(self) -> str:
        return f"{SCHEME}{self.repo}" + ("" if self.revision == "main" else f"@{self.revision}")


def is_hub(path: object) -> bool:
    """Says whether a path is of the hub."""
    return str(path).startswith(SCHEME)


def parse_hub_location(text: str) -> HubLocation:
    """Reads ``hf://owner/name`` or ``hf://owner/name@revision``. Raises InputError for others."""
    match = _LOCATION.fullmatch(text)
    if match is None or ".." in text:
        raise InputError(f"{text}: want {SCHEME}owner/name, or {SCHEME}owner/name@revision")
    return HubLocation(repo=match[1], revision=match[2] or "main")
