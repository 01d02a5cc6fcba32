"""Files that a record lists with their sizes and SHA-256, compared with those on the disk."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ListedFile:
    """A file of a folder as it was written; ``sha256`` is None in records of an older vlmill."""

    name: str
    bytes: int
    sha256: str | None


def describe_file(path: Path) -> ListedFile:
    """Returns the record of a file, which is read once (about 1 GB/s)."""
    return ListedFile(name=path.name, bytes=path.stat().st_size, sha256=hash_file(path))


def hash_file(path: Path) -> str:
    """Returns a file's SHA-256, as ``sha256sum`` prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parse_listed(entries: Iterable[Mapping[str, Any]]) -> list[ListedFile]:
    """Parses what a JSON file lists. Raises KeyError, TypeError or ValueError for damage."""
    return [
        ListedFile(
            name=Path(str(entry["name"])).name,
            bytes=int(entry["bytes"]),
            sha256=None if entry.get("sha256") is None else str(entry["sha256"]),
        )
        for entry in entries
    ]


def file_problems(folder: Path, files: Iterable[ListedFile], *, hashes: bool = True) -> list[str]:
    """Returns what differs between a folder and the record of its files, one line a file.

    Sizes are compared in any case; ``hashes``: the SHA-256, too, where the record has one.
    """
    problems = (file_problem(folder / file.name, file, hashes=hashes) for file in files)
    return [problem for problem in problems if problem]


def file_problem(path: Path, file: ListedFile, *, hashes: bool = True) -> str | None:
    """Returns what differs between a file and its record; None: nothing does."""
    if not path.is_file():
        return f"{path} is missing"
    size = path.stat().st_size
    if size != file.bytes:
        return f"{path} has {size} bytes and was written with {file.bytes}"
    if hashes and file.sha256 is not None and hash_file(path) != file.sha256:
        return f"{path} has changed since it was written: its SHA-256 differs"
    return None
