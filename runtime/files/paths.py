"""Provides functions that accept both local paths and URLs of a store."""

import errno
import glob
import os
import re
import shutil
import stat
from pathlib import Path
from typing import Any

from vlmill.runtime.files.remote import RemotePath, is_remote
from vlmill.runtime.files.stores import has_credentials
from vlmill.schemas.errors import InputError

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d{1,9})\.\.(\d{1,9})")
MOST_NAMES = 100_000  # of one argument with braces
_MANGLED = re.compile("[a-z][a-z0-9]+:/")  # how a Path prints a URL


def scratch_beside(folder: Path | None) -> Path | None:
    """Returns the folder for temporary files of ``folder``; None (TMPDIR) for one in a store."""
    return None if isinstance(folder, RemotePath) else folder


def is_web(path: str) -> bool:
    """Returns whether a path is public: on the web, or in S3 without credentials."""
    is_http = path.startswith(("http://", "https://"))
    return is_http or (path.startswith("s3://") and not has_credentials())


def to_path(argument: str | Path) -> Path:
    """Returns the path of an argument: a ``Path``, or a :class:`RemotePath` for a URL.

    Raises InputError for a URL with an unknown scheme.
    """
    if isinstance(argument, RemotePath) or not is_remote(argument):
        return Path(argument) if isinstance(argument, str) else argument
    return RemotePath(str(argument))


def require_local(flag: str, argument: str | Path | None) -> None:
    """Raises InputError for a URL if only a local path is possible."""
    if argument is not None and (is_remote(argument) or _MANGLED.match(str(argument))):
        raise InputError(
            f"{flag} {argument}: must be on a local disk for this command; give a local path"
        )


def expand_braces(argument: str) -> list[str]:
    """Returns the names that an argument with braces expands to, as in a shell.

    ``{000..011}.tar`` is 12 names with equally many digits, ``{a,b}.tar`` two; other braces are
    part of the name. Raises InputError for over MOST_NAMES.
    """
    names = [""]
    remainder = argument
    while match := _BRACES.search(remainder):
        parts = _choices(match[1], argument)
        if len(names) * len(parts) > MOST_NAMES:
            raise InputError(f"{argument}: the braces expand to more than {MOST_NAMES} names")
        names = [f"{name}{remainder[: match.start()]}{part}" for name in names for part in parts]
        remainder = remainder[match.end() :]
    return [f"{name}{remainder}" for name in names]


def _choices(text: str, argument: str) -> list[str]:
    """Returns the expansions of one pair of braces."""
    if "," in text:
        return text.split(",")
    if (match := _RANGE.fullmatch(text)) is None:
        return [f"{{{text}}}"]
    first, last = int(match[1]), int(match[2])
    if abs(last - first) >= MOST_NAMES:
        raise InputError(f"{argument}: the braces expand to more than {MOST_NAMES} names")
    step = 1 if first <= last else -1
    padded = any(end.startswith("0") and len(end) > 1 for end in match.groups())
    digits = max(map(len, match.groups())) if padded else 0
    return [f"{number:0{digits}d}" for number in range(first, last + step, step)]


def matches(argument: str | Path, *, recursive: bool = False) -> list[Path]:
    """Returns the sorted paths that match a glob, on this machine or in a store (only files).

    A glob that matches nothing may have braces: :func:`expand_braces`.
    """
    if (paths := _matches(argument, recursive=recursive)) or "{" not in str(argument):
        return paths
    names = expand_braces(str(argument))
    return [path for name in names for path in _matches(name, recursive=recursive)]


def _matches(argument: str | Path, *, recursive: bool) -> list[Path]:
    if not is_remote(argument):
        return sorted(Path(name) for name in glob.glob(str(argument), recursive=recursive))
    remote_path = to_path(argument)
    assert isinstance(remote_path, RemotePath)
    return remote_path.matches()


def readable(path: str | Path) -> Any:
    """Returns what pyarrow opens for ``path``: a local path, or a stream of ranges in a store."""
    path = to_path(path)
    return path.open("rb") if isinstance(path, RemotePath) else path


def remove_tree(folder: str | Path) -> None:
    """Deletes a folder with its content, if it exists."""
    folder = to_path(folder)
    if isinstance(folder, RemotePath):
        folder.remove_all()
    else:
        shutil.rmtree(folder, ignore_errors=True)


KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def irregular_kind(path: str | Path) -> str | None:
    """Returns the type of a local path that is neither a file nor a folder: "a pipe".

    None for files, folders, ``/dev/null``, missing paths and paths in a store.
    """
    text = str(path)
    if not text or is_remote(text) or text == os.devnull:
        return None
    try:
        mode = os.stat(text).st_mode
    except (OSError, ValueError):  # ValueError: a null byte
        return None
    return next((name for is_kind, name in KINDS if is_kind(mode)), None)


def read_regular(path: Path, max_bytes: int = -1) -> bytes:
    """Returns a file's bytes, at most ``max_bytes`` if that is not negative.

    Raises OSError, also for a pipe or a device, which may never end.
    """
    if kind := irregular_kind(path):
        raise OSError(errno.EINVAL, f"is {kind}, expected a file", str(path))
    with path.open("rb") as file:
        content: bytes = file.read(max_bytes)
        return content
