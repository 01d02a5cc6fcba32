"""One run at a time writes an output: a second one is refused, and told who is at work.

The lock is the system's own (`flock`), so that a crash or a kill frees it. It belongs to a run:
whoever starts the run takes it, and its workers and the other ranks of its launch do not ask.
"""

import errno
import fcntl
import json
import os
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vlmill.schemas.errors import InputError

LOCK = ".vlmill-lock"
# What file systems answer that know no locks, as some network mounts.
_UNSUPPORTED = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}


@contextmanager
def locked(folder: Path, flag: str = "--output") -> Iterator[None]:
    """Hold the lock of an output folder, which is made if it is not there.

    Ranks of a launch above the first go through without one: theirs is the first rank's. Raises
    InputError if another run holds it, or if the folder cannot be written.
    """
    if int(os.environ.get("RANK", "0")):
        yield
        return
    descriptor = _take(folder, flag)
    try:
        yield
    finally:
        # Removed while it is held: who waits for it sees that its file is gone, and asks again.
        with suppress(FileNotFoundError):
            (folder / LOCK).unlink()
        os.close(descriptor)


def _take(folder: Path, flag: str) -> int:
    path = folder / LOCK
    while True:
        descriptor = _open(path, flag)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(descriptor)
            os.close(descriptor)
            raise InputError(
                f"{flag} {folder} is being written by {holder}; wait until it has ended, or give "
                "another folder"
            ) from None
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                os.close(descriptor)
                raise
            warnings.warn(
                f"{flag} {folder} lies where files cannot be locked; start no second run",
                RuntimeWarning,
                stacklevel=3,
            )
        if _is_at(path, descriptor):
            break
        os.close(descriptor)  # its last holder has removed it between our two steps
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(_self(), ensure_ascii=True).encode(), 0)
    return descriptor


def _open(path: Path, flag: str) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except (FileExistsError, NotADirectoryError):
        raise InputError(f"{flag} {path.parent} is a file; give a folder") from None
    except PermissionError as error:
        raise InputError(
            f"{flag} {path.parent} cannot be written ({error.strerror}); give a folder that you "
            "may write to"
        ) from None
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        raise InputError(
            f"{flag} {path.parent} lies on a file system that is read-only; give another folder"
        ) from None


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _self() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])[:200],
        "since": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
    }


def _holder(descriptor: int) -> str:
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0))
        return "process {pid} on {host} since {since} ({command})".format(**holder)
    except (ValueError, KeyError, TypeError):  # it has the lock and is about to say so
        return "another run"
