"""Records the files of a unit of work, each with its size and SHA-256.

They are compared with these records later, so a flipped bit on disk, or another run's file under
the same name, is noticed before it is used.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vlmill.runtime.files.listed import hash_file


@dataclass(frozen=True, kw_only=True)
class WrittenFile:
    """Describes a finished file; ``bytes`` is its size."""

    path: Path
    bytes: int
    sha256: str


class _Log(threading.local):
    files: list[WrittenFile] | None = None
    digest: tuple[Path, str] | None = None  # of a temporary file that was already read


_log = _Log()


@contextmanager
def record_files() -> Iterator[list[WrittenFile]]:
    """Yields the list of the files that this thread writes atomically while the block runs."""
    before, _log.files = _log.files, []
    try:
        yield _log.files
    finally:
        _log.files = before


def note_digest(temporary: Path, sha256: str) -> None:
    """Records the SHA-256 of a temporary file, so that :func:`note_file` need not read it."""
    _log.digest = (temporary, sha256)


def note_file(path: Path, temporary: Path) -> None:
    """Adds ``path``, whose bytes are in ``temporary``, to the list of the current block, if any."""
    if _log.files is None:
        return
    known, _log.digest = _log.digest, None
    sha256 = known[1] if known is not None and known[0] == temporary else hash_file(temporary)
    _log.files.append(WrittenFile(path=path, bytes=temporary.stat().st_size, sha256=sha256))
