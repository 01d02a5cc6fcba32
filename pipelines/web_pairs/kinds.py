"""Detects archives of pages, WET files and WAT files, so that one of the wrong kind is refused."""

import gzip
import io
import re
import zlib
from collections.abc import Sequence

from vlmill.runtime.files.remote import is_remote
from vlmill.schemas.errors import InputError

_NAMED = re.compile(r"\.(wet|wat)(?:\.gz|\.zst)?$", re.IGNORECASE)
_KINDS = {b"conversion": "WET", b"metadata": "WAT"}
_TYPE = re.compile(rb"^WARC-Type:\s*([a-z]+)", re.IGNORECASE | re.MULTILINE)
_SNIFFED_BYTES, _MAX_SNIFFED = 16 << 10, 100


def require_warc(argument: str, paths: Sequence[str]) -> None:
    """Raises InputError for a WET or WAT file among archives: it has no pages or images.

    Remote files are recognised by their names; for local files the first records are read, too.
    """
    for path, kind in _find_kinds(paths):
        if kind == "WET":
            raise InputError(
                f"{argument}: {path} is a WET file, which has only the texts of pages; "
                "give the WARC file of the same name"
            )
        if kind == "WAT":
            raise InputError(
                f"{argument}: {path} is a WAT file, which has only the links of pages; "
                "give it to --wat, or give the WARC file of the same name"
            )


def require_wat(argument: str, paths: Sequence[str]) -> None:
    """Raises InputError for a WARC or WET file among WAT files, as :func:`require_warc`."""
    for path, kind in _find_kinds(paths):
        if kind == "WET":
            raise InputError(
                f"{argument}: {path} is a WET file, which has only the texts of pages; "
                "give the WAT file of the same name"
            )
        if kind == "WARC":
            raise InputError(
                f"{argument}: {path} is a WARC file with the pages themselves; give it to --warc"
            )


def _find_kinds(paths: Sequence[str]) -> list[tuple[str, str | None]]:
    """Returns each file with its kind; None if it is not known."""
    kinds: list[tuple[str, str | None]] = []
    for number, path in enumerate(paths):
        named = _NAMED.search(path)
        is_local = number < _MAX_SNIFFED and not is_remote(path) and "://" not in path
        kind = named[1].upper() if named else _sniff(path) if is_local else None
        kinds.append((path, kind))
    return kinds


def _sniff(path: str) -> str | None:
    """Returns the kind of a file whose first records after its description are of one type."""
    try:
        with open(path, "rb") as file:
            is_gzip = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            stream = gzip.GzipFile(fileobj=file) if is_gzip else file
            start = io.BufferedReader(stream).read(_SNIFFED_BYTES)
    except (OSError, EOFError, zlib.error):
        return None  # the error is reported when the file is read
    types = {kind.lower() for kind in _TYPE.findall(start)} - {b"warcinfo"}
    if types & {b"response", b"resource", b"revisit"}:
        return "WARC"
    if len(types) != 1:
        return None
    (kind,) = types
    if kind == b"metadata" and b"application/json" not in start:
        return None
    return _KINDS.get(kind)
