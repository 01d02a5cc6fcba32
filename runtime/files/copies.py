"""Keeps local copies of remote files, for memory-mapping, in a folder of limited size.

A copy is named by its path and by the store's version, so a changed file is downloaded again. The
folder is VLMILL_CACHE (~/.cache/vlmill), limited to VLMILL_CACHE_BYTES (50 GB). The least recently
used copies are deleted first, but none from the last hour, since a process may be about to open
them.
"""

import errno
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vlmill.schemas.errors import InputError

FOLDER, BOUND = "VLMILL_CACHE", "VLMILL_CACHE_BYTES"
BOUND_BYTES = 50 * 10**9
IN_USE_SECONDS = 3600.0
PARTIAL = ".partial"
FULL = (errno.ENOSPC, errno.EDQUOT)  # errors of the operating system for a full disk
LOCK = ".lock"


def cache_folder() -> Path:
    """Returns the folder of copies and of other files that only save time."""
    if configured_folder := os.environ.get(FOLDER):
        return Path(configured_folder)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base, "vlmill")


def disk_full_error(error: OSError) -> OSError:
    """Returns the error of a full disk below :func:`cache_folder`, with its path and the remedy."""
    message = f"{error.strerror}; free disk space, or set {FOLDER} to a folder on another disk"
    return OSError(error.errno, message, str(cache_folder()))


def full_disk_reason(error: OSError) -> str | None:
    """Returns the system's text for a full disk; None for other errors.

    Arrow and workers put the cause of an error only in its message.
    """
    return next((reason for reason in map(os.strerror, FULL) if reason in str(error)), None)


def bound_bytes() -> int:
    """Returns the size limit of the copies. Raises InputError if it is not a number."""
    text = os.environ.get(BOUND, str(BOUND_BYTES))
    try:
        return int(float(text))
    except ValueError:
        raise InputError(f"{BOUND}={text}: must be a number of bytes") from None


def local_copy(url: str, size: int, version: str, download: Callable[[Path], None]) -> Path:
    """Returns the path of a complete copy of a remote file, to be read and not written.

    ``download`` writes it to a file; ``size`` and ``version`` are the store's current ones. Raises
    InputError if the copies in use leave no space for it.
    """
    name = hashlib.sha256(f"{url} {version}".encode()).hexdigest()[:40]
    folder = cache_folder() / "copies"
    path = folder / name
    if not _is_whole(path, size):
        folder.mkdir(parents=True, exist_ok=True)
        with one_at_a_time(folder / f".{name[:2]}{LOCK}"):
            if not _is_whole(path, size):
                with one_at_a_time(folder / LOCK):
                    _evict_copies(folder, size, url)
                _fetch(path, download)
    os.utime(path)
    return path


def _is_whole(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


def _fetch(path: Path, download: Callable[[Path], None]) -> None:
    partial = path.with_name(f"{path.name}{PARTIAL}")
    try:
        download(partial)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _evict_copies(folder: Path, size: int, url: str) -> None:
    """Deletes old copies and leftovers of killed processes until ``size`` more bytes fit."""
    now, bound = time.time(), bound_bytes()
    entries = sorted((e.stat().st_mtime, e.stat().st_size, e.path) for e in _entries(folder))
    total = sum(length for _, length, _ in entries)
    for used, length, name in entries:
        if total + size <= bound:
            return
        if now - used > IN_USE_SECONDS:
            os.unlink(name)
            total -= length
    if total + size > bound:
        raise InputError(
            f"{url}: its {size} bytes do not fit next to the {total} bytes of copies in use in "
            f"{folder.parent}; let {BOUND} ({bound}) be larger, or {FOLDER} be another folder"
        )


def _entries(folder: Path) -> Iterator["os.DirEntry[str]"]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                yield entry


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Holds the lock of a file for the block: other processes wait for their turn."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
