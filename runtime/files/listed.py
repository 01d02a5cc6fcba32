"""Compares files with a record of their sizes and SHA-256.

Checkpoints, folders of detectors, search indexes, crawls and manifests have such a record.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmill.schemas.errors import InputError

FILE_RECORD = "files"  # the record in a JSON file: names, each with bytes and sha256


@dataclass(kw_only=True)
class DigestChecks:
    """Selects the files that this process compares with their SHA-256 before use.

    ``trust``: skip checkpoints, detectors, indexes and vectors (``--trust``). ``verify``: include
    tables (``--verify``).
    """

    trust: bool = False
    verify: bool = False


CHECKS = DigestChecks()
"""The checks of this process, set by the flags of its command"""


@contextmanager
def own_checks() -> Iterator[None]:
    """Restores :data:`CHECKS` at the end of the block, in which flags of a command set them."""
    before = CHECKS.trust, CHECKS.verify
    try:
        yield
    finally:
        CHECKS.trust, CHECKS.verify = before


@dataclass(frozen=True, kw_only=True)
class ListedFile:
    """Holds the recorded size and digest of a file; records of an older vlmill may lack either."""

    name: str
    bytes: int | None
    sha256: str | None


def describe_file(path: Path) -> ListedFile:
    """Returns the record of a file, which is read once (about 1 GB/s)."""
    return ListedFile(name=path.name, bytes=path.stat().st_size, sha256=hash_file(path))


def hash_file(path: Path) -> str:
    """Returns a file's SHA-256, as ``sha256sum`` prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def record_files(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Returns the record of a folder's files for its JSON file."""
    files = (describe_file(folder / name) for name in sorted(names))
    return {file.name: {"bytes": file.bytes, "sha256": file.sha256} for file in files}


def parse_record(record: object) -> list[ListedFile]:
    """Parses the result of :func:`record_files`; returns no files for None, from an older vlmill.

    Raises ValueError for damage.
    """
    if record is None:
        return []
    if not isinstance(record, Mapping):
        raise ValueError("its record of files is not a JSON object")
    try:
        entries = [
            {"name": name, **(entry if isinstance(entry, Mapping) else {"sha256": entry})}
            for name, entry in record.items()
        ]
        return parse_listed(entries)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"its record of files is damaged ({error})") from None


def require_unchanged(
    folder: Path, files: Iterable[ListedFile], subject: str, *, trust: bool | None = None
) -> None:
    """Raises InputError for the first file of a record that is missing or has changed.

    ``subject`` begins the message (``--checkpoint DIR``). ``trust`` only checks existence; None
    uses the flags of the command.
    """
    trusted = CHECKS.trust if trust is None else trust
    for file in files:
        path = folder / file.name
        if trusted and path.is_file():
            continue
        if problem := file_problem(path, file):
            remedy = "" if not path.is_file() else ", or --trust to read it as it is"
            detail = problem.removeprefix(f"{folder}/")
            raise InputError(f"{subject} is damaged ({detail}); use another copy{remedy}")


def parse_listed(entries: Iterable[Mapping[str, Any]]) -> list[ListedFile]:
    """Parses the file list of a JSON file. Raises KeyError, TypeError or ValueError for damage."""
    return [
        ListedFile(
            name=Path(str(entry["name"])).name,
            bytes=None if entry.get("bytes") is None else int(entry["bytes"]),
            sha256=None if entry.get("sha256") is None else str(entry["sha256"]),
        )
        for entry in entries
    ]


def file_problems(folder: Path, files: Iterable[ListedFile], *, hashes: bool = True) -> list[str]:
    """Returns the differences between a folder and the record of its files, one line per file.

    Sizes are always compared; with ``hashes`` also the SHA-256, if the record has one.
    """
    problems = (file_problem(folder / file.name, file, hashes=hashes) for file in files)
    return [problem for problem in problems if problem]


def file_problem(path: Path, file: ListedFile, *, hashes: bool = True) -> str | None:
    """Returns the difference between a file and its record; None without one."""
    if not path.is_file():
        return f"{path} is missing"
    size = path.stat().st_size
    if file.bytes is not None and size != file.bytes:
        return f"{path} has {size} bytes and was written with {file.bytes}"
    if hashes and file.sha256 is not None and hash_file(path) != file.sha256:
        return f"{path} has changed since it was written: its SHA-256 differs"
    return None
