"""Parses names of weights that are not on this machine.

``hf://OWNER/NAME[/PATH][@REVISION]`` is a repository of the Hugging Face hub, or a file or folder
in it; ``https://HOST/PATH`` is a file of the web. Either may end in ``#sha256=`` and the 64
hexadecimal digits that the file must have.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from vlmill.runtime.console.command import path_or_url
from vlmill.runtime.weights.published import known_digest
from vlmill.schemas.errors import InputError

HUB, WEB = "hf://", ("https://", "http://")
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?"
_PART = r"[A-Za-z0-9._+ -]{1,200}"
_HUB = re.compile(
    rf"hf://({_NAME}/{_NAME})((?:/{_PART}){{0,8}})(?:@([A-Za-z0-9][A-Za-z0-9._/-]{{0,254}}))?"
)
_DIGEST = re.compile(r"sha256[=:-]([0-9a-fA-F]{64})")


@dataclass(frozen=True, kw_only=True)
class HubLocation:
    """Identifies a repository of the hub, its ``revision`` (a commit, a tag or a branch) and, if
    ``path`` is not empty, a file or folder.
    """

    repo: str
    revision: str = "main"
    path: str = ""
    sha256: str | None = None  # of the file, 64 hexadecimal digits

    def __str__(self) -> str:
        path = f"/{self.path}" if self.path else ""
        return f"{HUB}{self.repo}{path}" + ("" if self.revision == "main" else f"@{self.revision}")


@dataclass(frozen=True, kw_only=True)
class WebLocation:
    """Identifies a file of the web."""

    url: str
    sha256: str | None = None  # 64 hexadecimal digits

    def __str__(self) -> str:
        return self.url


def is_named(text: object) -> bool:
    """Returns whether a text names weights that are not on this machine."""
    return str(text).startswith((HUB, *WEB))


def path_or_name(text: str) -> Path | str:
    """Converts an argument that is a path, a URL of a store, or a name of weights."""
    return text if is_named(text) else path_or_url(text)


def parse_name(text: str) -> HubLocation | WebLocation:
    """Parses a name. Raises InputError for a text that is not one, with the expected form."""
    return parse_hub_location(text) if str(text).startswith(HUB) else parse_web_location(text)


def parse_hub_location(text: str) -> HubLocation:
    """Parses the name of a repository of the hub. Raises InputError for other texts."""
    name, sha256 = _split_digest(text)
    match = _HUB.fullmatch(name)
    if match is None or any(part in (".", "..") for part in name.split("/")):
        raise InputError(
            f"{text}: expected {HUB}OWNER/NAME, which may be followed by /FILE and @REVISION"
        )
    return HubLocation(
        repo=match[1], path=match[2].strip("/"), revision=match[3] or "main", sha256=sha256
    )


def parse_repository(text: str) -> HubLocation:
    """Parses the name of a whole repository, without a file. Raises InputError for other texts."""
    location = parse_hub_location(text)
    if location.path or location.sha256:
        raise InputError(f"{text}: expected {HUB}OWNER/NAME alone, which @REVISION may follow")
    return location


def parse_web_location(text: str) -> WebLocation:
    """Parses the address of a file.

    Its SHA-256 is stated by the text, else by the table of published weights. Raises InputError
    for an address without a host and a path, and for ``http://`` without a
    SHA-256: a network in between could replace the file.
    """
    url, sha256 = _split_digest(text)
    host, _, path = url.partition("://")[2].partition("/")
    if not host or not path:
        raise InputError(f"{text}: expected https://HOST/PATH, the address of a file")
    if url.startswith("http://") and sha256 is None:
        raise InputError(
            f"{text}: http:// does not protect a download; give https://, or add "
            "#sha256= and the 64 digits that it must have"
        )
    return WebLocation(url=url, sha256=sha256 or known_digest(url))


def _split_digest(text: str) -> tuple[str, str | None]:
    name, mark, fragment = text.partition("#")
    if not mark:
        return text, None
    match = _DIGEST.fullmatch(fragment)
    if match is None:
        raise InputError(f"{text}: expected #sha256= and 64 hexadecimal digits at the end")
    return name, match[1].lower()
